"""Arms and answers that nobody ran: plain values, deterministic and quick to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from critgrad.lab.study.answer import Arm, Replicate


def arm(
    name: str,
    values: Sequence[float],
    valids: Sequence[float] | None = None,
    *,
    untrained: Mapping[int, str] | None = None,
    near_end: Mapping[str, int] | None = None,
    first: int = 1,
    **more: Any,
) -> Arm:
    """An arm of which only the values per replicate are known."""
    reasons = untrained or {}
    replicates = tuple(
        Replicate(number, (), {}, (), valid=valid, value=value, untrained=reasons.get(number, ""))
        for number, (value, valid) in enumerate(zip(values, valids or values), start=first)
    )
    return Arm(name, f"torch.optim:{name}", {}, {}, replicates, near_end or {}, **more)


def arms(*all_of_them: Arm) -> dict[str, Arm]:
    return {one.name: one for one in all_of_them}
