"""Triton's interpreter, without the half of its time that it spends on doing again what is done."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _language_patched_once_a_kernel() -> Iterator[None]:
    """Let a device function find the language as the kernel that calls it has left it.

    The interpreter puts its own operations in the place of ``triton.language``'s when a kernel starts, takes them back
    when it ends, and in between looks through the whole language again at each call of a device function, of which
    there are dozens in a step. Nothing is left to be replaced there.
    """
    interpreter = None
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter = pytest.importorskip("triton.runtime.interpreter")
    if not hasattr(interpreter, "_LangPatchScope"):  # another version: as slow as it is
        yield
        return

    patch, languages = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    now: set[int] = set()  # the languages that are patched at this moment
    seen: dict[int, set[int]] = {}  # the languages that a module's functions see

    class Kernel(interpreter._LangPatchScope):
        def restore(self) -> None:
            now.clear()
            super().restore()

    def patch_once(fn: Any) -> Any:
        names = fn.__globals__
        if id(names) not in seen:
            modules = [value for value in names.values() if inspect.ismodule(value)]
            seen[id(names)] = {id(module) for module in modules if module in languages}
        wanted = seen[id(names)]
        scope = Kernel()
        if not wanted or not wanted <= now:
            scope._changes = patch(fn)._changes
            now.update(wanted)
        return scope

    with pytest.MonkeyPatch.context() as replaced:
        replaced.setattr(interpreter, "_patch_lang", patch_once)
        yield
