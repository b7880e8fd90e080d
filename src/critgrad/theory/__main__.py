"""``python -m critgrad.theory``: prints ``summary``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

from ..memory.options import AGGREGATIONS
from .report import summary


def parser() -> argparse.ArgumentParser:
    """The command's arguments: those of ``summary``, with its defaults."""
    default = {name: option.default for name, option in inspect.signature(summary).parameters.items()}
    p = argparse.ArgumentParser(
        prog="python -m critgrad.theory",
        description="Effective step, staleness, safe step sizes and matched momentum of a memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--topC", type=int, default=default["topC"], help="entries in the memory")
    p.add_argument("--decay", type=float, default=default["decay"], help="of the priorities, per step")
    p.add_argument("--aggr", choices=AGGREGATIONS, default=default["aggr"], help="how memory and gradient are combined")
    p.add_argument("--kappa", type=float, default=default["kappa"], help="scale of the memory's share")
    p.add_argument("--rho", type=float, default=default["rho"], help="strength of the damping (aggr fisher)")
    p.add_argument("--momentum", type=float, default=default["momentum"], help="of the base optimizer")
    p.add_argument("--max-age", type=int, default=default["max_age"], help="the option max_age")
    p.add_argument(
        "--norm-ratio", type=float, default=default["norm_ratio"], help="largest over smallest gradient norm"
    )
    p.add_argument("--norm-decay", type=float, default=default["norm_decay"], help="by which norms shrink per step")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Print the summary; a bad value is an error of the command line."""
    p = parser()
    arguments = vars(p.parse_args(argv))
    try:
        print(summary(**arguments))
    except ValueError as error:
        p.error(str(error))


if __name__ == "__main__":
    main()
