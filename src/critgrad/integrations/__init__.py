"""Doors to other people's training loops and loggers. Nothing of theirs is imported before it is used.

========================  =============================================================================
``scalars, log_memory``   for a loop of your own: the memory's numbers as a dictionary, and to a logger
``loggers``               where numbers go: TensorBoard, Weights & Biases, trackio
``hf.MemoryCallback``     for the Hugging Face ``Trainer``
``lightning.MemoryCallback``  for Lightning's ``Trainer``
========================  =============================================================================
"""

from .loggers import find_memory, log_memory, scalars

__all__ = ["find_memory", "log_memory", "scalars"]
