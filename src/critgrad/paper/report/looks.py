"""How the paper's controls are drawn: the base at another step, a memory with other decisions. Rivals and controls are grey."""

from __future__ import annotations

from critgrad.lab.report.palette import ARM_STYLES, GREY, RIVALS, Style

ARM_STYLES.update(
    {
        "rival": Style(GREY[0], "dashdot", 2.0, "triangle-down"),
        "F-rival": Style(GREY[0], "solid", 2.6, "star"),
        "F-tensor": Style(GREY[1], "solid", 2.6, "diamond"),
        "momentum": Style(GREY[0], "longdash", 2.0, "triangle-right"),
        "AggMo": RIVALS["AggMo"],
        "C-FIFO": Style(GREY[1], "dash", 1.8, "cross"),
        "F-FIFO": Style(GREY[1], "longdashdot", 1.8, "cross"),
        "F-random": Style(GREY[2], "longdashdot", 1.8, "x"),
        "C-step": Style(GREY[1], "dot", 2.0, "star"),
        "F-step": Style(GREY[0], "dot", 2.0, "star"),
        "C-momentum": Style(GREY[2], "longdash", 1.8, "hexagon"),
        "C-yoked": Style(GREY[2], "dash", 1.8, "pentagon"),
        "F-yoked": Style(GREY[2], "dashdot", 1.8, "pentagon"),
        "C-longer": Style(GREY[2], "dot", 1.8, "bowtie"),
        "F-longer": Style(GREY[2], "dot", 1.8, "hourglass"),
        "F-rival-longer": Style(GREY[1], "dot", 1.8, "hourglass"),
    }
)
