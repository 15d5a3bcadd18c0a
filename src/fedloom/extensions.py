"""Code from elsewhere: files and modules that register methods, models or data when imported.

A file is imported as Python itself would do it: its folder goes to the end of the path, and its
module is called what the file is called. Worker processes get the same path, so they find a class
of such a file under the same name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.errors import BadInput, suggestion

log = logging.getLogger("fedloom")

PIN = "#sha256="
"""Between a file and the digest of its content, in what a run records."""


@dataclass(frozen=True)
class Extension:
    """A file that was imported, and what was in it then."""

    module: str
    path: Path
    sha256: str

    def __str__(self) -> str:
        return f"{self.path}{PIN}{self.sha256}"


@dataclass(frozen=True)
class Place:
    """Something by where it is: `net.py:Net`, `package.module:Net(width=8)`."""

    where: str
    what: str
    """A name or call."""

    @classmethod
    def of(cls, text: str) -> Place | None:
        """None of an expression that says no place.

        >>> Place.of("nets/mine.py:Net(width=8)")
        Place(where='nets/mine.py', what='Net(width=8)')
        >>> Place.of("timm_encoder(name='a:b')") is None
        True
        """
        place = re.fullmatch(r"([^()]+):([A-Za-z_]\w*(?:\(.*\))?)", text.strip())
        return None if place is None else cls(place[1], place[2])


_imported: dict[str, Extension] = {}
"""The files that this process imported, by their stems."""
_modules: dict[str, None] = {}
"""The modules that it imported by name, in their order."""


def load_extensions(specs: Iterable[str]) -> tuple[str, ...]:
    """Import files (`my_method.py`) and modules (`package.module`); returns what a run records.

    Of a file that is its absolute path and digest. Such a record is accepted too, and refused
    when the file has changed since.
    """
    return tuple(dict.fromkeys(load_extension(spec)[1] for spec in specs))


def load_extension(spec: str) -> tuple[str, str]:
    """Import one of them: the name by which `attribute` finds it, and what a run records."""
    if not is_file(spec):
        _import(spec, spec)
        _modules[spec] = None
        return spec, spec
    path, _, pinned = spec.partition(PIN)
    extension = _recorded(Path(path), pinned) if pinned else _file(Path(path).expanduser())
    return extension.path.stem, str(extension)


def loaded() -> tuple[str, ...]:
    """All that this process imported, as another process has to."""
    return (*map(str, _imported.values()), *_modules)


def is_file(spec: str) -> bool:
    """Is this a file, and not the name of a module?"""
    return spec.partition(PIN)[0].endswith(".py")


def plain_path(spec: str) -> str:
    """A file's or folder's whole path, without a digest; the name of a module as it is.

    >>> plain_path("/a/b/../net.py#sha256=0f"), plain_path("package.module")
    ('/a/net.py', 'package.module')
    """
    path = spec.partition(PIN)[0]
    return str(Path(path).expanduser().resolve()) if is_file(spec) or "/" in path else path


def source_of(spec: str) -> tuple[str, Path | None]:
    """The name by which an import is found where its file lies on the path, and that file."""
    path = Path(spec.partition(PIN)[0])
    return (path.stem, path) if is_file(spec) else (spec, None)


def replaced(recorded: Iterable[str], given: Iterable[str]) -> tuple[str, ...]:
    """What a run imported, with files that are named anew in place of their old selves.

    So a run can go on where a file was moved, or changed on purpose, which is worth a warning.
    """
    new = {_file_name(spec): spec for spec in given}
    result = []
    for spec in recorded:
        pinned = spec.partition(PIN)[2]
        again = new.pop(_file_name(spec), spec)
        if pinned and again != spec and Path(again).is_file() and _digest(Path(again)) != pinned:
            log.warning("the run began with another %s; what follows is by the new one", again)
        result.append(again)
    return (*result, *new.values())


def attribute(module: str, name: str) -> Any:
    """A class or function of a module, or of a file that was imported, by the file's stem."""
    imported_as = _imported[module].module if module in _imported else module
    _import(imported_as, module)
    names = vars(sys.modules[imported_as])
    if name not in names:
        public = [key for key in names if not key.startswith("_")]
        raise BadInput(f"{module} has no {name!r}{suggestion(name, public)}")
    return names[name]


def _file_name(spec: str) -> str:
    return Path(spec.partition(PIN)[0]).name


def _file(path: Path) -> Extension:
    """Import a file that somebody named."""
    if not path.is_file():
        raise BadInput(
            f"there is no file {path} to import; give a file.py, or the name of a module"
        )
    path = path.resolve()
    wanted = Extension(path.stem, path, _digest(path))
    if path.stem in _imported:
        return _same(_imported[path.stem], wanted)
    if not path.stem.isidentifier():
        raise BadInput(f"{path} cannot be imported under that name; call it like my_method.py")
    if (module := _module_of(path)) is None:
        module = path.stem
        _check_free(path)
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        importlib.invalidate_caches()  # the file may be younger than the last look at its folder
        _import(module, str(path))
    _imported[path.stem] = Extension(module, path, wanted.sha256)
    return _imported[path.stem]


def _recorded(path: Path, sha256: str) -> Extension:
    """Import a file that a run recorded, as it was then."""
    held = _imported.get(path.stem)
    if held is not None and held.sha256 == sha256:
        return held
    if not path.is_file():
        raise BadInput(
            f"the run imported {path}, which is not there; say where it is now:"
            f" --import {path.name}"
        )
    if (now := _digest(path)) != sha256:
        raise BadInput(
            f"{path} is not what the run began with (sha256 {now[:12]}, was {sha256[:12]});"
            f" restore it, or accept it as it is now: --import {path}"
        )
    return _file(path)


def _same(held: Extension, wanted: Extension) -> Extension:
    """What this process imported already, if that is what is wanted."""
    if held.path != wanted.path:
        raise BadInput(
            f"two files to import are called {wanted.path.name} ({held.path} and {wanted.path});"
            " rename one of them"
        )
    if held.sha256 != wanted.sha256:
        raise BadInput(
            f"{held.path} changed after this process imported it; start Python (or the kernel) anew"
        )
    return held


def _module_of(path: Path) -> str | None:
    """The module that is this file already: a script that runs, or what it imported."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).name == path.name and Path(file).resolve() == path:
            return name
    return None


def _check_free(path: Path) -> None:
    """Refuse a file that would hide a module of another package, or be hidden by it."""
    other = importlib.util.find_spec(path.stem)
    if other is not None and (other.origin is None or Path(other.origin).resolve() != path):
        raise BadInput(
            f"{path} is called like the module {path.stem!r} ({other.origin or 'a package'});"
            " rename it"
        )


def _import(module: str, shown: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            raise BadInput(_failure(shown, e)) from e
        raise BadInput(
            f"there is no module {module!r} to import; a file is named with its .py,"
            " a package must be installed"
        ) from None
    except Exception as e:  # whatever somebody's code raises
        raise BadInput(_failure(shown, e)) from e


def _failure(shown: str, error: Exception) -> str:
    """Where and why an import failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == shown]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    where = f", line {line}" if line else ""
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"cannot import {shown}{where} ({type(error).__name__}: {reason}); repair it"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
