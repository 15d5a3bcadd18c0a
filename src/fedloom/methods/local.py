"""Local: every client trains alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Every client trains its own model on its own data; the yardstick of taking part.

    Each round::

        client i  w_i <- E epochs of SGD on its own data, from its own w_i

    All clients begin with the same random model. The DualFed paper calls this "SingleSet".

    Leaves the client: nothing.

    >>> Local().shared
    ''
    """

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "baseline"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_client_noise: ClassVar[str] = "it sends nothing, so there is nothing to hide"
    against_example_noise: ClassVar[str] = "it sends nothing, so there is nothing to hide"
    shared: str = ""
