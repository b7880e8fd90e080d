"""The native core's tests under AddressSanitizer and UndefinedBehaviorSanitizer: make test-sanitized.

First the proof that they are on: what is wrong on purpose must be found. Needs gcc and its libasan, so Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TESTS = ("test_native.py", "test_native_damping.py", "test_stateful.py")
SANITIZE = "-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"

UNDEFINED = "int successor(int x) { return x + 1; }"
CALL_IT = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).successor(int(sys.argv[2])))"

# A gradient whose storage is shorter than it says, in the core itself. Torch's own code is not watched.
OVERFLOW = """
import sys, torch, critgrad
from critgrad.engines.native import build as compiled
assert compiled.compiled_core() is not None, compiled.why_no_core()
p = torch.nn.Parameter(torch.ones(1000))
opt = critgrad.Adam_C([p], fused=True)
for t in range(4):
    p.grad = torch.ones(1000)
    if t == 3 and sys.argv[1] == "short":
        p.grad.untyped_storage().resize_(4 * 999)
    opt.step()
print("stepped")
"""


def library(name: str) -> str | None:
    """Where gcc has it, or ``None``: gcc then gives the bare name back."""
    try:
        done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = done.stdout.strip()
    return found if os.path.isabs(found) else None


def environment(folder: str, asan: str, stdcxx: str) -> dict[str, str]:
    return {
        **os.environ,
        # Torch throws, which must find the real function: libstdc++ has to be there before python asks for it.
        "LD_PRELOAD": f"{asan} {stdcxx}",
        # Python itself frees little at its end.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Every array a block of its own with a guarded zone: Python's pools would hide a step beyond a small one.
        "PYTHONMALLOC": "malloc",
        "CC": "env -u LD_PRELOAD gcc",
        "CRITGRAD_CFLAGS": SANITIZE,
        "CRITGRAD_CACHE": folder,
        "CRITGRAD_NATIVE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def expect(what: str, command: list[str], env: dict[str, str], finding: str | None) -> None:
    """That a program ends well, or with this finding of a sanitizer."""
    done = subprocess.run([sys.executable, "-c", *command], env=env, capture_output=True, text=True)
    said = done.stdout + done.stderr
    as_expected = done.returncode == 0 if finding is None else done.returncode != 0 and finding in said
    if not as_expected:
        sys.exit(f"{said}\n{what}: exit code {done.returncode}, expected {finding or 'no finding'}")
    print(f"{what}: {finding or 'no finding'}, as it should be", flush=True)


def prove(folder: str, env: dict[str, str]) -> None:
    source, built = Path(folder, "undefined.c"), str(Path(folder, "undefined.so"))
    source.write_text(UNDEFINED)
    subprocess.run(["gcc", *SANITIZE.split(), "-fPIC", "-shared", str(source), "-o", built], check=True)
    expect("a sum within range", [CALL_IT, built, "1"], env, None)
    expect(
        "a sum beyond the largest int", [CALL_IT, built, str(2**31 - 1)], env, "runtime error: signed integer overflow"
    )
    expect("the core, a gradient as long as it says", [OVERFLOW, "whole"], env, None)
    expect(
        "the core, a gradient shorter than it says", [OVERFLOW, "short"], env, "AddressSanitizer: heap-buffer-overflow"
    )


def main(options: list[str]) -> int:
    asan, stdcxx = library("libasan.so"), library("libstdc++.so")
    if asan is None or stdcxx is None:
        print("the native core is not tested under sanitizers: gcc or its libasan is missing", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    with tempfile.TemporaryDirectory() as folder:
        env = environment(folder, asan, stdcxx)
        prove(folder, env)
        tests = [str(HERE.parent / name) for name in TESTS if (HERE.parent / name).exists()]
        # A finding ends the process: pytest must not keep its words (-s). Torch's operations are not what is watched.
        chosen = ["-m", "not slow", "-k", "not torch_operations", "-p", "no:cacheprovider", "-s"]
        command = [sys.executable, "-m", "pytest", *chosen, *tests, *options]
        return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
