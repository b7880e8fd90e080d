"""Makes docs/which-memory-helps.md and its figures from the ledgers of the studies: ``python docs/make_memory_page.py``.

Its text is memory_page.txt. Every number comes out of the ledgers under studies/ and of benchmarks/results/memory_age;
sentences that depend on a word say which arms have it. ``--out`` names another folder than docs (the test compares both, byte
for byte).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from critgrad.lab.study.answer import Answer, Claim
from critgrad.lab.study.runner import report
from critgrad.lab.words import fixed, skew_interval_text
from critgrad.paper.results_page.damped import rank_correlation
from critgrad.paper.results_page.drawing import THEMES, Drawing
from critgrad.paper.results_page.text import probability, table

DOCS = Path(__file__).parent
STUDIES = DOCS.parent / "studies"
AGES = DOCS.parent / "benchmarks" / "results" / "memory_age" / "cpu_mnist.json"
GPT_AGES = AGES.with_name("cpu_small_gpt.json")
PAGE = "which-memory-helps.md"


@dataclass(frozen=True)
class Shown:
    """A study on the page. The figure's axis goes from ``low`` to ``high``; an estimate that lies beyond is an arrow."""

    file: str
    column: str  # of the table
    label: str
    unit: str
    low: float
    high: float
    step: float


SHOWN = (
    Shown("memory-pycode-gpt", "GPT", "GPT on Python source (`pycode-gpt`)", "nats", -0.8, 0.4, 0.2),
    Shown("memory-small-gpt", "smaller GPT", "a smaller GPT on Python source, 300 steps", "nats", -0.4, 1.0, 0.2),
    Shown("memory-cifar10-resnet", "CIFAR-10", "CIFAR-10, a residual net (`cifar10-resnet`)", "points", -4.0, 2.0, 1.0),
    Shown("memory-mnist", "MNIST", "MNIST, an MLP (`mnist-mlp`)", "points", -1.5, 1.5, 0.5),
    Shown("memory-digits", "digits", "digits, an MLP (`digits-mlp`)", "points", -2.5, 2.5, 0.5),
)

# With a schedule: and the same without.
SCHEDULED = {"memory-mnist-cosine": "memory-mnist", "memory-digits-cosine": "memory-digits"}
UNTRIED = ("digits", "mnist", "gpt")  # studies/untried
A_SUM = 0.95  # the share of a step that must be a sum of gradients for its age to mean something

# Arm: name, stored, admitted, used.
FRAME: Mapping[str, tuple[str, str, str, str]] = {
    "adamw": ("AdamW", "average of gradients", "all", "the step's direction"),
    "nesterov": ("Nesterov's AdamW", "the same", "all", "the same, the newest gradient counted once more"),
    "nadamw": ("NAdamW", "the same", "all", "as Nesterov's, with a `beta1` that grows"),
    "adamw_c": ("`AdamW_C`", "5 gradients", "large norm", "averaged with the gradient"),
    "adamw_f": ("`AdamW_F`", "10 gradients", "large norm", "the step is shortened along them"),
    "adamw_f_tensor": ("`AdamW_F` by tensor", "10 a tensor", "large norm of the tensor", "the same"),
    "adam_cm": ("`Adam_CM`", "5 momenta", "large norm of the gradient", "added to the momentum"),
    "adam_cm_control": ("`Adam_CM`'s control", "no slots (`topC=0`); squares of the momentum", "all", "the divisor"),
    "ademamix": ("AdEMAMix", "a second, slow average", "all, its share growing", "added to the first"),
    "mars": ("MARS", "the gradient before", "the last", "difference to it, added: extrapolates"),
    "cautious": ("Cautious AdamW", "average of gradients", "all", "masked where signs disagree"),
    "grokfast": ("GrokFast", "a slow average", "all", "added to the gradient, before AdamW"),
    "aggmo": ("AggMo", "averages of three decays", "all", "their mean is the step"),
    "lion": ("Lion", "average of gradients", "all", "its sign"),
    "schedulefree": ("schedule-free AdamW", "average of the weights", "all", "where gradients are taken"),
    "muon": ("Muon", "average of gradients", "all", "orthogonalised"),
    "muon_f": ("`Muon_F`", "10 gradients beside it", "large norm", "shorten its gradient along them"),
}
INKS = {"better": "on the rival", "worse": "adding", "same": "damping", "open": "text"}
UNDECIDED = ("same", "open")


def name_of(arm: str) -> str:
    return FRAME[arm][0]


def plain(text: str) -> str:
    return text.replace("`", "")


# -- figures -----------------------------------------------------------------------------------------------------------


