"""Two optimizers on a loss surface, step by step, in the browser: ``critgrad playground``.

The page plays runs that were recorded with the library (``benchmarks/playground_frames``); no optimizer is written a second
time.
"""

from __future__ import annotations

from .page import build, main

__all__ = ["build", "main"]
