"""Random layers made repeatable: what a model draws for one row, it uses for every row.

Some methods predict by the mean over random samples (FedCR, FedSR). A run draws them anew for each
row it tests. Outside of a run a row must get the same answer every time, alone or among others, and
a file of another format knows nothing of torch's random numbers. So they are drawn once per model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from fedloom.errors import BadInput

_OF_SIZES = (torch.randn, torch.rand)
_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_OTHERS = {
    torch.normal,
    torch.bernoulli,
    torch.multinomial,
    torch.poisson,
    torch.randint,
    torch.randperm,
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.bernoulli_,
    Tensor.exponential_,
    Tensor.random_,
}
"""Draws that are not kept: which numbers belong to which row cannot be seen from their call."""


class FixedDraws(TorchFunctionMode):
    """Inside, the i-th call that draws gets the i-th of these tensors [1, ...], for all rows.

    With a generator, calls beyond the last are drawn by it and noted.
    """

    def __init__(self, drawn: list[Tensor], generator: Generator | None = None) -> None:
        super().__init__()
        self.drawn, self._generator = drawn, generator
        self._next = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LIKE:
            like: Tensor = args[0]
            return self._draw(_LIKE[func], like.shape, like.dtype, like.device)
        if func in _OF_SIZES:
            sizes = args[0] if args and isinstance(args[0], Sequence) else args
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            return self._draw(func, sizes, dtype, kwargs.get("device"))
        if func in _OTHERS:
            raise BadInput(
                f"the method's predict draws by {func.__name__}, so that a row would get another"
                " answer every time; draw with torch.randn or torch.rand, rows first"
            )
        return func(*args, **kwargs)

    def _draw(self, func: Any, sizes: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
        place, self._next = self._next, self._next + 1
        if self._generator is not None and place == len(self.drawn):
            self.drawn.append(func(1, *sizes[1:], generator=self._generator, dtype=dtype))
        return self.drawn[place].to(device).expand(*sizes)


def draws_of(
    predict: Callable[[Tensor], Tensor], row: Tensor, generator: Generator
) -> list[Tensor]:
    """All that a prediction of one row [1, ...] draws."""
    drawn: list[Tensor] = []
    with FixedDraws(drawn, generator):
        predict(row)
    return drawn
