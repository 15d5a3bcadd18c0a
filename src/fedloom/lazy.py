"""Packages that import their names when they are first used.

A package's stub (`__init__.pyi`) lists its names, one import each. Type checkers and editors read
it as it stands; `attach` reads the same file, so that the names are written once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that has a stub.

    A public function may not be called like the module it is in: Python sets the module as the
    package's attribute when anybody imports it.
    """

    @cache
    def homes() -> dict[str, str]:
        return names_in_stub(package)

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes()[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes()[name]), name)

    return get, lambda: sorted(homes())


def names_in_stub(package: str) -> dict[str, str]:
    """Name -> the module it is imported from, the package itself for a subpackage."""
    import ast  # not at the top: most processes never look a name up

    source = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    lines = ast.parse(source.read_text(encoding="utf-8")).body
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in imports for alias in line.names}
