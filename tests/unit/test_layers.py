"""The order of packages in docs/architecture.md holds: nobody imports what stands below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedloom"
STRANGERS = [{"data", "models"}, {"report", "loggers", "deploy"}]
"""Packages of which none imports another."""
Arrow = tuple[str, str]


def layers() -> dict[str, int]:
    """Package or module -> its line in the list of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = text.split("src/fedloom/\n", 1)[1].split("\nreproduce/", 1)[0]
    names = [match[1] for line in listed.splitlines() if (match := re.match(r"  (\S.*?)  ", line))]
    names.append(listed.splitlines()[-1].strip())  # the last line has no description
    return {
        name.strip().rstrip("/"): place
        for place, line in enumerate(dict.fromkeys(names))
        for name in line.split(",")
    }


def package_of(module: str) -> str:
    """The first name below fedloom, or `fedloom` for the package itself."""
    return module.split(".")[1] if "." in module else module


def imports(file: Path) -> Iterator[str]:
    """Every fedloom module that a file names in an import, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fedloom"))
        elif isinstance(node, ast.ImportFrom) and node.module == "fedloom":
            yield from (f"fedloom.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedloom."):
            yield str(node.module)


def arrows() -> dict[Arrow, str]:
    """(package, package it imports) -> a file that does so."""
    drawn: dict[Arrow, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        inside = file.relative_to(SOURCE)
        package = inside.parts[0].removesuffix(".py")
        for module in imports(file):
            if package_of(module) not in (package, "fedloom"):
                drawn.setdefault((package, package_of(module)), str(inside))
    return drawn


def test_every_package_has_its_place() -> None:
    packages = {p.name for p in SOURCE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    modules = {p.stem for p in SOURCE.glob("*.py")} - {"__init__"}
    assert packages | modules == set(layers())


def test_nobody_imports_what_stands_below_it() -> None:
    place = layers()
    upward = {
        f"{file}: {package} imports {other}"
        for (package, other), file in arrows().items()
        if package != "__init__" and place[other] > place[package]
    }
    assert not upward


def test_strangers_stay_strangers() -> None:
    for group in STRANGERS:
        met = {f"{file}: {a} imports {b}" for (a, b), file in arrows().items() if {a, b} <= group}
        assert not met


def test_mathematics_knows_tensors_only() -> None:
    """`ops` may name the type of a tree, and raise errors for users."""
    modules = {m for file in (SOURCE / "ops").glob("*.py") for m in imports(file)}
    allowed = ("fedloom.ops", "fedloom.errors", "fedloom.core.tree")
    assert not {m for m in modules if not m.startswith(allowed)}
