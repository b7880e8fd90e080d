"""Small studies in a folder of the test's own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from critgrad.cli import main
from critgrad.lab import study
from critgrad.lab.ledger import Ledger
from critgrad.lab.run.spec import STUDY_SCHEMA

SOURCE = Path(__file__).parents[3] / "src"

# A quadratic that every run solves in its own way: no data, a few steps, hardly any time.
PIECES = """
import torch

def build(seed):
    model = torch.nn.Linear(4, 1)
    return model

def batches(seed, epoch):
    return [torch.randn(8, 4) for _ in range(3)]

def loss(model, batch):
    return ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()

@torch.no_grad()
def evaluate(model):
    error = ((model.weight - 1) ** 2).sum() + model.bias.square().sum()
    return {"valid": float(error), "test": float(error) + 1}
"""
LOOP = """
import torch

def train(make_optimizer, seed, epochs, report):
    weight = torch.nn.Parameter(torch.randn(3))
    optimizer = make_optimizer([weight])
    for epoch in range(epochs):
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        report(valid=weight.square().sum().item(), test=1 + weight.square().sum().item())
"""
FILE = """
format = 1
title = "A small one"
task = "task.py"
direction = "min"
epochs = 2
replicates = 2
trials = 2
report_seeds = 1
seed = 7

[arms.sgd]
optimizer = "torch.optim:SGD"
fixed = { momentum = 0.5 }
search = { lr = "log 1e-3 1e-1" }

[arms.adam]
optimizer = "torch.optim:Adam"
search = { lr = "log 1e-3 1e-1", betas.0 = "one-minus 0.5 0.99" }

[[claims]]
arm = "adam"
against = "sgd"
"""


def write(folder: Path, task: str = PIECES, file: str = FILE, **more: str) -> Path:
    """A study's files; ``more`` are other modules by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(file)
    (folder / "task.py").write_text(task)
    for name, text in more.items():
        (folder / f"{name}.py").write_text(text)
    return folder / "study.toml"


def arms(*names: str, optimizer: str = "mine.py:Mine", search: str = "") -> str:
    """A file's arms that differ in an option ``kind``, each against the first."""
    tables = [
        f'[arms.{name}]\noptimizer = "{optimizer}"\nfixed = {{ kind = "{name}" }}\nsearch = {{ {search} }}\n'
        for name in names
    ]
    return FILE[: FILE.index("[arms.sgd]")] + "\n".join(tables)


def run(path: Path, **options: Any) -> study.Answer:
    return study.run(path, **{"executor": "inline", "device": "cpu", **options})


def made(path: Path, **options: Any) -> tuple[study.Answer, int]:
    """An answer, and the number of runs that were made for it."""
    events = []
    answer = run(path, on_event=lambda event: events.append(event.kind), **options)
    return answer, events.count("done") + events.count("failed")


def keys(path: Path) -> list[str]:
    with Ledger.open(path.with_name("study.db")) as book:
        return [row.key for row in book.rows(status=None, schema=STUDY_SCHEMA)]


def call(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def process(*words: object, prelude: str = "", **environment: str) -> subprocess.Popen[str]:
    """The command as a process of its own, from the sources."""
    start = "import runpy; runpy.run_module('critgrad.lab', run_name='__main__', alter_sys=True)"
    values = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    command = [sys.executable, "-c", f"{prelude}\n{start}", *map(str, words)]
    return subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
