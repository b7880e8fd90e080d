"""Worlds of ranks, each started once however many test processes ask for its results."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import dist_launch


@pytest.fixture(scope="session")
def worlds_folder(tmp_path_factory, request):
    """A folder that all test processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "worlds"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def world(worlds_folder):
    """``world(module, ranks)``: the module's claims and what is wrong with each (nothing: "")."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    filelock = pytest.importorskip("filelock")  # torch depends on it

    def results(module: str, ranks: int) -> dict[str, str]:
        kept = worlds_folder / f"{module}.json"
        # One world at a time: ranks that share two cores with other ranks only wait for each other.
        with filelock.FileLock(worlds_folder / "lock"):
            if not kept.exists():
                try:
                    found = dist_launch.launch(module, ranks, worlds_folder / module)
                except Exception as error:
                    found = {"": str(error)}
                kept.write_text(json.dumps(found))
        found = json.loads(kept.read_text())
        assert "" not in found, found[""]
        return found

    return results
