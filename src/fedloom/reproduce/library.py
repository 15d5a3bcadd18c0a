"""Where the tables are: `reproduce/PAPER/TABLE.toml` here, or of the checkout of fedloom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fedloom.errors import BadInput, suggestion

PAPERS = {
    "dbe": "DBE",
    "fedbr": "FedBR",
    "dualfed": "DualFed",
    "fedcr": "FedCR",
    "fedpac": "FedPAC",
}
"""Folder -> the paper."""
_CHECKOUT = Path(__file__).parents[3] / "reproduce"


def tables_folder(folder: Path | None = None) -> Path:
    """The folder of the papers' folders: the one named, the one below the working folder, or that
    of the checkout which this package was installed from."""
    if folder is not None:
        return folder
    places = [Path("reproduce"), _CHECKOUT]
    for place in places:
        if any((place / paper).is_dir() for paper in PAPERS):
            return place
    raise BadInput(
        "the papers' tables are in the folder reproduce of fedloom's repository; run this command"
        " in a clone of it, or give the path of a table's TOML file"
    )


def all_tables(folder: Path) -> list[Path]:
    """Every table, paper by paper: tables before figures, the second before the tenth."""
    return [
        path
        for paper in PAPERS
        for path in sorted((folder / paper).glob("*.toml"), key=_place_in_paper)
    ]


def _place_in_paper(path: Path) -> tuple[bool, int, str]:
    number = re.search(r"\d+", path.stem)
    return path.stem.startswith("figure"), int(number[0]) if number else 0, path.stem


def find_tables(names: Iterable[str], folder: Path | None = None) -> list[Path]:
    """The files of tables (`fedpac/table1`), whole papers (`fedpac`) or paths."""
    return [path for name in names for path in _named(name, folder)]


def _named(name: str, folder: Path | None) -> list[Path]:
    if name.endswith(".toml"):
        return [Path(name)]
    home, name = tables_folder(folder), name.lower()
    known = {f"{path.parent.name}/{path.stem}": path for path in all_tables(home)}
    if name in known:
        return [known[name]]
    of_paper = [path for id, path in known.items() if id.split("/")[0] == name]
    if not of_paper:
        raise BadInput(f"there is no table {name!r} in {home}{suggestion(name, known)}")
    return of_paper
