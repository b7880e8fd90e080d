"""The picture of a study's page in docs/study.md: runs examples/study-optimizer and photographs the top of its report.

python docs/make_study_picture.py
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1000, 795  # pixels: the claims and their differences


def main() -> int:
    """Run the study, then the browser."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        print(f"no browser: expected one of {', '.join(BROWSERS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        study = shutil.copytree(ROOT / "examples" / "study-optimizer", Path(folder, "study"))
        subprocess.run([sys.executable, "-m", "critgrad.lab", "study", "run", str(study / "study.toml")], check=True)
        picture = ROOT / "docs" / "images" / "study.png"
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
        subprocess.run([program, *flags, f"--screenshot={picture}", (study / "report.html").as_uri()], check=True)
    print(picture.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
