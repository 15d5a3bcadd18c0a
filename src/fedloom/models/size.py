"""How large networks are, counted while they are made: a stranger may have named them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch.nn.modules import module as hooks

from fedloom.errors import FedloomError

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_MODULES = 100_000
"""Parts that networks are made of: each takes time and memory, however few numbers it has."""


class TooLarge(FedloomError):
    """Networks that are larger than whoever builds them permits."""


@contextmanager
def counted(most: int, permitted: str = "this site permits; choose smaller ones") -> Iterator[None]:
    """Raises `TooLarge` as soon as networks are made of more numbers than this, all of them
    together; also where whoever makes them passes over that error. `permitted` says who sets the
    bound, and what to do."""
    numbers = modules = 0

    def check() -> None:
        if numbers > most:
            raise TooLarge(f"the networks have more than the {most:,} numbers {permitted}")
        if modules > MOST_MODULES:
            raise TooLarge(
                f"the networks have more than {MOST_MODULES:,} parts; choose smaller ones"
            )

    def count_numbers(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal numbers
        numbers += 0 if tensor is None else tensor.numel()
        check()

    def count_modules(module: nn.Module, name: str, part: nn.Module | None) -> None:
        nonlocal modules
        modules += 1
        check()

    with ExitStack() as stack:
        handles = (
            hooks.register_module_parameter_registration_hook(count_numbers),
            hooks.register_module_buffer_registration_hook(count_numbers),
            hooks.register_module_module_registration_hook(count_modules),
        )
        for handle in handles:
            stack.callback(handle.remove)
        try:
            yield
        finally:
            check()
