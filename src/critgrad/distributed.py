"""Memories over many ranks: every rank adds the part of the sums that it holds, and all of them decide alike.

One all-reduce of a handful of numbers per memory and step. It runs over *one* group: two successive reductions over two
mesh dimensions may round differently from rank to rank, and a near-tie would then pick different slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .layout import is_dtensor

if TYPE_CHECKING:
    from .memory import Memory


def _root(mesh: Any) -> Any:
    get_root = getattr(mesh, "_get_root_mesh", None)
    if get_root is not None:
        return get_root()
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.get_root_mesh(mesh)


def _flat_group(mesh: Any) -> Any:
    """One process group over all ranks of a mesh."""
    import torch.distributed as dist

    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    if mesh.ndim == 1:
        return mesh.get_group()
    return mesh._flatten("critgrad_" + "_".join(mesh.mesh_dim_names or ())).get_group()


def prepare(memory: Memory, process_group: Any) -> None:
    """Find out over which ranks the sums of a memory go, and which of its parts this rank counts."""
    memory.process_group = process_group
    sharded = [part for part in memory.parts if is_dtensor(part.param)]
    if process_group is not None or not sharded:
        return
    meshes = [part.param.device_mesh for part in sharded]  # type: ignore[attr-defined]
    whole = meshes[0] if all(mesh == meshes[0] for mesh in meshes) else _root(meshes[0])
    memory.process_group = _flat_group(whole)
    first_rank = all(index == 0 for index in whole.get_coordinate())
    for part in memory.parts:
        if not is_dtensor(part.param):
            part.counts = first_rank  # every rank has all of it
            continue
        param: Any = part.param
        mesh = param.device_mesh
        replicated = [i for i, placement in enumerate(param.placements) if placement.is_replicate()]
        part.counts = all(mesh.get_coordinate()[i] == 0 for i in replicated)
        if mesh != whole:
            # The ranks that differ only in dimensions this parameter's mesh does not have hold the same shard.
            names = set(mesh.mesh_dim_names or ())
            others = [i for i, name in enumerate(whole.mesh_dim_names or ()) if name not in names]
            part.counts = part.counts and all(whole.get_coordinate()[i] == 0 for i in others)


def all_reduce_(sums: Tensor, memory: Memory) -> Tensor:
    """Add up ``sums`` over the ranks of a memory, in place."""
    if memory.process_group is None:
        return sums
    import torch.distributed as dist

    sums = sums.contiguous()
    dist.all_reduce(sums, group=memory.process_group)
    return sums
