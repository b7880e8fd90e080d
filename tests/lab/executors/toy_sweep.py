"""A coordinator in a process of its own, to be killed: `python toy_sweep.py LEDGER CHECKPOINTS COUNT MS [options]`.

`--torn BYTES` lets the operating system kill it inside a write that makes any file larger than that.
"""

from __future__ import annotations

import argparse
import resource
import signal
from pathlib import Path

import toy_worker

from critgrad.lab.ledger import Ledger
from critgrad.lab.run.coordinator import Event, run_jobs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ledger", type=Path)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("ms", type=float)
    parser.add_argument("--torn", type=int)
    parser.add_argument("--behave", default="")
    options = parser.parse_args()

    def on_event(event: Event) -> None:
        if event.kind == "done" and event.trial is not None:
            toy_worker.note("done", event.trial.key)
        elif event.kind in ("begin", "stopping"):
            toy_worker.note(event.kind)

    with Ledger.open(options.ledger, write=True, create=True) as ledger:
        if options.torn is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (options.torn, resource.RLIM_INFINITY))
        outcome = run_jobs(
            toy_worker.plan(options.count, ms=options.ms, behave=options.behave),
            ledger,
            workers=2,
            checkpoints=options.checkpoints,
            on_event=on_event,
            retry_failed=True,
            work=toy_worker.WORK,
        )
    print(outcome.text)


if __name__ == "__main__":
    main()
