"""``python -m critgrad.lab``: the ``critgrad`` command straight from the sources (an alias; see ``critgrad.cli``)."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("critgrad.cli", run_name="__main__", alter_sys=True)
