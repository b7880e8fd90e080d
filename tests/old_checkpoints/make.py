"""Writes the files beside it: checkpoints of the release c0231e6, and what that release makes of them in further steps.

With that release's ``src`` as PYTHONPATH; engines are chosen by the environment, so each has a process of its own.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections import Counter
from copy import deepcopy
from pathlib import Path

FOLDER = Path(__file__).parent
ENGINES = {"torch": {"CRITGRAD_NATIVE": "0"}, "native": {}, "triton": {"TRITON_INTERPRET": "1", "CRITGRAD_NATIVE": "0"}}

BEFORE, FURTHER = 12, 8  # steps
# Two groups of two. The third gets its first gradient late; 260 values have two scales where slots have 8 bits.
SHAPES = ((2, 3), (2, 2, 2, 2), (3,), ())
WIDE = ((2, 3), (13, 5, 2, 2), (3,), ())

# case: (class, the base's arguments, the memory's options[, what else differs])
CASES = {
    "torch-sgd": ("SGD_C", {"lr": 0.05, "momentum": 0.9}, {"topC": 3}),
    "torch-adam-cds-group": ("Adam_C", {"lr": 0.02}, {"topC": 3, "policy": "CDS", "scope": "group"}),
    "torch-adamw-bfloat16": ("AdamW_C", {"lr": 0.02}, {"topC": 3, "memory_dtype": "bfloat16"}),
    "torch-rmsprop-int8": ("RMSprop_C", {"lr": 0.01}, {"topC": 2, "memory_dtype": "int8"}, {"shapes": WIDE}),
    "torch-nadam-float8-max": ("NAdam_C", {"lr": 0.02}, {"topC": 3, "memory_dtype": "float8", "aggr": "max"}),
    "torch-aggmo": ("AggMo_C", {"lr": 0.01}, {"topC": 2, "decay": 0.9}),
    "torch-radam-ncpr": ("critical(RAdam)", {"lr": 0.05}, {"topC": 3, "policy": "NCPR", "decay": 0.9}),
    "torch-adagrad-median": ("critical(Adagrad)", {"lr": 0.1}, {"topC": 4, "aggr": "median"}),
    "torch-wrapped-adam": ("CriticalGradients(Adam)", {"lr": 0.02}, {"topC": 3, "decay": 0.9}),
    "torch-adam-float64-min": ("Adam_C", {"lr": 0.02}, {"topC": 2, "aggr": "min"}, {"dtype": "float64"}),
    "torch-sgd-complex-mid": ("SGD_C", {"lr": 0.05}, {"topC": 2, "aggr": "mid"}, {"dtype": "complex64"}),
    "torch-adam_f": ("Adam_F", {"lr": 0.02}, {"topC": 4}),
    "torch-nadam_f-float16-tensor": (
        "NAdam_F", {"lr": 0.02}, {"topC": 3, "memory_dtype": "float16", "scope": "tensor", "decay": 0.9},
    ),
    "torch-sgd_f-float64": ("SGD_F", {"lr": 0.05}, {"topC": 3}, {"dtype": "float64"}),
    "native-sgd-max_age": ("SGD_C", {"lr": 0.05, "momentum": 0.9}, {"topC": 3, "decay": 0.99, "max_age": 4}),
    "native-adam": ("Adam_C", {"lr": 0.02}, {"topC": 5}, {"second": {"aggr": "sum", "kappa": 0.5}}),
    "native-adamw-ncpr": ("AdamW_C", {"lr": 0.02}, {"topC": 2, "policy": "NCPR", "decay": 0.9}),
    "native-rmsprop-sparse": ("RMSprop_C", {"lr": 0.01}, {"topC": 3, "policy": "sparse", "every": 2, "aggr": "mid"}),
    "native-nadam-random": ("NAdam_C", {"lr": 0.02}, {"topC": 2, "policy": "random", "seed": 7, "scope": "tensor"}),
    "native-adam_f": ("Adam_F", {"lr": 0.02}, {"topC": 3, "rho": 0.1}),
    "native-nadam_f-tensor": ("NAdam_F", {"lr": 0.02}, {"topC": 3, "scope": "tensor", "decay": 0.9}),
    "native-sgd_f-group": ("SGD_F", {"lr": 0.05, "momentum": 0.9}, {"topC": 2, "scope": "group", "max_age": 5}),
    "triton-sgd-sparse": ("SGD_C", {"lr": 0.05, "momentum": 0.9}, {"topC": 2, "policy": "sparse", "every": 3}),
    "triton-adam-int8": ("Adam_C", {"lr": 0.02}, {"topC": 3, "memory_dtype": "int8"}),
    "triton-adamw-cds-min": ("AdamW_C", {"lr": 0.02}, {"topC": 3, "policy": "CDS", "aggr": "min"}),
    "triton-nadam-float16-median": (
        "NAdam_C", {"lr": 0.02}, {"topC": 4, "memory_dtype": "float16", "aggr": "median", "max_age": 6},
    ),
    "triton-sgd_f": ("SGD_F", {"lr": 0.05}, {"topC": 3}),
    "triton-adam_f-float16": ("Adam_F", {"lr": 0.02}, {"topC": 3, "memory_dtype": "float16", "decay": 0.9}),
    "triton-nadam_f-int8-tensor": (
        "NAdam_F", {"lr": 0.02}, {"topC": 2, "memory_dtype": "int8", "scope": "tensor", "decay": 0.9},
    ),
}  # fmt: skip
PICKLED = ("native-adam", "torch-radam-ncpr", "torch-wrapped-adam")


def write(engine: str) -> None:
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    sys.path.insert(0, str(FOLDER.parent))
    from test_old_checkpoints import construct, go_on, memory_of, parameters_of

    from critgrad.kernels import native, triton_path

    torch.set_num_threads(1)
    made: Counter[str] = Counter()  # steps of a memory, by the engine that has made them

    for kernels, name in ((native.NativeMemory, "native"), (triton_path.FusedMemory, "triton")):

        def counted(self, grads, name=name, step=kernels.step):
            made[name] += 1
            step(self, grads)

        kernels.step = counted

    def packed(tree):
        """The same with one storage for each dtype: a file has some hundred bytes for every storage."""
        leaves, spec = tree_flatten(tree)
        for dtype in {leaf.dtype for leaf in leaves if torch.is_tensor(leaf)}:
            mine = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.dtype == dtype]
            room, at = torch.empty(sum(leaves[i].numel() for i in mine), dtype=dtype), 0
            for i in mine:
                leaves[i] = room.as_strided(leaves[i].shape, leaves[i].stride(), at).copy_(leaves[i])
                at += leaves[i].numel()
        return tree_unflatten(leaves, spec)

    def save(saved, path: Path) -> None:
        """As ``torch.save``, but compressed, which ``torch.load`` does not mind."""
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(path, "w") as file:
            for record in plain.infolist():
                file.writestr(zipfile.ZipInfo(record.filename), plain.read(record), zipfile.ZIP_DEFLATED)

    for number, (case, (cls, base, memory, *rest)) in enumerate(CASES.items()):
        if not case.startswith(engine):
            continue
        special = rest[0] if rest else {}
        generator = torch.Generator().manual_seed(number)
        shapes, dtype = special.get("shapes", SHAPES), getattr(torch, special.get("dtype", "float32"))

        def draw(count: int, shapes=shapes, dtype=dtype, generator=generator):
            return [torch.randn((count, *shape), generator=generator, dtype=dtype) for shape in shapes]

        steps = BEFORE + FURTHER
        size = 10 ** (2 * torch.rand(steps, generator=generator) - 1)
        size[BEFORE - 1] = 10.0  # so that it is stored: a rounded entry of Triton's has no inner products yet
        size[BEFORE + 3], size[BEFORE + 4] = 0.0, 30.0
        grads = [(g.movedim(0, -1) * size.to(dtype.to_real())).movedim(-1, 0).contiguous() for g in draw(steps)]
        late = BEFORE + 2 if number % 2 else 4
        missing = [[i for i in range(4) if (i == 2 and t < late) or (i == 0 and t in (6, 17))] for t in range(steps)]
        start = [value[0] for value in draw(1)]
        start[1] = start[1].to(memory_format=torch.channels_last)
        groups = [{"params": [0, 1]}, {"params": [2, 3], "lr": base["lr"] / 2, **special.get("second", {})}]
        saved = {"engine": engine, "class": cls, "base": base, "memory": memory, "groups": groups, "params": start}
        params = parameters_of(saved)
        optimizer = construct(saved, params)
        go_on(optimizer, [g[:BEFORE] for g in grads], missing[:BEFORE])
        saved["params"] = [p.detach().clone() for p in params]
        checkpoint = deepcopy(optimizer.state_dict())
        if case in PICKLED:
            (FOLDER / f"{case}.pickle").write_bytes(pickle.dumps(optimizer))
        saved |= {"grads": [g[BEFORE:] for g in grads], "missing": missing[BEFORE:]}
        made.clear()
        go_on(optimizer, saved["grads"], saved["missing"])
        assert (optimizer._critical_kernel[2] is None) == (engine == "torch"), case
        assert set(made) == {engine} - {"torch"}, case
        assert all(count >= FURTHER for count in made.values()), case
        saved["after"] = {"params": [p.detach() for p in params], "memory": memory_of(optimizer)}
        # The checkpoint has its own storages, as it would have alone.
        save({**packed(saved), "state_dict": checkpoint}, FOLDER / f"{case}.pt")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
    else:
        for name, environment in ENGINES.items():
            subprocess.run([sys.executable, __file__, name], env={**os.environ, **environment}, check=True)
