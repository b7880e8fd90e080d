"""The bank engine: many small models of one task trained at once on one device.

On a GPU a small model costs what its launches cost, so that two hundred of them in one batch cost what one does. Each
model has its own seed, optimizer, hyper-parameters and memory; forward and backward are one call over all of them
(``torch.func.vmap``), and so is the update of each kind of optimizer. The numbers are those of the single engine up to
rounding (batched products add up in another order), so the two are never mixed within one comparison, and never timed.
"""

from .members import bank_groups
from .run import run_bank

__all__ = ["bank_groups", "run_bank"]