def forest(answer: Answer, shown: Shown) -> Drawing:
    """One row a claim: its replicates, the estimate and its interval."""
    claims = sorted(answer.claims, key=lambda claim: -claim.difference)
    made = Drawing(880, 146 + 26 * len(claims), f"{plain(shown.label)}: every claim's difference with its interval")
    made.text(24, 24, plain(shown.label), size=16)
    place = 29.0
    for word in [word for word in INKS if any(claim.word == word for claim in claims)]:
        made.dot(place, 43, INKS[word], 5, hollow=word in UNDECIDED)
        made.text(place + 10, 48, word, size=13)
        place += 8 * len(word) + 36
    what = f"difference in {shown.unit}; right: better than the better of AdamW and Nesterov's AdamW"
    made.text(24, 68, what, "quiet", 13)
    marks = "bar: 95 % interval; small dots: replicates; arrow, or dot at an end: beyond it; band: the margin"
    made.text(24, 86, f"{marks}, {answer.margin:.2g}", "quiet", 13)
    left, right, top, bottom = 206, 622, 100, made.height - 24

    def x(value: float) -> float:
        share = (min(max(value, shown.low), shown.high) - shown.low) / (shown.high - shown.low)
        return left + (right - left) * share

    made.box(x(-answer.margin), top, x(answer.margin) - x(-answer.margin), bottom - top, "band")
    for tick in range(round(shown.low / shown.step), round(shown.high / shown.step) + 1):
        made.line([(x(tick * shown.step), top), (x(tick * shown.step), bottom)], "grid" if tick else "quiet", 1.5)
        made.text(x(tick * shown.step), bottom + 16, fixed(tick * shown.step, 1, "+"), "quiet", 13, "middle")
    for index, claim in enumerate(claims):
        y, ink = top + 14 + 26.0 * index, INKS[claim.word]
        made.text(left - 16, y + 5, plain(name_of(claim.arm)), size=14, anchor="end")
        tip = x(claim.difference)
        if not shown.low <= claim.difference <= shown.high:
            to = math.copysign(8, claim.difference)
            made.line([(tip - 4 * to, y), (tip, y)], ink, 2.5)
            made.line([(tip - to, y - 5), (tip, y), (tip - to, y + 5)], ink, 2.5)
        else:
            seen: Counter[int] = Counter()  # equal ones stand below each other
            for at in [round(x(value)) for value in claim.differences]:
                made.cloud([(at, y + 7 + 3 * seen[at])], ink, 4, 0.7)
                seen[at] += 1
            made.line([(x(claim.low), y), (x(claim.high), y)], ink, 3)
            made.dot(tip, y, ink, 5, hollow=claim.word in UNDECIDED)
        made.text(right + 14, y + 5, f"{claim.word}{dagger(claim)} {measured(claim)}", size=13)
    return made


def dagger(claim: Claim) -> str:
    """Where the interval leaves 0 outside and the correction takes the word away."""
    return "†" if claim.word in UNDECIDED and (claim.low > 0 or claim.high < 0) else ""


def measured(claim: Claim) -> str:
    return skew_interval_text(claim.difference, claim.low, claim.high, "+")


def picture(shown: Shown) -> str:
    light, dark = (f"images/{shown.file}-{theme}.svg" for theme in THEMES)
    alt = f"{plain(shown.label)}: the difference of every optimizer to the better of AdamW and Nesterov's AdamW"
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    return f'<picture>{source}<img src="{light}" alt="{alt}"></picture>'


# -- tables and sentences ----------------------------------------------------------------------------------------------


def cell(answer: Answer, arm: str) -> str:
    """A claim in a table."""
    found = [claim for claim in answer.claims if claim.arm == arm]
    if not found:
        return "" if arm not in answer.arms else "rival"
    (claim,) = found
    return f"**{claim.word}**{dagger(claim)} {measured(claim)}"


def results(answers: Sequence[Answer], columns: Sequence[str]) -> str:
    heads = ("optimizer", *(f"{column}; margin {answer.margin:.2g}" for answer, column in zip(answers, columns)))
    arms = [arm for arm in FRAME if any(claim.arm == arm for answer in answers for claim in answer.claims)]
    return table(heads, [[name_of(arm), *(cell(answer, arm) for answer in answers)] for arm in arms])


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0] if names else "none"


def with_word(answer: Answer, word: str, sizes: bool = True) -> str:
    found = [claim for claim in answer.claims if claim.word == word]
    return listed([f"{name_of(c.arm)} ({abs(c.difference):.2f})" if sizes else name_of(c.arm) for c in found])


def words_of(answer: Answer) -> str:
    counts = {word: sum(claim.word == word for claim in answer.claims) for word in INKS}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def claim_of(answer: Answer, arm: str) -> Claim:
    (claim,) = [claim for claim in answer.claims if claim.arm == arm]
    return claim


def runs_of(answer: Answer) -> int:
    return sum(len(r.trials) + len(r.reports) for arm in answer.arms.values() for r in arm.replicates)


