"""Arms side by side on one task, whichever track they come from: what curves, bars and cost tables are drawn from."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from critgrad.lab.ledger import Row
from critgrad.lab.ledger.source import alike, metric_of, setting_groups
from critgrad.lab.ledger.view import View
from critgrad.lab.report.costs import ArmCost, cost_of
from critgrad.lab.report.panels import Panel, PanelArm
from critgrad.lab.stats import mean_interval
from critgrad.lab.train.optimizers import recipe_of

from .. import compare
from ..protocol import ARMS, ArmResult, Outcome, paper_best, paper_grid
from ..protocol.announced import AnnouncedSource
from ..protocol.defaults import Default, Defaults, load_defaults
from ..protocol.tracks import Found, PaperTrack

MAIN = ("base", "C", "F", "rival")  # drawn at first; the other arms wait in the legend
LARGEST_PANEL = 24  # arms of one panel of runs outside the tracks


# -- compare -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """The verdict table of ``critgrad compare``, rebuilt from the ledger's rows."""

    defaults: Defaults
    lines: tuple[PanelArm, ...]
    seeds: Mapping[str, int]  # by family
    left_out: tuple[str, ...]  # arms without a run on every seed


def compared(source: AnnouncedSource) -> list[Compared]:
    """Every comparison in the ledger. Nothing but its rows is needed: files of defaults may have changed since."""
    out = []
    for task in source.tasks:
        for settings, rows in alike(source.rows(task=task, track=compare.TRACK)):
            arms = _arms_of(rows)
            defaults = _defaults(task, settings, arms)
            lines: list[PanelArm] = []
            seeds: dict[str, int] = {}
            left_out: list[str] = []
            for family in dict.fromkeys(arm.family for arm in defaults.arms):
                mine = [arm for arm in defaults.arms if arm.family == family]
                counts = {arm.label: _consecutive(arms[family, arm.arm]) for arm in mine}
                left_out += [label for label, count in counts.items() if not count]
                seeds[family] = min((count for count in counts.values() if count), default=0)
                if seeds[family]:
                    lines += compare.lines(defaults, [family], seeds[family], rows)
            if lines:
                out.append(Compared(defaults, tuple(lines), seeds, tuple(left_out)))
    return out


def _arms_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each arm; where its hyper-parameters have changed between commands, those of the last one."""
    arms: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for role in row.roles:
            if role.track == compare.TRACK:
                arms.setdefault((role.family, role.arm), []).append(row)
    out = {}
    for name, members in arms.items():
        last = max(members, key=lambda row: row.finished).trial
        out[name] = [r for r in members if (r.trial.optimizer, r.trial.hyper) == (last.optimizer, last.hyper)]
    return out


def _defaults(task: str, settings: Mapping[str, Any], arms: Mapping[tuple[str, str], Sequence[Row]]) -> Defaults:
    try:
        known = load_defaults(task)
    except (FileNotFoundError, ValueError):
        known = Defaults(task, "", "", None, 0, (), {}, "single", ())
    found = []
    for (family, arm), rows in arms.items():
        trial = rows[0].trial
        chosen = known.arm(family, arm)
        same = chosen is not None and (chosen.optimizer, chosen.hyper) == (trial.optimizer, dict(trial.hyper))
        label = ARMS[arm].label_in(family) if arm in ARMS else f"{family} {arm}"
        trials, edges = (chosen.trials, chosen.edges) if chosen is not None and same else (0, {})
        found.append(Default(family, arm, label, trial.optimizer, dict(trial.hyper), trials, edges))
    order = {name: index for index, name in enumerate(compare.ARMS)}
    found.sort(key=lambda arm: (list(dict.fromkeys(f for f, _ in arms)).index(arm.family), order.get(arm.arm, 99)))
    plain = {name: value for name, value in settings.items() if name != "engine"}
    return replace(known, task=task, settings=plain, arms=tuple(found))


def _consecutive(rows: Sequence[Row]) -> int:
    """Seeds from the first on without a gap."""
    seeds = {row.trial.seed for row in rows}
    return next(n for n in itertools.count() if compare.FIRST_SEED + n not in seeds)


def compare_panel(found: Compared) -> Panel:
    """Its arms as a panel."""
    measured = metric_of([row for line in found.lines for row in line.rows], found.defaults.task)
    task, seeds = found.defaults.task, max(found.seeds.values())
    return Panel("compare", task, f"{task}, compare", *measured, found.lines, (), seeds, found.defaults.settings)


# -- the fair track ----------------------------------------------------------------------------------------------------


def fair_panel(source: AnnouncedSource, outcome: Outcome) -> Panel | None:
    """An outcome's arms as a panel, if it has any yet."""
    rows = {row.key: row for row in source.rows(registration=outcome.registration.hash)}
    bases = {arm.family: arm for arm in outcome.arms if arm.arm == "base"}
    there = [row for row in outcome.descriptive if row.family in bases]
    against = {(row.family, row.arm): row for row in there if row.rival == bases[row.family].label}
    arms = tuple(
        PanelArm(
            *(arm.family, arm.arm, arm.label, arm.optimizer, arm.hyper, tuple(rows[key] for key in arm.keys), arm.test),
            diverged=arm.diverged,
            comparison=against.get((arm.family, arm.label)) if arm.arm != "base" else None,
            speedup=arm.speedup.get("epochs"),
            reach=arm.reach.get("epochs"),
            cost=_cost(arm, bases.get(arm.family)),
            best_after=arm.best_after,
            shown=arm.arm in MAIN,
        )
        for arm in outcome.arms
    )
    if not arms:
        return None
    measured = metric_of(rows.values(), outcome.task)
    seeds, rungs = len(outcome.registration.report_seeds), bool(outcome.registration.rungs_text)
    title = f"{outcome.name}, fair"
    return Panel("fair", outcome.task, title, *measured, arms, outcome.warnings, seeds, rungs=rungs)


