"""NVIDIA's Multi-Process Service (MPS): without it, processes on one GPU take turns; with it, they share it.

A sweep with several workers on CUDA starts a service of its own, where the driver brings one, and stops it at its end. A
service that the user has started (``CUDA_MPS_PIPE_DIRECTORY`` is set) is used as it is; ``CRITGRAD_MPS=0`` starts none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SECONDS = 20  # for any of its commands

# What a client does first: it fails where a service runs but cannot be reached, as in some containers. No torch: this
# takes a fraction of a second.
CLIENT = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
         or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
"""


class MpsError(RuntimeError):
    """No service could be had."""


class MpsService:
    """A running service: ``environment`` is what its clients need. ``stop`` may be called more than once."""

    def __init__(self, control: str) -> None:
        self.control = control
        # Straight under the folder for such files: the path of a socket may have some hundred letters only.
        self.folder = Path(tempfile.mkdtemp(prefix="critgrad-mps-"))
        places = {"CUDA_MPS_PIPE_DIRECTORY": self.folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": self.folder / "log"}
        self.environment: Mapping[str, str] = {name: str(place) for name, place in places.items()}
        for place in places.values():
            place.mkdir()
        atexit.register(self.stop)
        try:
            self._call([control, "-d"])
            self._call([sys.executable, "-c", CLIENT])
        except BaseException:
            self.stop()
            raise

    def _call(self, command: list[str], text: str = "") -> None:
        said = self.folder / "said"
        try:
            # A file and no pipe: the service may hold on to what its starter was given, and a pipe would then never end.
            with open(said, "w") as file:
                done = subprocess.run(
                    command,
                    env={**os.environ, **self.environment},
                    input=text,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(str(error)) from error
        if done.returncode:
            lines = said.read_text(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise MpsError(f"{Path(command[0]).name}: {lines[-1]}")

    def stop(self) -> None:
        """End the service and remove its files. Its clients must be gone: it waits for them."""
        if not self.folder.exists():
            return
        atexit.unregister(self.stop)
        with contextlib.suppress(MpsError):  # it may never have run
            self._call([self.control], "quit\n")
        shutil.rmtree(self.folder, ignore_errors=True)


def service_for(workers: int, device: str) -> MpsService | None:
    """A service for so many workers on a device, where they gain by one and it can be had; a warning if it cannot start."""
    if workers < 2 or not device.startswith("cuda"):
        return None
    if os.environ.get("CRITGRAD_MPS") == "0" or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        return None
    control = shutil.which(CONTROL)
    if control is None:
        return None
    try:
        return MpsService(control)
    except MpsError as error:
        warnings.warn(f"no MPS ({error}): the {workers} workers take turns on the GPU", RuntimeWarning, stacklevel=2)
        return None
