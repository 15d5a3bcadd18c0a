"""What the package imports is what it declares: nothing comes only with another package."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_INSTALLED = {"timm": "timm"}
"""Module -> distribution, of extras that `dev` leaves out."""
USERS_OWN = {"pytest"}
"""Whoever calls what imports it has it: `fedloom.testing.parametrize_with_checks`."""


def test_every_imported_package_is_declared() -> None:
    """For its users: `dev` alone does not count."""
    distributions = packages_distributions()
    declared = {name.lower() for name in required()}
    for module, file in imported():
        names = distributions.get(module, [NOT_INSTALLED.get(module, "nothing installed")])
        assert {name.lower().replace("_", "-") for name in names} & declared, (
            f"{file.relative_to(ROOT)} imports {module} of {', '.join(names)}, which no entry of"
            " pyproject.toml requires"
        )


def imported() -> Iterator[tuple[str, Path]]:
    """Modules of other packages, by the name that stands first, with who imports them."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in names:
                module = name.split(".")[0]
                if module not in {"fedloom", *USERS_OWN, *sys.stdlib_module_names}:
                    yield module, file


def required() -> Iterator[str]:
    """Distributions that pyproject.toml names, but for those of `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    entries = [*project["dependencies"], *(e for k, v in extras.items() if k != "dev" for e in v)]
    for entry in entries:
        match = re.match(r"[A-Za-z0-9._-]+", entry)
        assert match is not None
        yield match[0].replace("_", "-")
