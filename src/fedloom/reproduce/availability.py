"""Whether a table's data is at hand, and where it would come from."""

from __future__ import annotations

from pathlib import Path

from fedloom.data.hub import KNOWN, mirror
from fedloom.data.known import EMBEDDED
from fedloom.data.registry import register_data
from fedloom.errors import BadInput
from fedloom.expression import parse_one
from fedloom.registry import squash


def where_from(data: str) -> str:
    """Where data that is not at hand would be fetched from; empty where it is at hand."""
    name = known_name(data)
    if name is None:
        here = _is_registered(data) or Path(data).expanduser().exists() or mirror(data)
        return "" if here else f"the path {data}"
    if name == EMBEDDED or mirror(name) is not None:
        return ""
    repository = KNOWN[name].repo
    folder = f"a folder {name} in FEDLOOM_DATA"
    return folder if repository is None else f"hub repository {repository}, or {folder}"


def known_name(data: str) -> str | None:
    """The known data set that an expression names; None: a path, or something registered."""
    written = _name(data)
    names = {squash(name): name for name in (EMBEDDED, *KNOWN)}
    return None if written is None else names.get(squash(written))


def _is_registered(data: str) -> bool:
    name = _name(data)
    return name is not None and name in register_data


def _name(data: str) -> str | None:
    """The name of an expression; None: it is none, and so a path."""
    try:
        return parse_one(data).name
    except BadInput:
        return None