def values(answers: Mapping[str, Answer], aged: Mapping[str, Any]) -> dict[str, str]:
    """What the page's text has from the ledgers."""
    shown_ones = [answers[shown.file] for shown in SHOWN]
    out: dict[str, str] = {"results": results(shown_ones, [f"{s.column}, {s.unit}" for s in SHOWN]), "frame": frame()}
    for shown in SHOWN:
        answer = answers[shown.file]
        short = shown.file.split("-")[1]
        out |= {f"{short}_{word}": with_word(answer, word) for word in ("better", "worse")}
        out |= {
            f"{short}_words": words_of(answer),
            f"{short}_claims": str(len(answer.claims)),
            f"{short}_replicates": str(answer.planned),
            f"{short}_runs": f"{runs_of(answer):,}",
            f"{short}_figure": picture(shown),
        }
        out |= {
            f"{short}_{name}": fixed(fmean(r.value for r in arm.replicates), 2 if shown.unit == "nats" else 1)
            for name, arm in answer.arms.items()
        }
    gpt, mnist = answers["memory-pycode-gpt"], answers["memory-mnist"]
    won = [claim.difference for claim in mnist.claims if claim.word == "better"]
    out |= {"least": f"{min(won):.1f}", "most": f"{max(won):.1f}", "mnist_names": with_word(mnist, "better", False)}
    out |= {"damped": measured(claim_of(gpt, "adamw_f")), "trials": str(gpt.trials)}
    out |= {name: measured(claim_of(answers["memory-small-gpt"], name)) for name in ("muon", "muon_f", "nadamw")}
    cifar10 = answers["memory-cifar10-resnet"]
    rising = still_rising(cifar10)
    out["cifar10_falling"] = listed([name_of(arm) for arm in cifar10.arms if name_of(arm) not in rising])
    out["nesterov_was_rival"] = str(claim_of(cifar10, "adamw_f").rivals.count("nesterov"))
    out |= scheduled(answers)
    ends = [near_ends(answers[file]) for file in (*(shown.file for shown in SHOWN), *SCHEDULED)]
    out |= {"near_ends": str(sum(ends)), "near_ends_in": str(len([n for n in ends if n])), "studies": str(len(ends))}
    for name in UNTRIED:
        answer = answers[name]
        alone = len(answer.claims) == 1
        said = [measured(claim) if alone else f"{claim.arm} {measured(claim)}" for claim in answer.claims]
        out |= {f"tried_{name}": "; ".join(said), f"tried_{name}_n": str(answer.planned)}
    gpt_aged = json.loads(GPT_AGES.read_text(encoding="utf-8"))
    out |= {f"gpt_age_{arm}": fixed(middle(gpt_aged, arm, "age"), 0) for arm in ("adamw", "nesterov", "nadamw")}
    seen = [middle(gpt_aged, arm, "agrees") for arm in gpt_aged["arms"]]
    out |= {"gpt_lowest": fixed(min(seen), 2), "gpt_highest": fixed(max(seen), 2)}
    return out | age_values(aged, mnist)


def scheduled(answers: Mapping[str, Answer]) -> dict[str, str]:
    """The table of what was asked again with a schedule, and what that alone brings AdamW."""
    found = [answers[file] for file in SCHEDULED]
    columns = [f"{answer.task}, points" for answer in found]
    out = {"scheduled": results(found, columns), "scheduled_claims": str(len(found[0].claims))}
    for file, before in SCHEDULED.items():
        short = answers[file].task.partition("-")[0]
        means = [fmean(r.value for r in answers[name].arms["adamw"].replicates) for name in (before, file)]
        out |= dict(zip((f"{short}_constant", f"{short}_scheduled"), (fixed(mean, 1) for mean in means)))
        out[f"{short}_again"] = str(answers[file].planned)
    return out


def near_ends(answer: Answer) -> int:
    """Options whose choice lay in an outer tenth of their range in more than a third of the replicates."""
    return sum(count > answer.planned / 3 for arm in answer.arms.values() for count in arm.near_end.values())


def still_rising(answer: Answer) -> list[str]:
    """Arms that validate best, on average, in the highest fifth of the learning rates that their searches tried."""
    out = []
    for arm in answer.arms.values():
        trials = sorted((t for r in arm.replicates for t in r.trials), key=lambda t: t.point["lr"])
        size = len(trials) // 5
        fifths = [fmean(t.valid for t in trials[i * size : (i + 1) * size]) for i in range(5)]
        if max(fifths) == fifths[-1]:
            out.append(name_of(arm.name))
    return out


# -- ages --------------------------------------------------------------------------------------------------------------


def middle(aged: Mapping[str, Any], arm: str, name: str) -> float:
    return median(run[name] for run in aged["arms"][arm])


