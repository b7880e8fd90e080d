"""A small writer of figures as static SVG: scales with round ticks, and a frame to draw in.

Nothing here has a colour of its own. Shapes take ``currentColor`` of the group that they stand in (``frame.group("a0")``),
texts and lines their classes; the page's style sheet gives both, light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Point = tuple[float, float]


def n(value: float) -> str:
    """A coordinate, as short as it can be.

    >>> n(12.0), n(3.14159)
    ('12', '3.1')
    """
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Scale:
    """Values onto a stretch of the figure. ``log`` in base ten."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value stands; one outside stands at the nearer end.

        >>> Scale(0.0, 10.0, 100.0, 200.0)(2.5), Scale(1e-4, 1.0, 0.0, 80.0, log=True)(1e-3), Scale(0.0, 1.0, 0.0, 10.0)(7.0)
        (125.0, 20.0, 10.0)
        """
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """About so many round values inside, with their texts.

        >>> Scale(0.0, 1.0, 0, 1).ticks(4)
        [(0.0, '0.0'), (0.5, '0.5'), (1.0, '1.0')]
        >>> [text for _, text in Scale(5e-4, 0.2, 0, 1, log=True).ticks()]
        ['10⁻³', '10⁻²', '10⁻¹']
        """
        return self._decades(count) if self.log else _round_steps(self.low, self.high, count)

    def _decades(self, count: int) -> list[tuple[float, str]]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last - first < 1:  # less than two powers of ten: steps in between
            found = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 3, 5, 7)]
            return [(value, f"{value:.12g}") for value in found if self.low <= value <= self.high]
        every = math.ceil((last - first + 1) / (count + 1))
        return [(10.0**e, _power(e)) for e in range(first, last + 1, every)]


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if 0 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPT)


def _round_steps(low: float, high: float, count: int) -> list[tuple[float, str]]:
    rough = (high - low) / max(count, 1)
    if not rough > 0 or not math.isfinite(rough):
        return [(low, f"{low:.4g}")]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    shown = "{:.{}f}" if abs(last * step) < 1e6 and places <= 6 else "{:.{}g}"
    return [(k * step, shown.format(k * step + 0.0, places)) for k in range(first, last + 1)]


@dataclass
class Frame:
    """An SVG of so many units, which the page scales to its column. What is drawn later lies on top."""

    width: float
    height: float
    title: str  # read aloud in its place
    parts: list[str] = field(default_factory=list)

    @contextmanager
    def group(self, css: str) -> Iterator[None]:
        """Everything drawn inside has this class."""
        self.parts.append(f'<g class="{css}">')
        yield
        self.parts.append("</g>")

    def line(self, points: Sequence[Point], css: str = "") -> None:
        """A line through the points."""
        if len(points) > 1:
            self.parts.append(f'<path class="line {css}" d="{_through(points)}"/>')

    def area(self, upper: Sequence[Point], lower: Sequence[Point], css: str = "") -> None:
        """What lies between two lines."""
        if len(upper) > 1:
            self.parts.append(f'<path class="area {css}" d="{_through([*upper, *reversed(lower)])}Z"/>')

    def box(self, left: float, top: float, right: float, bottom: float, css: str, title: str = "") -> None:
        """A filled rectangle."""
        size = f'width="{n(max(right - left, 0.0))}" height="{n(max(bottom - top, 0.0))}"'
        self.parts.append(f'<rect class="{css}" x="{n(left)}" y="{n(top)}" {size}>{_hint(title)}</rect>')

    def dots(self, points: Iterable[Point], css: str) -> None:
        """Many round dots as one path of strokes without length: a thousand cost little."""
        path = "".join(f"M{n(x)} {n(y)}h0" for x, y in points)
        if path:
            self.parts.append(f'<path class="dots {css}" d="{path}"/>')

    def crosses(self, points: Iterable[Point], size: float = 3.0) -> None:
        """Many crosses: what failed."""
        path = "".join(
            f"M{n(x - size)} {n(y - size)}l{n(2 * size)} {n(2 * size)}m0 {n(-2 * size)}l{n(-2 * size)} {n(2 * size)}"
            for x, y in points
        )
        if path:
            self.parts.append(f'<path class="crosses" d="{path}"/>')

    def shape(self, outline: Sequence[Point], css: str, title: str = "") -> None:
        """A filled polygon."""
        self.parts.append(f'<path class="{css}" d="{_through(outline)}Z">{_hint(title)}</path>')

    def dot(self, x: float, y: float, radius: float, css: str, title: str = "") -> None:
        """One dot, with what it says on hovering."""
        self.parts.append(f'<circle class="{css}" cx="{n(x)}" cy="{n(y)}" r="{n(radius)}">{_hint(title)}</circle>')

    def text(self, x: float, y: float, said: str, css: str = "", anchor: str = "start") -> None:
        """A text that begins, ends or has its middle there."""
        where = f'x="{n(x)}" y="{n(y)}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{css}" {where}>{html.escape(said)}</text>')

    def y_axis(self, scale: Scale, left: float, right: float, count: int = 5) -> None:
        """Grid lines from left to right, their values before them."""
        for value, said in scale.ticks(count):
            y = scale(value)
            self.line([(left, y), (right, y)], "grid")
            self.text(left - 6, y + 4, said, "tick", "end")

    def html(self) -> str:
        """The element."""
        said = html.escape(self.title)
        size = f'viewBox="0 0 {n(self.width)} {n(self.height)}"'
        return f'<svg {size} role="img" aria-label="{said}">{"".join(self.parts)}</svg>'


def _through(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{n(x)} {n(y)}" for x, y in points)


def _hint(text: str) -> str:
    return f"<title>{html.escape(text)}</title>" if text else ""
