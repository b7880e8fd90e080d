"""Moving files must not move results: keys, announcements and commits of every published run are what they were."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.committed import require_committed
from critgrad.lab.run.spec import Trial
from critgrad.paper.protocol import find, registered
from critgrad.paper.search import file as search_file

ROOT = Path(__file__).parents[2]

# Runs of each published ledger, and a hash of their sorted keys.
PUBLISHED: dict[str, tuple[int, str]] = {
    "analyses.db.xz": (1538, "8d93903d2f0ae81b"),
    "cifar10.db.xz": (1556, "29f5b80ed4fe6240"),
    "cifar100.db.xz": (207, "645b06d2a5fad9e8"),
    "convex-tasks.db.xz": (7368, "a2f7eaeca031d68f"),
    "every-task.db.xz": (17, "954770494d362693"),
    "language.db.xz": (1560, "ffd1e75788b75f4d"),
    "mnist-grid.db.xz": (8000, "5324ea89b3386839"),
    "rare-tasks.db.xz": (9060, "16f830d21010ac64"),
    "search.db.xz": (12507, "2f1a2f11860bacf1"),
    "small-tasks.db.xz": (10374, "53ee54788f42a9d8"),
    "withdrawn.db.xz": (9683, "bcbb794f7e40ecab"),
}
# A hash of the names and hashes of all announcements.
ANNOUNCED = "4585d0c4d6059aab"


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def announcements() -> dict[str, object]:
    found: dict[str, object] = {name: find(name) for name in registered()}
    for name in search_file.searches():
        found |= {f"{name} on {task}": search_file.find(name, task) for task in search_file.tasks_of(name)}
    return found


def test_every_ledger_is_known() -> None:
    assert sorted(path.name for path in (ROOT / "results").glob("*.db.xz")) == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_keys_of_all_published_runs_come_out_of_their_specifications(name: str) -> None:
    with Ledger.open(ROOT / "results" / name) as book:
        stored = book.keys()
        rows = book.rows(status=None)
    assert [row.key for row in rows] == stored
    # Made anew from plain values: what is stored plays no part.
    made = [Trial.from_dict(json.loads(json.dumps(row.trial.to_dict()))).key for row in rows]
    assert made == stored
    assert (len(made), digest(made)) == PUBLISHED[name]


def test_announcements_have_the_hashes_that_their_runs_carry() -> None:
    assert digest([f"{name} {found.hash}" for name, found in announcements().items()]) == ANNOUNCED


def test_announcements_are_found_in_git_by_their_content() -> None:
    recorded: dict[str, str] = {}
    for name in PUBLISHED:
        with Ledger.open(ROOT / "results" / name) as book:
            for document in book.documents():
                values = json.loads(book.document(document) or "")
                if values["commit"]:
                    recorded[document.partition(":")[2]] = values["commit"]
    published = {name: found for name, found in announcements().items() if found.hash in recorded}
    now = {name: require_committed(found.path) for name, found in published.items()}
    if not all(standing.checkout for standing in now.values()):
        pytest.skip("no git to ask")
    others = [name for name, found in published.items() if now[name].commit != recorded[found.hash]]
    assert others == ["on-nadam on mnist-mlp"]  # announced in one commit; another task came into its file later
    assert len(now) > 30
