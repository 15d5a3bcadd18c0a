"""Whether a table's data is at hand, and where it would come from."""

from __future__ import annotations

from pathlib import Path

from fedloom.data.hub import hub_entry, mirror
from fedloom.data.known import EMBEDDED, known_name
from fedloom.data.options import Options
from fedloom.data.registry import register_data
from fedloom.errors import BadInput
from fedloom.expression import parse_one


def data_name(data: str) -> str:
    """A data set without its options; a path as it is."""
    known = known_name(data, Options())
    return data if known is None else known[0]


def where_from(data: str) -> str:
    """Where data that is not at hand would be fetched from; empty where it is at hand."""
    known = known_name(data, Options())
    if known is None:
        here = _is_registered(data) or Path(data).expanduser().exists() or mirror(data)
        return "" if here else f"the path {data}"
    name, options = known
    if name == EMBEDDED or mirror(name, options.subset) is not None:
        return ""
    repository = hub_entry(name, options).repo
    folder = f"a folder {name} in FEDLOOM_DATA"
    return folder if repository is None else f"hub repository {repository}, or {folder}"


def _is_registered(data: str) -> bool:
    try:
        return parse_one(data).name in register_data
    except BadInput:
        return False  # no expression, and so a path
