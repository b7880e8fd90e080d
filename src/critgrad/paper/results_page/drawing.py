"""A small SVG writer: the same bytes on every machine, and the same drawing on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from critgrad.lab.study.svg import n as _at

# By name, on a light and on a dark page. The hues are Okabe and Ito's, which colour-blindness keeps apart.
INKS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#0d1117"),
    "text": ("#24292f", "#e6edf3"),
    "quiet": ("#6e7781", "#9198a1"),
    "grid": ("#e3e6ea", "#2a313a"),
    "band": ("#f1f3f5", "#1b222b"),
    "base": ("#57606a", "#adb6c0"),
    "adding": ("#c8500a", "#f08a3c"),
    "damping": ("#0072b2", "#6cc0f0"),
    "on the rival": ("#00805c", "#46cba2"),
}
THEMES = ("light", "dark")
FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


@dataclass
class Drawing:
    """Marks in the order in which they are drawn; colours are names of ``INKS`` until it is written."""

    width: int
    height: int
    title: str  # what a reader who does not see it is told
    marks: list[str] = field(default_factory=list)

    def line(self, points: Iterable[tuple[float, float]], ink: str, width: float = 1, dash: str = "") -> None:
        """A polyline."""
        path = " ".join(f"{_at(x)},{_at(y)}" for x, y in points)
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self.marks.append(
            f"<polyline points='{path}' fill='none' stroke='{{{ink}}}' stroke-width='{width:g}'{dashed} "
            "stroke-linejoin='round' stroke-linecap='round'/>"
        )

    def box(self, left: float, top: float, width: float, height: float, ink: str) -> None:
        """A filled rectangle."""
        place = f"x='{_at(left)}' y='{_at(top)}' width='{_at(width)}' height='{_at(height)}'"
        self.marks.append(f"<rect {place} fill='{{{ink}}}'/>")

    def cloud(self, points: Iterable[tuple[float, float]], ink: str, size: float, opacity: float) -> None:
        """Many dots as one path, each place once."""
        places = sorted({(round(x), round(y)) for x, y in points})
        path = "".join(f"M{x} {y}h0" for x, y in places)
        look = f"stroke='{{{ink}}}' stroke-width='{size:g}' stroke-linecap='round' stroke-opacity='{opacity:g}'"
        self.marks.append(f"<path d='{path}' {look}/>")

    def dot(self, x: float, y: float, ink: str, size: float = 3, hollow: bool = False) -> None:
        """One dot; hollow for what decides nothing."""
        fill = "page" if hollow else ink
        place = f"cx='{_at(x)}' cy='{_at(y)}' r='{size:g}'"
        self.marks.append(f"<circle {place} fill='{{{fill}}}' stroke='{{{ink}}}' stroke-width='1.2'/>")

    def text(self, x: float, y: float, words: str, ink: str = "text", size: int = 15, anchor: str = "start") -> None:
        """A line of text; the anchor is SVG's."""
        place = f"x='{_at(x)}' y='{_at(y)}' font-size='{size}' text-anchor='{anchor}' fill='{{{ink}}}'"
        self.marks.append(f"<text {place}>{escape(words).replace('{', '(').replace('}', ')')}</text>")

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]]) -> None:
        """(ink, words) in a row."""
        for ink, words in entries:
            self.dot(x, y - 5, ink, 5)
            self.text(x + 10, y, words)
            x += 8 * len(words) + 36

    def svg(self, theme: str) -> str:
        """The file."""
        inks = {name: pair[THEMES.index(theme)] for name, pair in INKS.items()}
        size = f"viewBox='0 0 {self.width} {self.height}' width='{self.width}' height='{self.height}'"
        head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {FONT}>"
        back = f"<title>{escape(self.title)}</title><rect width='100%' height='100%' fill='{inks['page']}'/>"
        return "\n".join([head, back, *[mark.format_map(inks) for mark in self.marks], "</svg>"]) + "\n"
