"""Memories over many ranks: every rank adds the part of the sums that it holds, and all of them decide alike.

One all-reduce of a handful of numbers per memory and step. It runs over *one* group: two successive reductions over two
mesh dimensions may round differently from rank to rank, and a near-tie would then pick different slots.

Sharding that a parameter shows (DTensor: FSDP2, HSDP, tensor parallel) is handled by itself. Engines that hide it
behind plain tensors (FSDP1, ZeRO) are recognised and refused, unless ``process_group=`` says over which ranks it goes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from .store import Part, Store

Place = tuple[int, ...]

_groups: dict[Place, tuple[Any, Any]] = {}  # ranks -> (the default group then, their group)


def prepare(store: Store, process_group: Any, lost_group: bool) -> None:
    """Find out over which ranks the sums of a memory go, and which of its parts this rank counts."""
    if lost_group and not _one_process():
        raise RuntimeError(
            "this optimizer was made with process_group=, which pickle and deepcopy cannot keep. Construct a new one "
            "with process_group= and load this one's state_dict()"
        )
    sharded: list[tuple[Part, Any]] = [(part, part.param) for part in store.parts if part.sharded]
    store.process_group = process_group
    if process_group is None:
        refuse_hidden_sharding(store.parts)
    if not sharded:
        return
    meshes = list({id(param.device_mesh): param.device_mesh for _, param in sharded}.values())
    grid = _grid(meshes)
    places = dict(zip(grid.flatten().tolist(), itertools.product(*(range(size) for size in grid.shape))))
    mine = places[dist.get_rank()]
    if process_group is None:
        store.process_group = _group(list(places), meshes)
        for part in store.parts:
            part.counts = not any(mine)  # a plain tensor among sharded ones: every rank has all of it
    first = {id(mesh): _is_first_copy(mesh, mine, places) for mesh in meshes}
    for part, param in sharded:
        at = param.device_mesh.get_coordinate()
        again = at is None or any(i for i, placement in zip(at, param.placements) if placement.is_replicate())
        part.counts = first[id(param.device_mesh)] and not again


# -- meshes ----------------------------------------------------------------------------------------------------------


def _ranks(mesh: Any) -> list[int]:
    return list(mesh.mesh.flatten().tolist())


def _root(mesh: Any) -> Any:
    get_root = getattr(mesh, "_get_root_mesh", None)
    if get_root is not None:
        return get_root()
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.get_root_mesh(mesh)


def _grid(meshes: Sequence[Any]) -> Tensor:
    """The ranks that hold parts of a memory, as a grid: the mesh around all meshes, or what they span of their root."""
    largest = max(meshes, key=lambda mesh: mesh.mesh.numel())
    around = set(_ranks(largest))
    if all(around.issuperset(_ranks(mesh)) for mesh in meshes):
        return largest.mesh
    # Some parameters lie over one dimension (data), others over another (tensor parallel), none over both.
    root = _root(largest).mesh
    places = {int(rank): place for place, rank in zip(itertools.product(*map(range, root.shape)), root.flatten())}
    if any(rank not in places for mesh in meshes for rank in _ranks(mesh)):
        raise RuntimeError(
            "the parameters lie on device meshes that have no mesh in common; make them slices of one mesh, "
            "or pass process_group= with all ranks that hold parts of the model"
        )
    spanned = set().union(*(_varying([places[rank] for rank in _ranks(mesh)]) for mesh in meshes))
    here = places[dist.get_rank()]
    return root[tuple(slice(None) if i in spanned else here[i] for i in range(root.ndim))]


def _varying(places: Sequence[Place]) -> set[int]:
    """The dimensions in which places differ."""
    return {i for i, values in enumerate(zip(*places)) if len(set(values)) > 1}


def _is_first_copy(mesh: Any, mine: Place, places: dict[int, Place]) -> bool:
    """Whether this rank's slice is the first of those that hold the same: 0 in all dimensions beyond the mesh's own.

    By ranks and not by the names of dimensions: a mesh may be a flattened one, or have no names.
    """
    across = _varying([places[rank] for rank in _ranks(mesh)])
    return not any(at for i, at in enumerate(mine) if i not in across)


def _group(ranks: list[int], meshes: Sequence[Any]) -> Any:
    """One process group over ``ranks``; one that exists already if there is one."""
    for mesh in meshes:
        if mesh.ndim == 1 and set(_ranks(mesh)) == set(ranks):
            return mesh.get_group()
    world = dist.group.WORLD
    if len(ranks) == dist.get_world_size():
        return world
    key = tuple(sorted(ranks))
    if key not in _groups or _groups[key][0] is not world:
        # Only the members call this: in a pipeline the ranks of other stages have other meshes.
        _groups[key] = world, dist.new_group(list(key), use_local_synchronization=True)
    return _groups[key][1]


# -- engines that hide their sharding --------------------------------------------------------------------------------

# The class that steps us with a part of the model: (its name, or "" for any; how its module's name begins) -> engine.
_ENGINES = {
    ("ZeroRedundancyOptimizer", "torch.distributed.optim"): (
        "ZeroRedundancyOptimizer",
        "optimizer_class=functools.partial(critgrad.Adam_C, process_group=torch.distributed.group.WORLD)",
    ),
    ("", "deepspeed.runtime.zero"): ("DeepSpeed ZeRO", "process_group= with stage 1 or 2, or FSDP2"),
    ("BF16_Optimizer", "deepspeed.runtime"): ("DeepSpeed ZeRO", "process_group= with stage 1 or 2, or FSDP2"),
    ("DistributedOptimizer", "megatron."): ("Megatron's distributed optimizer", "process_group="),
}
_FSDP1 = "FSDP1 (FullyShardedDataParallel)", "process_group=torch.distributed.group.WORLD, or FSDP2 (fully_shard)"


def _one_process() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


def _calling_engine() -> tuple[str, str] | None:
    """The engine that holds this optimizer, if one is on the stack: it hands over plain tensors that tell nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        for cls in type(caller).__mro__ if caller is not None else ():
            for (name, module), engine in _ENGINES.items():
                if name in ("", cls.__name__) and cls.__module__.startswith(module):
                    return engine
        frame = frame.f_back
    return None


def refuse_hidden_sharding(parts: Sequence[Part]) -> None:
    """Raise ``RuntimeError`` where each rank would take the norm of its own part for the norm of the gradient."""
    if _one_process():
        return
    flattened = any(getattr(part.param, "_fsdp_flattened", False) for part in parts)  # set by torch, of FSDP1
    engine = _FSDP1 if flattened else _calling_engine()
    if engine is not None:
        raise RuntimeError(
            f"{engine[0]} hides how parameters are sharded: each rank would see the norm of its own part only, and the "
            f"ranks would store different gradients. Say over which ranks the parts lie: {engine[1]}"
        )
