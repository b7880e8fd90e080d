"""``python -m critgrad.paper.results_page results/*.db.xz --out docs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from critgrad.lab.ledger import LedgerError

from . import write_results


def main(argv: Sequence[str] | None = None) -> int:
    """Write them; what a user can put right is one line."""
    parser = argparse.ArgumentParser(
        prog="python -m critgrad.paper.results_page", description="Write the pages and figures of results from ledgers."
    )
    parser.add_argument("ledgers", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the documentation: docs")
    args = parser.parse_args(argv)
    try:
        print(*write_results(args.ledgers, args.out), sep="\n")
    except (LedgerError, OSError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
