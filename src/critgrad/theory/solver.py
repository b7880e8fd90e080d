"""The optional packages behind ``lmi`` and ``pep``: imported when one of them is called, not before."""

from __future__ import annotations

import warnings
from typing import Any


def modules() -> tuple[Any, Any]:
    """``(cvxpy, numpy)``, or ``ImportError`` that says what to install."""
    try:
        import clarabel  # noqa: F401
        import cvxpy
        import numpy
    except ImportError as error:
        raise ImportError(
            f'method="lmi" and method="pep" need {error.name}: pip install critgrad[theory] (cvxpy and clarabel)'
        ) from error
    return cvxpy, numpy


def solve(problem: Any) -> bool:
    """Whether the solver found an optimum; anything less counts as nothing."""
    cvxpy, _ = modules()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        try:
            problem.solve(solver=cvxpy.CLARABEL)
        except cvxpy.SolverError:
            return False
    return bool(problem.status == cvxpy.OPTIMAL)
