"""Text of a command line as values, and values as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import LabError

if TYPE_CHECKING:
    from .stats import Interval


def pairs(items: Sequence[str], what: str) -> dict[str, Any]:
    """``["epochs=3", "lr=1e-3"]`` as a dict of Python values."""
    out: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise LabError(f"Invalid {what}: {item!r}, expected NAME=VALUE")
        out[name] = value_of(text)
    return out


def value_of(text: str) -> Any:
    """A number, true/false, none, a list (with commas), or the text itself.

    >>> value_of("3"), value_of("1e-3"), value_of("true"), value_of("0.9,0.99"), value_of("KotH")
    (3, 0.001, True, [0.9, 0.99], 'KotH')
    """
    if "," in text:
        return [value_of(part) for part in text.split(",") if part]
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    if low in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def listed(values: Mapping[str, Any]) -> str:
    """``lr=0.001, topC=5``, as one reads it.

    >>> listed({"lr": 1e-3, "topC": 5})
    'lr=0.001, topC=5'
    """
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def show(value: float | None, digits: int = 4) -> str:
    """A number as one reads it; a dash for none.

    >>> show(0.00012345), show(97.0), show(None), show(1234567.0)
    ('0.0001234', '97', '-', '1.235e+06')
    """
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def default_device(device: str) -> str:
    """``auto`` is the GPU if there is one; a device that is not there is an error before anything is run."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise LabError(f"Invalid device: {device!r}, expected auto, cpu, cuda or cuda:N") from None
    if kind.type == "cuda" and not (kind.index or 0) < torch.cuda.device_count():
        raise LabError(f"Invalid device: {device!r}, torch sees {torch.cuda.device_count()} CUDA devices here")
    return device


def decimals(half: float) -> int:
    """Places behind the point that show two digits of an interval's half width.

    >>> decimals(0.056), decimals(1.2), decimals(35.0)
    (3, 1, 0)
    """
    return max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 3


_NOISE, _LEAST = 1e-9, 1e-12  # of the mean's size, and in itself: below, a width is what rounding left of 0


def without_noise(half: float, mean: float) -> float:
    """A half width; 0 where equal values differ by rounding alone.

    >>> without_noise(9e-14, 0.3333333333333361), without_noise(0.04, 98.0), without_noise(9e-15, 3e-15)
    (0.0, 0.04, 0.0)
    """
    return 0.0 if half <= max(_LEAST, _NOISE * abs(mean)) else half


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "seed"), counted(1200, "run")
    ('1 seed', '1,200 runs')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


FEWEST_FOR_INTERVAL = 3  # with two values a t-interval is thirteen standard errors wide, and says nothing


def fixed(value: float, places: int, sign: str = "") -> str:
    """A number with so many places; zero has no sign.

    >>> fixed(-0.001, 2, "+"), fixed(2.5, 1, "+")
    ('0.00', '+2.5')
    """
    rounded = round(value, places) + 0.0  # no "-0.00" in a table
    return f"{rounded:{sign if rounded else ''}.{places}f}"


def interval_text(found: Interval, sign: str = "", fewest: int = FEWEST_FOR_INTERVAL) -> str:
    """``92.271 ± 0.056``: the one way in which intervals are written, with as many places as their width supports.

    The mean alone where fewer than ``fewest`` values stand behind it, and a dash for none.

    >>> from critgrad.lab.stats import Interval
    >>> interval_text(Interval(92.2713, 92.215, 92.327, 20)), interval_text(Interval(0.5, -0.1, 1.1, 20), "+")
    ('92.271 ± 0.056', '+0.50 ± 0.60')
    >>> interval_text(Interval(1e4, 1e4, 1e4, 3)), interval_text(Interval(77.0, -190.0, 344.0, 2), "+")
    ('10000 ± 0', '+77')
    """
    return _with_half(found.mean, found.half_width if found.n >= fewest else math.inf, sign)


def _with_half(mean: float, half: float, sign: str) -> str:
    half = without_noise(half, mean)
    if not math.isfinite(mean):
        return "-"
    if not math.isfinite(half):
        return f"{mean:{sign}.4g}"
    if half == 0:  # the same runs, or runs that all ended at the worst value
        return "0 (the same runs)" if abs(mean) <= _LEAST else f"{mean:{sign}.6g} ± 0"
    places = decimals(half)
    return f"{fixed(mean, places, sign)} ± {fixed(half, places)}"


def skew_interval_text(estimate: float, low: float, high: float, sign: str = "") -> str:
    """``0.012 ± 0.004`` where that says the same ends, else ``0.012 (0.009 to 0.021)``. No end is rounded to 0.

    The estimate alone where the interval has no ends.

    >>> skew_interval_text(0.0121, 0.0081, 0.0161), skew_interval_text(0.012, 0.009, 0.021, "+")
    ('0.0121 ± 0.0040', '+0.0120 (+0.0090 to +0.0210)')
    >>> skew_interval_text(-0.11, -0.217, -0.003), skew_interval_text(-0.107, -0.217, 0.003)
    ('-0.110 (-0.217 to -0.003)', '-0.107 (-0.217 to 0.003)')
    >>> skew_interval_text(0.5, -math.inf, math.inf), skew_interval_text(0.0, 0.0, 0.0), skew_interval_text(math.nan, 0, 0)
    ('0.5', '0 (the same runs)', '-')
    """
    half = without_noise((high - low) / 2, estimate)
    if half == 0 or not math.isfinite(estimate) or not math.isfinite(half):
        return _with_half(estimate, half, sign)
    places = decimals(half)
    lost = [end for end in (low, high) if end and not round(end, places)]
    if not lost and all(
        fixed(estimate + way * half, places) == fixed(end, places) for way, end in ((-1, low), (1, high))
    ):
        return _with_half(estimate, half, sign)
    needed = max((decimals(10 * abs(end)) for end in lost), default=places)
    places = needed if needed <= places + 2 else places
    texts = [fixed(value, places, sign) for value in (estimate, low, high)]
    return "{} ({} to {})".format(*texts)
