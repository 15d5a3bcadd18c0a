"""Data sets of one's own by name: functions that a file, module or package registers.

@fl.register_data
def hospitals(year: int = 2020) -> fl.Source: ...

fedloom run --import hospitals.py --data 'hospitals(year=2021)'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedloom.data.hub import KNOWN
from fedloom.data.known import EMBEDDED
from fedloom.errors import BadInput, UnknownName
from fedloom.expression import parse_one
from fedloom.registry import Registry, squash

_OWN = {squash(name) for name in (EMBEDDED, *KNOWN)}


class DataSets(Registry):
    """Functions that return a `Source`, a `FederatedData`, or whatever else `load` takes."""

    def add(self, name: str, entry: Callable[..., Any]) -> None:
        if squash(name) in _OWN:
            raise BadInput(f"{name!r} is a data set of fedloom itself; choose another name")
        super().add(name, entry)


register_data = DataSets("data set", group="fedloom.data")
"""Decorator for data of one's own: a function that returns a `Source`, a `FederatedData` or
whatever else `load` takes; also the look-up of such functions."""


def registered(data: Any) -> Any:
    """What a registered function gives, in place of its name or expression; all else as it is."""
    if not isinstance(data, str) or squash(data) in _OWN:
        return data
    try:
        call = parse_one(data)
    except BadInput:
        return data  # a path
    try:
        register_data.canonical(call.name)
    except UnknownName:
        return data  # a path, or misspelt
    return register_data.build(call)
