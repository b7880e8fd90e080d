"""Imports go one way: the command line, the paper's study, the lab, the library."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# Lowest first: each may import those below it, and itself.
FLOORS = ("critgrad", "critgrad.lab", "critgrad.paper", "critgrad.cli")


def floor_of(module: str) -> int:
    for index in range(len(FLOORS) - 1, -1, -1):
        if module == FLOORS[index] or module.startswith(FLOORS[index] + "."):
            return index
    return -1  # somebody else's


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "critgrad").rglob("*.py")):
        parts = path.with_suffix("").relative_to(SOURCE).parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path) -> set[str]:
    """The modules that a file names in its imports, wherever they stand."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def test_imports_go_one_way() -> None:
    upwards = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in sorted(imported(module, path))
        if floor_of(name) > floor_of(module)
    ]
    assert upwards == []


def test_packages_of_the_paper_do_not_import_one_another_in_a_circle() -> None:
    def part(module: str) -> str:
        return ".".join(module.split(".")[:3])

    edges: dict[str, set[str]] = {}
    for module, path in modules().items():
        if module.startswith("critgrad.paper."):
            near = {part(name) for name in imported(module, path) if name.startswith("critgrad.paper.")}
            edges.setdefault(part(module), set()).update(near - {part(module)})
    known = {name for name in edges if name in {part(module) for module in modules()}}

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for name in edges.get(todo.pop(), set()) & known:
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        return seen

    assert [name for name in sorted(known) if name in reach(name)] == []


def test_a_class_name_means_one_thing() -> None:
    """In the lab and the paper's study, and beside what the library itself calls so."""
    found: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    ours = {name: where for name, where in found.items() if any(floor_of(module) > 0 for module in where)}
    assert {name: where for name, where in ours.items() if len(where) > 1} == {}
