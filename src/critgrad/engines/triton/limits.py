"""What the Triton kernels take, and what they leave to torch's operations."""

from __future__ import annotations

import torch
import triton.language as tl

from ...memory.aggregations import Linear, Pick
from ...memory.dtensors import PLAIN, local
from ...memory.layout import same_strides
from ...memory.policies import is_built_in
from ...memory.store import Store
from .decide_kernel import KNOWN_POLICIES
from .launch import INTERPRETED

MOST_DAMPING_SLOTS = 32  # their loads are unrolled
TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.int8,  # as bytes; the kernels know it by its largest code
}


def unknown_to_kernels(store: Store) -> str | None:
    """What of a store no kernel knows, or ``None``."""
    name = store.policy.name
    if not is_built_in(store.policy) or name not in KNOWN_POLICIES:
        return f"policy {name!r}"
    if store.dtype != torch.float32:
        return "parameters that are wider than float32"
    if store.damps:
        kinds = {(p.damps, p.options["rho"], p.options["kappa"], p.format_name, p.dtype) for p in store.parts}
        if len(kinds) > 1:
            return "several ways of damping in one memory"
        if store.topC > MOST_DAMPING_SLOTS:
            return f"topC={store.topC} with damping (at most {MOST_DAMPING_SLOTS})"
    if store.by_tensor and store.process_group is not None:
        return 'scope="tensor" over ranks'
    for part in store.parts:
        aggregation = part.aggregation
        picks = isinstance(aggregation, Pick) and aggregation.number is not None
        if not (picks or isinstance(aggregation, Linear) or aggregation.damps):
            return f"aggr={aggregation.name!r}"
        if type(part.param) not in PLAIN and not part.sharded:
            return f"parameters of type {type(part.param).__name__}"
        if part.device != store.device or part.device.type not in (("cuda", "cpu") if INTERPRETED else ("cuda",)):
            return "parameters on several devices"
        if part.layout.complex or part.dtype not in TYPES or part.format.dtype not in TYPES:
            return f"parameters in {part.dtype} with slots in {part.format_name}"
        if part.offloaded:
            return "slots in host memory"
        if not same_strides(part.layout.shape, local(part.param).stride(), part.layout.strides):
            return "parameters with gaps in memory"
        if INTERPRETED and part.format_name == "float8":
            return "float8 in the interpreter"  # which rounds them wrongly
    return None
