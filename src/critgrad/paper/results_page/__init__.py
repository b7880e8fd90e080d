"""The pages and figures of results: what was run, what came out and what that says about each claim, from ledgers alone.

>>> from critgrad.paper.results_page import write_results
>>> write_results([Path("results/small-tasks.db.xz")], Path("docs"))  # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .claims import claims_page
from .drawing import THEMES
from .figures import FIGURES
from .findings import Findings, gather, place
from .goal import goal_page
from .judged import arms_page, comparisons_page, made_of_page
from .nine_tasks import gains_page
from .runs import runs_page
from .searches import search_pages
from .studies import PAGES
from .summary import NOTE, summary_page
from .tasks import task_pages
from .text import labels, prose
from .twice import luck_page

__all__ = ["pages_of", "render_results", "write_results"]


def pages_of(findings: Findings) -> dict[str, str]:
    """Every page by its path below docs/, the one that opens them first."""
    about = {
        "claims": claims_page(findings),
        "adding": comparisons_page("Adding the memory", ["adding"], findings),
        "damping": comparisons_page("Damping with the memory", ["damping", "on the rival"], findings),
        "gains": gains_page(findings),
        "luck": luck_page(findings),
        "goal": goal_page(findings),
        "arms": arms_page(findings),
        "made-of": made_of_page(findings),
        "runs": runs_page(findings),
    }
    tasks = task_pages(findings)
    groups = {
        "What came out": {name: text for name, text in about.items() if text},
        "Tasks": {name: tasks[name] for name in sorted(tasks, key=place)},
        "Analyses": {name: text for name, page_of in PAGES.items() if (text := page_of(findings))},
        "Searches": search_pages(findings),
    }
    index = "# All pages of results\n\n[The summary](../results.md) says what came out.\n"
    short = "## All pages\n\n"
    for title, group in groups.items():
        if group:
            index += f"\n## {title}\n\n" + "".join(f"- [{_title(text)}]({name}.md)\n" for name, text in group.items())
            links = [f"{_anchors(name, text)}[{name}](results/{name}.md)" for name, text in group.items()]
            if title == "Searches":
                places = [re.sub(r"Search (\S+) on (\S+)", r"\2-\1", _title(text)) for text in group.values()]
                links = [
                    f"{_at('search-among-variants-of-damping', *places)}[{len(group)} pages](results/README.md#searches)"
                ]
            short += f"{title}: {', '.join(links)}.\n\n"
    index += f"\n## Words\n\n{prose('words')}\n\n{prose('glossary')}\n"
    out = {"results.md": summary_page(findings, short), "results/README.md": index}
    out |= {f"results/{name}.md": text for group in groups.values() for name, text in group.items()}
    return {path: _tidy(path, text) for path, text in out.items()}


def _anchors(name: str, text: str) -> str:
    """Places of the one long page that results once were: links to them lead on. Some are said, others are the titles."""
    known = labels("places")
    return _at(*known[name].split() if name in known else re.findall(r"^##? (.+)$", text, re.MULTILINE))


def _at(*titles: str) -> str:
    """Places that a heading, or its anchor, leads to."""
    slugs = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).lower()) for title in titles]
    return "".join(f'<a id="{slug}"></a>' for slug in dict.fromkeys(slugs))


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _tidy(path: str, text: str) -> str:
    title, _, rest = text.partition("\n")
    noted = text if NOTE in text else f"{title}\n\n{NOTE}\n{rest}"
    return re.sub(r"\n{3,}", "\n\n", noted).rstrip() + "\n"


def render_results(ledgers: Sequence[Path]) -> dict[str, str]:
    """Pages and figures by path. The same ledgers give the same bytes, in whichever order and on whichever day."""
    findings = gather(ledgers)
    out = pages_of(findings)
    for name, draw in FIGURES.items():
        made = draw(findings)
        out |= {f"results/figures/{name}-{theme}.svg": made.svg(theme) for theme in THEMES}
    return out


def write_results(ledgers: Sequence[Path], docs: Path) -> list[Path]:
    """Write the pages and figures of some ledgers, which are only read; what an earlier version left there goes."""
    made = {docs / path: text for path, text in render_results(ledgers).items()}
    for old in (docs / "results").rglob("*.*"):
        if old not in made:
            old.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(made)
