"""Somebody's Python files: imported anew for each study, and hashed, for whatever stands in them can change a run's numbers."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_NOT_OURS = ("site-packages", "dist-packages", "__pycache__", "node_modules")
_LAB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_IMPORTED = (".py", *EXTENSION_SUFFIXES)
_KEPT = ("critgrad", "torch", "numpy")  # never imported a second time

_session: tuple[str, str] | None = None


class _FromSource(SourceFileLoader):
    """Compiles a file each time: a compiled copy may be older than an edit of the same second, and nothing is written."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True)


def _find_from_source(path: str) -> FileFinder:
    """For ``sys.path_hooks``: how modules of a study's folder are found."""
    if _session is None or not os.path.join(path, "").startswith(os.path.join(_session[0], "")):
        raise ImportError("not a folder of the study")
    if is_installed(path):
        raise ImportError("an installed package")
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_FromSource, SOURCE_SUFFIXES))


sys.path_hooks.insert(0, _find_from_source)


class UserCodeError(ImportError):
    """A file or a module that cannot be imported; the message has the reason and where it lies."""


def python_files(folder: Path) -> Iterator[Path]:
    """All that Python can import under a folder, behind links too, without hidden folders and installed packages."""
    been: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True):
        been.add(os.path.realpath(where))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_OURS
            and not (os.path.islink(path := os.path.join(where, name)) and os.path.realpath(path) in been)
        )
        found = (Path(where, name) for name in sorted(names) if name.endswith(_IMPORTED))
        yield from filter(Path.is_file, found)  # an editor's lock is a link to nowhere


def hash_of(files: Iterable[Path], folder: Path) -> str:
    """Of names and contents."""
    digest = hashlib.sha256()
    for path in files:
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))  # a name may be no text
    return digest.hexdigest()[:32]


def hash_now(files: Iterable[Path], folder: Path) -> str:
    """``hash_of``, for every run: files are read again only where the time or the size of one has changed."""
    stats = [(str(path), path.stat()) for path in files]
    return _hash_at(tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats), str(folder))


@lru_cache(maxsize=4)
def _hash_at(stamps: tuple[tuple[str, int, int], ...], folder: str) -> str:
    return hash_of((Path(path) for path, *_ in stamps), Path(folder))


def file_under(folder: Path, name: str) -> Path | None:
    """A file that belongs to a study. None elsewhere: what lies outside of the folder is in no run's key."""
    path = Path(os.path.normpath(folder / name))
    return path if path.is_relative_to(folder) and os.path.isfile(path) else None


def begin_session(folder: Path, session: str) -> None:
    """Forget the modules of earlier studies: a new session imports anew what stands in the files now."""
    global _session
    if _session == (str(folder), session):
        return
    for old in {str(folder), *((_session[0],) if _session else ())}:
        set_modules(old, {})
    _session = str(folder), session
    for path in [path for path in sys.path_importer_cache if path.startswith(str(folder))]:
        del sys.path_importer_cache[path]
    importlib.invalidate_caches()


def modules_of(folder: str) -> dict[str, ModuleType]:
    """The modules of a folder that are imported."""
    return {
        name: module
        for name, module in [*sys.modules.items()]
        if name.split(".")[0] not in _KEPT and name != "__main__" and _lies_under(module, folder)
    }


def set_modules(folder: str, modules: Mapping[str, ModuleType]) -> None:
    """Let these modules of a folder be imported, and no others: what is imported a second time acts a second time."""
    for name, module in {**modules_of(folder), **modules}.items():
        package, _, last = name.rpartition(".")
        inside = (
            vars(sys.modules[package]) if package in sys.modules else {}
        )  # ``from package import last`` looks there
        if name in modules:
            sys.modules[name] = module
            inside.update({last: module} if package else {})
        else:
            del sys.modules[name]
            inside.pop(last, None)


def _lies_under(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.abspath(file).startswith(os.path.join(folder, "")):
        return False
    return not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether a file belongs to a package that was installed, and is not edited where it lies."""
    return any(part in _NOT_OURS for part in Path(file).parts)


def use_folder(folder: Path) -> None:
    """Let modules of a folder be imported by name, before all others."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def load_file(path: Path) -> ModuleType:
    """The module of a file. Other files beside it can import it by its name, and so can processes that it starts."""
    use_folder(path.parent)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # A task called "random.py" must not take the place of Python's own module.
    taken = known is not None or (path.stem in sys.stdlib_module_names)
    name = f"study_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserCodeError(f"{told(error)}{place_of(error, path.parent)}") from error
    return module


def load_module(name: str, folder: Path) -> ModuleType:
    """A module by its name, of the folder or installed."""
    use_folder(folder)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserCodeError(told(error)) from error


def module_of(place: str, folder: Path) -> ModuleType:
    """The module of a file of the folder (``"mine.py"``), or of a name."""
    path = file_under(folder, place) if place.endswith(".py") else None
    return load_module(place, folder) if path is None else load_file(path)


def told(error: BaseException) -> str:
    """What was raised, on one line. An error of somebody's own may have no text at all."""
    try:
        text = " ".join(str(error).split())
    except Exception as failed:
        text = f"(its text raises {type(failed).__name__})"
    return f"{type(error).__name__}: {text}"


def place_of(error: BaseException, folder: Path) -> str:
    """`` (task.py, line 12)``: the folder's own last line that an error went through, else the last of all but the lab's."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # it says so itself
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.abspath(frame.filename).startswith(os.path.join(folder, ""))]
    told_of = own or [frame for frame in frames if not frame.filename.startswith(_LAB)]
    if not told_of:
        return ""
    frame = told_of[-1]
    return f" ({os.path.basename(frame.filename)}, line {frame.lineno})"
