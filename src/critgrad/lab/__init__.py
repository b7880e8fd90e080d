"""Experiments with critical gradients: tasks, fair comparisons, tables.

The lab uses the public API as any user would. It needs numpy, which the library itself does not:
``pip install critgrad[lab]``.
"""
