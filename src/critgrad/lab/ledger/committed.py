"""Whether an announcement was committed before the runs that carry its hash, and by which commit.

Asked of git where there is a checkout; written into the ledger as a document, so that a ledger speaks for itself.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .store import Ledger

_GIT_SECONDS = 20


@dataclass(frozen=True)
class Standing:
    """Where a registration stands: the commit that brought it, or the reason why there is none."""

    commit: str | None
    reason: str = ""
    checkout: bool = True  # git could be asked

    @property
    def registered(self) -> bool:
        """Whether claims may rest on its rows."""
        return self.commit is not None

    @property
    def text(self) -> str:
        """What tables write above the numbers."""
        return f"registered in commit {self.commit[:12]}" if self.commit else f"not registered: {self.reason}"


class Announcement(Protocol):
    """What was written down before its runs: the file, its content, and the hash that its trials carry."""

    @property
    def path(self) -> Path | None: ...
    @property
    def hash(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


def require_committed(path: Path | str | None) -> Standing:
    """Whether a file is committed and unchanged since; never raises.

    The commit is the first one that has a file of this content, wherever it lay then: a file that is moved stays announced.
    """
    if path is None:
        return Standing(None, "values were changed on the command line")
    path = Path(path).resolve()
    if not path.exists():
        return Standing(None, f"there is no file {path.name}")
    tracked = _git(path, "ls-files", "--error-unmatch", "--", path.name)
    if tracked is None:
        inside = _git(path, "rev-parse", "--is-inside-work-tree")
        if not inside:
            return Standing(None, "the file does not lie in a git checkout", checkout=False)
        return Standing(None, f"{path.name} is not committed")
    if _git(path, "status", "--porcelain", "--", path.name):
        return Standing(None, f"{path.name} was changed since its last commit")
    content = _git(path, "hash-object", "--", path.name)
    commits = _git(path, "log", "--reverse", "--format=%H", f"--find-object={content}") if content else None
    return Standing(commits.split()[0]) if commits else Standing(None, f"{path.name} is not committed")


def record(ledger: Ledger, registration: Announcement) -> Standing:
    """Write a registration and its commit into the ledger, and say where it stands there.

    Asked anew for each sweep and merge. Rows that ended before the commit was made stay unregistered for ever: a plan
    that is written down after its runs is not a plan. A machine without the repository (a GPU box with the bare sources)
    knows no commit; the next sweep or merge in a checkout names it, by the rows' own times.
    """
    known = standing(ledger, registration)
    if known.registered:
        return known
    now = require_committed(registration.path)
    if now.commit is not None and registration.path is not None:
        made = float(_git(Path(registration.path).resolve(), "show", "-s", "--format=%ct", now.commit) or "inf")
        older = sum(row.finished < made for row in ledger.rows(registration=registration.hash))
        if older:
            now = Standing(None, f"{older} runs are older than its commit")
    document = json.dumps({**asdict(now), "registration": registration.to_dict()}, sort_keys=True)
    ledger.put_document(document_name(registration.hash), document)
    return now


def standing(ledger: Any, registration: Announcement) -> Standing:
    """What the ledger knows of a registration."""
    text = ledger.document(document_name(registration.hash))
    if text is None:
        return Standing(None, "the ledger does not know its commit")
    values = json.loads(text)
    return Standing(values["commit"], values["reason"], values["checkout"])


def document_name(registration_hash: str) -> str:
    """The name under which the ledger keeps a registration."""
    return f"registration:{registration_hash}"


def _git(path: Path, *arguments: str) -> str | None:
    """Git's answer in the file's folder; ``None`` where there is no git, no checkout, or it says no."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=path.parent, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
