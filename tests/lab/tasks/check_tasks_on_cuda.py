"""Every task's twin on a GPU: learns, waits for the device in no step, and repeats itself. Not collected by pytest.

PYTHONPATH=src python tests/lab/tasks/check_tasks_on_cuda.py [TASK ...]
"""

from __future__ import annotations

import importlib.util
import sys
import time

import torch

from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import TASKS
from critgrad.lab.train.loop import new_model, problem_for, train


def steps_do_not_wait(name: str) -> None:
    """Three steps under torch's own watch for synchronisation."""
    problem = problem_for(Trial(f"{name}@tiny", "Adam"), "cuda")
    model = new_model(problem, 0).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    plan, noise, carry = problem.plan(0, 1), problem.noise(0, 1), None
    for step, batch in zip(range(4), problem.batches(plan)):
        if step == 1:  # the first one loads libraries
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        loss, carry = problem.loss(model, batch, None if noise is None else noise[step], carry)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.cuda.set_sync_debug_mode("default")


def main(names: list[str]) -> int:
    """Check the tasks of these names, or all."""
    failed = 0
    for name in names or TASKS:
        if name == "multiwoz-roberta" and importlib.util.find_spec("transformers") is None:
            print(f"{name:18} left out: transformers is not installed")
            continue
        try:
            steps_do_not_wait(name)
            begin = time.perf_counter()
            trial = Trial(f"{name}@tiny", "Adam_C", {"lr": 0.001 if name == "cifar100-convnet" else 0.01})
            result, again = train(trial, device="cuda"), train(trial, device="cuda")
            seconds = time.perf_counter() - begin
            loss = result.curves["train_loss"]
            drift = float(abs(loss - again.curves["train_loss"]).max())
            good = loss[-1] < loss[0] and drift < 0.05 * loss[0]
            print(f"{name:18} {'ok' if good else 'BAD':4} loss {loss[0]:.3f} -> {loss[-1]:.3f}", end="  ")
            print(f"test {result.summary['test']:.2f}  repeat differs by {drift:.1e}  {seconds:.1f} s", flush=True)
            failed += not good
        except Exception as error:  # one broken task must not hide the others
            torch.cuda.set_sync_debug_mode("default")
            print(f"{name:18} BAD  {type(error).__name__}: {str(error)[:300]}", flush=True)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
