"""Ledgers into one another, whole or in the form in which runs are published."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import LabError
from ..run.results import Result, loss_at_best, loss_is_known
from ..run.spec import SCHEMA, STUDY_SCHEMA
from .lock import WriterLock
from .packed import is_packed, pack, unpacked
from .records import LedgerError, Role, Row
from .schema import connect_writer, explained
from .store import Ledger

# What a second run of the same trial may give differently: measurements of the machine, not of the optimizer.
MEASURED = frozenset({"seconds", "train_seconds", "step_ms", "step_ms_low", "step_ms_high", "peak_bytes", "run_bytes"})


# Curves from which plans and verdicts are computed: the update size that a control must match, the epoch at which a target
# is reached, and the time that a base may train for longer. Each stays exact in the runs of which it is asked.
MATCHED, TARGETED, TIMED = "update_rms", "valid", "seconds"
DROPPED_BITS = 8  # of float32's 23: the relative error stays below 2^-16, and one byte in four is zero


@dataclass
class Merged:
    """What a merge has done. ``conflicts``: keys whose runs differ between ledgers; the first one met was kept."""

    added: int = 0
    known: int = 0
    failed: int = 0
    unreadable: int = 0
    conflicts: list[str] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)  # names of documents that differ; the first one was kept

    @property
    def text(self) -> str:
        """In words."""
        text = f"{self.added} runs added, {self.known} known already, {self.failed} failed ones"
        if self.unreadable:
            text += f", {self.unreadable} could not be read"
        if self.conflicts:
            text += (
                f"; {len(self.conflicts)} runs differ from those of the same key, and the first was kept: "
                + ", ".join(self.conflicts[:5])
            )
        if self.documents:
            text += f"; documents that differ, the first was kept: {', '.join(self.documents)}"
        return text + "."


def same_numbers(a: Row | Result, b: Row | Result) -> bool:
    """Whether two runs gave the same, bit for bit, all but times and bytes."""
    curves = [{name: value for name, value in run.curves.items() if name not in MEASURED} for run in (a, b)]
    summaries = [{name: value for name, value in run.summary.items() if name not in MEASURED} for run in (a, b)]
    return (
        curves[0].keys() == curves[1].keys()
        and all(np.array_equal(value, curves[1][name], equal_nan=True) for name, value in curves[0].items())
        and summaries[0] == summaries[1]
    )


def merge(
    target: str | Path,
    sources: Sequence[str | Path],
    *,
    salvage: bool = False,
    compact: bool = False,
    curves: bool = True,
    tasks: Sequence[str] | None = None,
    afterwards: Callable[[Ledger], None] | None = None,
) -> Merged:
    """Put the runs of ``sources`` into ``target``, which is made if it is not there: the union, by key.

    A run that failed here and is done there becomes done. ``salvage`` takes from a damaged file what can still be read.
    ``compact`` writes the form in which runs are published, about two thirds as large: see ``published``; without ``curves``
    nothing but the summaries is left (for runs that are withdrawn, and listed all the same). ``tasks`` takes the runs of
    these tasks alone. Runs that the target has already stay as they are. A target that ends in ``.xz`` is packed.
    ``afterwards`` may look at the target before it is closed.
    """
    if not curves and not compact:
        raise LabError("Invalid curves=False without compact=True: runs lose their curves only to be published")
    merged = Merged()
    for source in sources:
        if Path(source).resolve() == Path(target).resolve():
            raise LedgerError(f"Cannot merge {source} into itself: name another target")
    with _written(Path(target)) as file:
        with Ledger.open(file, write=True, create=True) as into:
            for source in sources:
                with Ledger.open(source) as ledger, into.transaction():
                    for row in _salvaged(ledger, merged) if salvage else _all_rows(ledger):
                        if tasks is None or row.trial.task in tasks:
                            _merge_row(into, row, merged, compact, curves)
                    with suppress(LedgerError) if salvage else nullcontext():
                        _merge_rest(into, ledger, merged)
            if afterwards is not None:
                afterwards(into)
        if compact or is_packed(target):
            _vacuum(file)
    return merged


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """The file to write to: the target itself, or what becomes a packed one after all went well."""
    if not is_packed(target):
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="critgrad-") as folder:
        file = Path(folder) / target.stem
        if target.exists():
            with unpacked(target) as there:
                shutil.copyfile(there, file)
        yield file
        pack(file, target)


def _merge_row(into: Ledger, row: Row, merged: Merged, compact: bool, curves: bool) -> None:
    if row.status == "failed":
        merged.failed += into.fail(row.trial, row.error or "", row.roles, finished=row.finished)
        return
    result = Result(row.curves, row.summary, row.provenance)
    if compact:
        small = published(result, row.roles)
        result = small if curves else Result({}, small.summary, small.provenance)
    if into.add(row.trial, result, row.roles, finished=row.finished):
        merged.added += 1
        return
    merged.known += 1
    known = into.row(row.key)
    if known is not None and not _same_run(known, row):
        merged.conflicts.append(row.key)


def _all_rows(ledger: Ledger) -> Iterator[Row]:
    for schema in (SCHEMA, STUDY_SCHEMA):
        yield from ledger.rows(status=None, schema=schema)


def _same_run(known: Row, row: Row) -> bool:
    """Whether both are one run, each in its full or in its published form."""
    if same_numbers(known, row):
        return True
    both = bool(known.curves) and bool(row.curves)
    return same_numbers(_coarse(known, both), _coarse(row, both))


def _coarse(row: Row, with_curves: bool) -> Result:
    if not with_curves:  # nor what a published run may have got from its curves, when these had been rounded already
        return Result({}, {name: value for name, value in row.summary.items() if name != "valid_loss"})
    # The roles decide what is rounded, and a run may have got more of them since: none keeps the fewest bits.
    curves = {name: rounded(values) if values.dtype.kind == "f" else values for name, values in row.curves.items()}
    return Result(curves, row.summary)


# -- the published form ------------------------------------------------------------------------------------------------


def published(result: Result, roles: Sequence[Role] = ()) -> Result:
    """A run as it is published. The summary and whole numbers stay as they are, bit for bit; so do the curves that plans and
    verdicts are computed from, and every choice comes out of the published file as it did out of the full one.

    Other curves become float32 of about five significant digits, rounded to the nearest. A run that did nothing but tune
    keeps none: its summary has the value that it was chosen by, and gets the loss by which ties are broken. The command
    keeps its arguments and loses the folders of the machine that ran it.
    """
    origin = dict(result.provenance)
    if "command" in origin:
        origin["command"] = _plain_command(origin["command"])
    if roles and all(role.purpose == "tune" for role in roles):
        if not loss_is_known(result.summary, result.curves):  # None would say that there was none
            return Result({}, result.summary, origin)
        loss = loss_at_best(result.summary, result.curves)
        return Result({}, {**result.summary, "valid_loss": loss if math.isfinite(loss) else None}, origin)
    exact = {MATCHED, TARGETED}
    if any(role.purpose.startswith("analysis:") for role in roles):
        exact.add(TIMED)
    valid = result.curves.get(TARGETED)
    curves = {}
    for name, values in result.curves.items():
        # Where the outcome is the validation value itself (the convex tasks), a copy packs to nothing.
        copy = valid is not None and np.array_equal(values, valid, equal_nan=True)
        curves[name] = values if name in exact or copy or values.dtype.kind != "f" else rounded(values)
    return Result(curves, result.summary, origin)


def rounded(values: np.ndarray) -> np.ndarray:
    """As float32 with the low bits of the mantissa rounded away, to the nearest and to even; doing it twice changes nothing.

    >>> rounded(np.array([0.123456789, 1000.0, np.inf])).tolist()
    [0.12345695495605469, 1000.0, inf]
    """
    with np.errstate(over="ignore"):  # beyond float32's range is infinite
        single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32).astype(np.uint64)  # room for the carry
    half = (1 << (DROPPED_BITS - 1)) - 1
    up = bits + half + ((bits >> DROPPED_BITS) & 1)
    kept = (up & ~np.uint64((1 << DROPPED_BITS) - 1)).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(single), kept, single)


def _plain_command(command: Sequence[str]) -> list[str]:
    """Arguments as they were, but files without their folders; ``python -m`` for a module that ran as a program."""
    plain = []
    for index, text in enumerate(map(str, command)):
        is_file = text.startswith("/") or (index > 0 and command[index - 1] == "--ledger")
        plain.append(Path(text).name if is_file else text)
    if command and str(command[0]).endswith("critgrad/lab/__main__.py"):
        plain[:1] = ["python", "-m", "critgrad.lab"]
    return plain


def _vacuum(path: Path) -> None:
    """Give back unused pages, and leave one file without a log beside it; the next writer brings the log back."""
    lock = WriterLock(path)
    try:
        with explained(path), closing(connect_writer(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("VACUUM")
    finally:
        lock.release()


def _merge_rest(into: Ledger, ledger: Ledger, merged: Merged) -> None:
    known = {(analysis.name, analysis.task, analysis.arm) for analysis in into.analyses()}
    for analysis in ledger.analyses():
        if (analysis.name, analysis.task, analysis.arm) not in known:
            into.put_analysis(analysis.name, analysis.task, analysis.arm, analysis.data, analysis.arrays, analysis.keys)
    for name in ledger.documents():
        text = ledger.document(name)
        if into.document(name) is None and text is not None:
            into.put_document(name, text)
        elif into.document(name) != text:
            merged.documents.append(name)


def _salvaged(ledger: Ledger, merged: Merged) -> Iterator[Row]:
    """The rows that can be read, one question each: a damaged page then costs its own rows only."""
    for number in ledger.salvage_numbers():
        try:
            row = ledger.row_by_number(number)
            if row is not None:
                _ = row.curves  # a damaged blob shows when it is unpacked
                yield row
        except GeneratorExit:
            raise
        except Exception:
            merged.unreadable += 1
