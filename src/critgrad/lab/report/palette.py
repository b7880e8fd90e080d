"""One look for each optimizer, in every figure of every page.

A family has one hue of the Okabe-Ito palette, which the common kinds of colour-blindness keep apart; within a family
lightness, dash and width tell the base, ``_C`` (adds its memory) and ``_F`` (damps with it) apart, and each family has
a marker of its own, so nothing rests on hue alone. Rivals and controls are grey and dashed. Each colour has a twin for a
dark page, where strong means light.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..train.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Ink:
    """A colour on a light and on a dark page."""

    light: str
    dark: str


@dataclass(frozen=True)
class Style:
    """How a series is drawn. ``dash`` and ``marker`` are names of drawing.py's tables."""

    ink: Ink
    dash: str = "solid"
    width: float = 2.0
    marker: str = "circle"


# Hue of a family: base, _C, _F. Strength grows in this order on either page.
_HUES: dict[str, tuple[Ink, Ink, Ink]] = {
    "SGD": (Ink("#eba063", "#b5652a"), Ink("#d55e00", "#f08a3c"), Ink("#8a3200", "#ffc08a")),
    "SGDM": (Ink("#d99bbd", "#9c5680"), Ink("#b8508a", "#dd8fba"), Ink("#781556", "#f7b6d8")),
    "RMSprop": (Ink("#5fbf9f", "#2a8a6c"), Ink("#008a63", "#46cba2"), Ink("#00573d", "#9aeccd")),
    "Adam": (Ink("#56b4e9", "#3587b8"), Ink("#0f78b8", "#6cc0f0"), Ink("#003f6b", "#a9dbfb")),
    "AdamW": (Ink("#b8a800", "#938a1e"), Ink("#857900", "#e6da3a"), Ink("#504800", "#f7ef8a")),
}
_ROLES = {"base": (0, "solid", 2.0), "C": (1, "dash", 2.2), "F": (2, "solid", 3.0)}
_SHAPES = {"SGD": "circle", "SGDM": "square", "RMSprop": "diamond", "Adam": "triangle-up", "AdamW": "cross"}

GREY = (Ink("#4d4d4d", "#c9c9c9"), Ink("#777777", "#9d9d9d"), Ink("#9a9a9a", "#777777"))
RIVALS: dict[str, Style] = {
    "NAdam": Style(GREY[0], "dashdot", 2.0, "triangle-down"),
    "Nesterov": Style(GREY[0], "dashdot", 2.0, "triangle-down"),
    "AggMo": Style(GREY[1], "longdash", 2.0, "pentagon"),
}
# Arms that are not an optimizer of the registry, by name: filled by the study that has them.
ARM_STYLES: dict[str, Style] = {}
OWN_ARMS = ("", "base", "C", "F")

WIN = Ink("#00664a", "#46cba2")
LOSS = Ink("#b04a00", "#f08a3c")
TEXT, AXIS, GRID = Ink("#1c212b", "#e6e9ef"), Ink("#566072", "#a4adbd"), Ink("#e3e7ee", "#323a48")  # the page's own
PLAIN = Ink("#3b4252", "#c8ced8")
PAPER = Style(GREY[1], "dash", 2.0, "square")
EFFECTS = (Ink("#0072b2", "#6cc0f0"), Ink("#d55e00", "#f08a3c"))  # better, worse: blue and vermillion


def style_of(optimizer: str, arm: str = "") -> Style:
    """The look of an optimizer, or of the arm that it stands for where that is a control.

    >>> style_of("Adam_F").dash, style_of("Adam", "an arm that nobody has described").dash
    ('solid', 'dot')
    """
    if arm not in OWN_ARMS and optimizer not in RIVALS:
        return ARM_STYLES.get(arm, Style(GREY[1], "dot"))
    if optimizer in RIVALS:
        return RIVALS[optimizer]
    recipe = OPTIMIZERS.get(optimizer)
    if recipe is None or recipe.family not in _HUES:
        return Style(GREY[1], "dot")
    if recipe.name.removesuffix("_C").removesuffix("_F") in RIVALS:
        grey = GREY[1] if recipe.role == "C" else GREY[0]
        return Style(grey, "dash" if recipe.role == "C" else "solid", 2.2, "star")
    shade, dash, width = _ROLES[recipe.role]
    return Style(_HUES[recipe.family][shade], dash, width, _SHAPES[recipe.family])


# Steps from few to many (topC, decay): viridis, its pale end left out on white and its dark end on black.
_STEPS_LIGHT = ("#440154", "#472f7d", "#3a568c", "#287d8e", "#1f9e89", "#5bb450", "#98a92a")
_STEPS_DARK = ("#8d7bd6", "#6f95e0", "#4fb0d8", "#3fc4b0", "#62d27d", "#a6db46", "#fde725")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "x")


def step_style(index: int, count: int) -> Style:
    """The look of the ``index``-th of ``count`` ordered values."""
    place = round(index * (len(_STEPS_LIGHT) - 1) / max(1, count - 1)) if count > 1 else 2
    turn = index % len(_DASHES)
    return Style(Ink(_STEPS_LIGHT[place], _STEPS_DARK[place]), _DASHES[turn], 2.2, _MARKERS[turn])
