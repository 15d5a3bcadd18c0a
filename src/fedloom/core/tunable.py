"""Ranges of hyper-parameters that are worth tuning, as methods and terms declare them.

tunable: ClassVar[Tunable] = {"mu": Log(1e-3, 10), "per": Choice(("batch", "pair"))}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.errors import BadInput


@dataclass(frozen=True)
class _Interval:
    """All numbers between two, both included."""

    low: float
    high: float
    _scale: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise BadInput(f"a range goes from a number to a larger one, not {self}")

    def __contains__(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    @property
    def ends(self) -> tuple[float, ...]:
        """The lowest and the highest."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g} .. {self.high:g}{self._scale}"


@dataclass(frozen=True)
class Linear(_Interval):
    """A number between two others, where differences count.

    >>> str(Linear(0, 1))
    '0 .. 1'
    """


@dataclass(frozen=True)
class Log(_Interval):
    """A number between two others, where ratios count: 0.01 to 0.1 is as far as 0.1 to 1.

    >>> str(Log(1e-3, 10))
    '0.001 .. 10 (log)'
    """

    _scale: ClassVar[str] = " (log)"

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise BadInput(f"a log range goes from a number above 0 to a larger one, not {self}")


@dataclass(frozen=True)
class Integer(_Interval):
    """A whole number, both ends included.

    >>> 3 in Integer(2, 5), 3.5 in Integer(2, 5)
    (True, False)
    """

    low: int
    high: int
    _scale: ClassVar[str] = " (whole)"

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int) and super().__contains__(value)


@dataclass(frozen=True)
class Choice:
    """One of a few values: words, numbers or truth values."""

    values: tuple[str | float | bool, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise BadInput(f"a choice is between two values or more, not {self.values!r}")

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    @property
    def ends(self) -> tuple[str | float | bool, ...]:
        """All of them."""
        return self.values

    def __str__(self) -> str:
        return " or ".join(map(str, self.values))


Range = Log | Linear | Integer | Choice
Tunable = Mapping[str, Range]
"""Field of a method or term -> where it is searched for; `lr` of a method is its learning rate."""
