"""The page: one HTML file that holds everything it needs; figures, tables and words are there without its script."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from critgrad._version import __version__

from ..run.results import plain
from .drawing import inline
from .figure import Figure
from .parts import Page, PageBlock, Section

WEB = Path(__file__).with_name("web")
LARGEST_BESIDE = 6  # columns of a table that fits beside a figure


def render(report: Page, title: str, ledger: str) -> str:
    """The text of the page."""
    sections = "\n".join(_section(section) for section in report.sections)
    links = "".join(f'<a href="#{s.id}">{html.escape(s.title)}</a>' for s in report.sections)
    facts = "".join(f"<li><b>{html.escape(v)}</b><span>{html.escape(k)}</span></li>" for k, v in report.facts)
    banners = "".join(f'<p class="banner">{html.escape(text)}</p>' for text in report.banners)
    parts = {
        "TITLE": html.escape(title),
        "STYLE": _web("style.css"),
        "FACTS": facts,
        "BANNERS": banners,
        "LINKS": links,
        "SECTIONS": sections,
        "FOOTER": html.escape(f"critgrad {__version__}, from {ledger}"),
        "DATA": embedded(data_of(report, title, ledger)),
        "SCRIPT": _web("report.js"),
    }
    # In one pass: what is put in is never searched for places itself.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], _web("page.html"))


def data_of(report: Page, title: str, ledger: str) -> dict[str, Any]:
    """The tables and the analyses as plain values: what is embedded, so that the page can be checked and re-read."""
    return {
        "format": 1,
        "critgrad": __version__,
        "title": title,
        "ledger": ledger,
        "facts": dict(report.facts),
        "warnings": report.banners,
        "tables": {table.id: list(table.records) for table in report.tables},
        "analyses": report.analyses,
    }


def embedded(value: Any) -> str:
    """JSON fit to stand inside a script element; what is not finite is null."""
    text = json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _section(section: Section) -> str:
    intro = f'<p class="soft">{html.escape(section.intro)}</p>' if section.intro else ""
    # Of many tasks the first few are open; the others wait folded.
    many = len(section.blocks) > 6
    blocks = "\n".join(_block(block, folded=many and index > 2) for index, block in enumerate(section.blocks))
    return f'<section id="{section.id}"><h2>{html.escape(section.title)}</h2>{intro}{blocks}</section>'


def _block(block: PageBlock, folded: bool) -> str:
    parts = [f'<p class="answer">{html.escape(text)}</p>' for text in block.words]
    parts += [f'<p class="soft">{html.escape(block.intro)}</p>'] if block.intro else []
    if block.terms:
        terms = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(what)}</dd>" for name, what in block.terms)
        parts.append(f'<dl class="terms">{terms}</dl>')
    parts += [f'<p class="warning">{html.escape(text)}</p>' for text in block.warnings]
    opened = [table for table in block.tables if not table.folded]
    closed = [table.html() for table in block.tables if table.folded]
    if block.figures:
        cards = [_figure(figure) for figure in block.figures]
        if len(cards) % 2 and opened and len(opened[0].heads) <= LARGEST_BESIDE:
            cards.append(f'<div class="beside">{opened.pop(0).html()}</div>')  # where a figure would stand
        parts.append(f'<div class="figures">{"".join(cards)}</div>')
    inner = "\n".join([*parts, *(table.html() for table in opened), *closed])
    if not block.title:
        return inner
    title = html.escape(block.title)
    if folded:
        return f"<details><summary>{title}</summary>{inner}</details>"
    return f"<h3>{title}</h3>{inner}"


def _figure(figure: Figure) -> str:
    drawn = inline(figure)
    caption = f"<figcaption>{html.escape(figure.caption)}</figcaption>" if figure.caption else ""
    buttons = "".join(
        f'<button type="button" data-entry="{number}" aria-pressed="{str(entry.shown).lower()}">'
        f"{entry.sample}{html.escape(entry.name)}</button>"
        for number, entry in enumerate(drawn.legend)
    )
    legend = f'<div class="legend">{buttons}</div>' if buttons else ""
    points = f'<script type="application/json">{embedded(drawn.points)}</script>'
    return (
        f'<figure id="figure-{figure.id}"><h5>{html.escape(figure.title)}</h5>'
        f'<div class="plot" role="img" aria-label="{html.escape(figure.title)}">{drawn.svg}{points}</div>'
        f"{legend}{caption}</figure>"
    )
