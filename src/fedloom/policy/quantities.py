"""Sizes and hours as an operator writes them: "200 MB", "22:00-06:00"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time
from typing import Self

from fedloom.errors import BadInput

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_HOURS = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")


def size(value: int | str) -> int:
    """Bytes, from a number or from text with a unit.

    >>> size("200 MB"), size("1.5 KiB"), size(10)
    (200000000, 1536, 10)
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadInput(f"{value!r} is no size; write bytes, or text such as '200 MB'")
    match = _SIZE.fullmatch(str(value))
    if match is None or match[2].upper() not in _UNITS:
        raise BadInput(f"{value!r} is no size; write bytes, or text such as '200 MB'")
    return int(float(match[1]) * _UNITS[match[2].upper()]) if match[2] else int(float(match[1]))


def size_text(number: float) -> str:
    """A number of bytes for people.

    >>> size_text(200_000_000), size_text(12)
    ('200 MB', '12 B')
    """
    for unit in ("TB", "GB", "MB", "KB"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.4g} {unit}"
    return f"{int(number)} B"


@dataclass(frozen=True)
class Hours:
    """A stretch of the day, which may go over midnight; from its first minute to before its last.

    >>> night = Hours.read("22:00-06:00")
    >>> time(23, 0) in night, time(6, 0) in night
    (True, False)
    """

    begin: time
    end: time

    @classmethod
    def read(cls, text: str) -> Self:
        """From `22:00-06:00`."""
        match = _HOURS.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            hours = cls(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4])))
        except ValueError:
            raise BadInput(
                f"hours = {text!r} is no stretch of the day; write '22:00-06:00'"
            ) from None
        if hours.begin == hours.end:
            raise BadInput(f"hours = {text!r} begins when it ends; leave it out for the whole day")
        return hours

    def __contains__(self, moment: time) -> bool:
        if self.begin < self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end
