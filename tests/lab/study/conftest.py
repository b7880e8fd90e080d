"""The browser of tests/lab/browser.py, and made-up answers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from browser import chromium  # noqa: F401 (a fixture)
