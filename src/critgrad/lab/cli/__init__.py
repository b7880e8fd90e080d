"""The ``critgrad`` command: typer and rich in front of the lab."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``critgrad`` script."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"critgrad's commands need the package {error.name}: pip install 'critgrad[lab]'\n"
            "On a machine without it: python -m critgrad.lab --help (train, sweep, search, analyze, merge, prepare)."
        )
    from .app import app

    app(prog_name="critgrad")