def _cost(arm: ArmResult, base: ArmResult | None) -> ArmCost | None:
    if (cost := arm.cost) is None:
        return None
    ratio = cost.step_ms / base.cost.step_ms if base and base.cost and base.cost.step_ms else None
    return ArmCost(cost.step_ms, (cost.step_ms_low, cost.step_ms_high), ratio, cost.epoch_seconds, cost.peak_bytes)


# -- the paper's tracks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperRun:
    """A paper track of one task, as far as it has been run."""

    track: PaperTrack
    found: tuple[Found, ...]
    panel: Panel


def paper_runs(source: AnnouncedSource) -> list[PaperRun]:
    """Both tracks of the paper, on every task that has them, with the seeds and settings that were run."""
    out = []
    for name, make in (("paper-best", paper_best), ("paper-grid", paper_grid)):
        for task in source.tasks:
            for settings, rows in alike(source.rows(task=task, track=name)):
                engine = settings.pop("engine", "single")
                track = make(task, _usual_seeds(rows), engine, settings)
                measured = metric_of(rows, task)
                found = tuple(track.best(source, measured[2]))
                if found:
                    out.append(PaperRun(track, found, _paper_panel(source, track, found, measured)))
    return out


def _usual_seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    """Seeds that most settings have been run with: an unfinished sweep's last seed does not hide the others."""
    counts = Counter(row.trial.seed for row in rows)
    return tuple(sorted(seed for seed, count in counts.items() if 2 * count > max(counts.values())))


def _paper_panel(
    source: AnnouncedSource, track: PaperTrack, found: Sequence[Found], measured: tuple[str, str, bool]
) -> Panel:
    higher = measured[2]
    view = View(source.rows(task=track.task), higher)
    families: dict[str, dict[str, tuple[Default, Sequence[Row]]]] = {}
    for entry in found:
        setting = next(s for s in track.settings if (s.optimizer, s.hyper) == (entry.optimizer, entry.hyper))
        rows = [row for t in track.trials(setting) if isinstance(row := view.get(t), Row)]
        recipe = recipe_of(entry.optimizer)
        arm = Default(recipe.family, recipe.role, entry.optimizer, entry.optimizer, dict(entry.hyper), 0, {})
        families.setdefault(arm.family, {})[arm.arm] = arm, rows
    made: dict[str, PanelArm] = {}
    for of in families.values():
        epochs = max(int(row.summary.get("epochs") or 1) for _, rows in of.values() for row in rows)
        made |= {arm.label: arm for arm in compare.against_base(track.task, of, epochs, higher, view.values)}
    arms, title = tuple(made[entry.optimizer] for entry in found), f"{track.task}, {track.name}"
    settings = track.task_settings
    return Panel(track.name, track.task, title, *measured, arms, (track.label,), len(track.seeds), settings)


# -- everything else ---------------------------------------------------------------------------------------------------


def other_panels(source: AnnouncedSource) -> tuple[list[Panel], dict[str, int]]:
    """Runs that belong to no track or analysis (``critgrad train``): the best setting of each optimizer on each task.

    The second value counts the settings that were tried, by panel title.
    """
    panels: list[Panel] = []
    tried: dict[str, int] = {}
    for task in source.tasks:
        alone = [row for row in source.rows(task=task) if row.trial.registration is None]
        rows = [row for row in alone if all(role.track == "train" for role in row.roles)]
        for settings, members in alike(rows):
            measured = metric_of(members, task)
            view, groups = View(members, measured[2]), setting_groups(members)
            best: dict[str, list[list[Row]]] = {group[0].trial.optimizer: [] for group in groups}
            for group in sorted(groups, key=lambda group: _mean_valid(group, view), reverse=measured[2]):
                best[group[0].trial.optimizer].append(group)
            # Few settings: all of them; many: the best of each optimizer.
            keep = len(groups) if len(groups) <= 6 else 1
            kept = [(optimizer, of[:keep]) for optimizer, of in best.items()]
            arms = [_other_arm(name, group, view, alone=len(of) == 1) for name, of in kept for group in of]
            extra = ", ".join(f"{name}={value}" for name, value in settings.items())
            title = f"{task}{f' ({extra})' if extra else ''}"
            tried[title] = len(groups)
            note = ("Drawn: the best of each optimizer on validation",) if keep < len(groups) else ()
            panels.append(Panel("runs", task, title, *measured, tuple(arms[:LARGEST_PANEL]), note, 0, settings))
    return panels, tried


def _mean_valid(group: Sequence[Row], view: View) -> float:
    return float(np.mean(view.values(group, "valid")))


def _other_arm(optimizer: str, group: Sequence[Row], view: View, alone: bool) -> PanelArm:
    trial = group[0].trial
    label = optimizer if alone else f"{optimizer} lr={trial.hyper.get('lr', 0):.4g}"
    if not alone and trial.hyper.get("topC") is not None:
        label += f" topC={trial.hyper['topC']} decay={trial.hyper.get('decay', '-')}"
    rows = tuple(sorted(group, key=lambda row: row.trial.seed))
    return PanelArm(
        optimizer.removesuffix("_C").removesuffix("_F"),
        *("", label, optimizer, trial.hyper, rows, mean_interval(view.values(group, "test"))),
        diverged=sum(bool(row.summary.get("diverged")) for row in group),
        cost=cost_of(group),
    )
