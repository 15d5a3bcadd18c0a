"""Starting files for methods, models and data of one's own, each with a test that passes."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fedloom.errors import BadInput, UnknownName
from fedloom.files import write_atomic

KINDS = ("method", "model", "data")


def write_start(kind: str, name: str, folder: Path) -> list[Path]:
    """Write `name.py` and `test_name.py`; nothing that exists is written over.

    The templates call the thing `my_method`, `my_model` or `my_data`.
    """
    if kind not in KINDS:
        raise UnknownName("kind of starting file", kind, KINDS)
    name = name.replace("-", "_").lower()
    _check_form(kind, name)
    template = f"my_{kind}"
    paths = [folder / f"{name}.py", folder / f"test_{name}.py"]
    for path in paths:
        if path.exists():
            raise BadInput(f"{path} is there already; choose another name or --out")
    _check_free(kind, name)  # after the files: one in this folder may be a module for Python, too
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, source in zip(paths, (f"{kind}.py.txt", f"test_{kind}.py.txt"), strict=True):
            text = (files(__name__) / "templates" / source).read_text(encoding="utf-8")
            text = text.replace(template, name).replace(_class_name(template), _class_name(name))
            write_atomic(path, text)
    except OSError as e:
        raise BadInput(f"cannot write in {folder} ({e.strerror}); choose another --out") from e
    return paths


def _check_form(kind: str, name: str) -> None:
    """The name becomes a file and a module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} will not do; use letters, digits and '_', like my_{kind}")


def _check_free(kind: str, name: str) -> None:
    """The name becomes a module and an entry of a registry: neither may be there."""
    if find_spec(name) is not None:
        raise BadInput(f"{name!r} is the name of a Python module; choose another one")
    if name in _known(kind):
        thing = "data set" if kind == "data" else kind
        raise BadInput(f"there is a {thing} {name!r} already; choose another name")


def _known(kind: str) -> list[str]:
    """What the names of a kind stand for already."""
    if kind == "method":
        from fedloom.methods import register

        return list(register)
    if kind == "model":
        from fedloom.models import models

        return list(models)
    from fedloom.data.load import names

    return names()


def _class_name(name: str) -> str:
    """In capitals: `my_method` as `MyMethod`."""
    return "".join(word.capitalize() for word in name.split("_"))
