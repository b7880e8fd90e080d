"""Experiments with optimizers: tasks, training, a ledger of every run, statistics, a report.

The lab uses the public API as any user would, and knows nothing of the paper's study (``critgrad.paper``), which stands on
top of it. It needs numpy, which the library itself does not: ``pip install critgrad[lab]``.
"""