def age_values(aged: Mapping[str, Any], mnist: Answer) -> dict[str, str]:
    """The table of ages and cosines, and whether they go with the differences on MNIST."""
    names = ("age", "agrees", "gradient", "explained")
    known = {arm: {name: middle(aged, arm, name) for name in names} for arm in FRAME}
    summed = {arm: seen for arm, seen in known.items() if seen["explained"] >= A_SUM}
    rows = [
        [
            name_of(arm),
            fixed(seen["age"], 1) if arm in summed else "-",
            *(fixed(seen[name], 2) for name in ("agrees", "gradient")),
        ]
        for arm, seen in known.items()
    ]
    heads = ("optimizer", "age, steps", "cosine of the step", "of the last gradient")
    out = {"ages": table(heads, rows), "age_runs": str(len(aged["arms"]["adamw"])), "age_machine": aged["machine"]}
    won = {claim.arm: claim.difference for claim in mnist.claims}
    for name, arms in (("age", [arm for arm in won if arm in summed]), ("agrees", [*won])):
        r, p = rank_correlation([known[arm][name] for arm in arms], [won[arm] for arm in arms])
        low, high = around(r, len(arms))
        out[f"r_{name}"] = f"{fixed(r, 2, '+')} ({fixed(low, 2, '+')} to {fixed(high, 2, '+')}; p {probability(p)})"
        out[f"n_{name}"] = str(len(arms))
    gaining = [summed[claim.arm]["age"] for claim in mnist.claims if claim.word == "better" and claim.arm in summed]
    others = [seen["age"] for seen in summed.values() if seen["age"] not in gaining]
    out |= {"youngest": fixed(min(others), 0), "oldest": fixed(max(others), 0)}
    return out | {"gaining_ages": listed([fixed(age, 0) for age in gaining])}


def around(r: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a rank correlation (Fieller, Hartley and Pearson 1957)."""
    half = 1.96 * math.sqrt(1.06 / (n - 3))
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def frame() -> str:
    return table(("optimizer", "stored", "admitted", "used"), [list(row) for row in FRAME.values()])


# What the sentences of the page rest on. Other words ask for other sentences.
RESTS_ON: Mapping[tuple[str, str], set[str]] = {
    ("memory-pycode-gpt", "better"): set(),
    ("memory-pycode-gpt", "worse"): {"adamw_c", "adam_cm"},
    ("memory-small-gpt", "better"): {"muon", "muon_f"},
    ("memory-small-gpt", "open"): {"nadamw"},
    ("memory-cifar10-resnet", "better"): set(),
    ("memory-cifar10-resnet", "worse"): {"adamw_c", "adamw_f", "adam_cm", "mars"},
    ("memory-cifar10-resnet", "same"): {"cautious"},
    ("memory-mnist", "better"): {"nadamw", "schedulefree", "muon", "muon_f"},
    ("memory-mnist", "worse"): {"adamw_c"},
    ("memory-mnist", "open"): set(),
    ("memory-digits", "better"): set(),
    ("memory-digits", "worse"): set(),
    ("memory-mnist-cosine", "worse"): {"adamw_c"},
    ("memory-mnist-cosine", "same"): {"nadamw", "muon", "muon_f", "adamw_f", "cautious"},
    ("memory-digits-cosine", "better"): set(),
    ("memory-digits-cosine", "worse"): set(),
    ("digits", "open"): {"grow", "extrapolate", "agree"},
    ("mnist", "same"): {"grow"},
    ("gpt", "open"): {"grow"},
}


def require_words(answers: Mapping[str, Answer]) -> None:
    for (file, word), arms in RESTS_ON.items():
        found = {claim.arm for claim in answers[file].claims if claim.word == word}
        if found != arms or not answers[file].final:
            raise SystemExit(f"{file}: {word} is said of {sorted(found)}, the page's text is about {sorted(arms)}")


TEXT = (DOCS / "memory_page.txt").read_text(encoding="utf-8")


def answer_of(name: str) -> Answer:
    return report(STUDIES / f"{name}.toml", ledger=STUDIES / f"{name}.db.xz")


def write(out: Path) -> list[Path]:
    """Write the page and its figures; what was written."""
    answers = {file: answer_of(file) for file in (*(shown.file for shown in SHOWN), *SCHEDULED)}
    answers |= {name: answer_of(f"untried/{name}") for name in UNTRIED}
    require_words(answers)
    aged = json.loads(AGES.read_text(encoding="utf-8"))
    files = {PAGE: TEXT.format_map(values(answers, aged))}
    for shown in SHOWN:
        drawn = forest(answers[shown.file], shown)
        files |= {f"images/{shown.file}-{theme}.svg": drawn.svg(theme) for theme in THEMES}
    (out / "images").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in files]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=DOCS)
    for path in write(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
