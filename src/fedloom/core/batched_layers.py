"""Layers of several clients as one computation, with the bits that each client's own layer has.

A batched product equals the single ones only where it runs the same kernel with the same
accumulation, which is why a linear layer becomes one `baddbmm` (vmap would add the bias afterwards).
What differs by the order of a sum differs in many numbers at once, and `engines.blocks` sees that
when it compares. What differs by a number's place in a tensor is too rare to be seen in a trial, and
is computed client by client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

POSITIONLESS = frozenset(
    {nn.Sequential, nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Flatten, nn.Identity}
)
"""Layers that compute a number alike wherever it stands in a tensor. On a CPU most others do not:
the last few numbers, which fill no vector register, go through another sigmoid, and a few in a
hundred of those come out otherwise. Layers of fedloom's own say `side_by_side = True`: they are made
of sums, products, views and `CLIENT_BY_CLIENT`."""
CLIENT_BY_CLIENT = frozenset({F.softplus})
"""Functions that such a layer may use all the same: each client's numbers go through them alone."""


def batchable(stage: nn.Module, device: torch.device) -> bool:
    """Can the clients' copies of a stage be run as one? Layers that draw have a stream per client;
    BatchNorm changes its statistics in place."""
    if device.type == "cpu":
        return all(
            type(m) in POSITIONLESS or getattr(m, "side_by_side", False) is True
            for m in stage.modules()
        )
    return not any(
        isinstance(m, _DropoutNd | _BatchNorm) or getattr(m, "draws", False) is True
        for m in stage.modules()
    )


def side_by_side(layer: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`vmap` over the first dimension of all arguments, with the kernels of a single client."""
    with _SingleKernels():
        return vmap(layer)(*arguments)


class _SingleKernels(TorchFunctionMode):
    """Under vmap, a linear layer with its bias is one batched product, as it is one product alone.

    Left to itself vmap multiplies and adds afterwards, which rounds once more where the product is
    accumulated in pieces.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear and len(args) == 3 and args[2] is not None and args[0].ndim >= 2:
            x, weight, bias = args
            rows = x.flatten(0, -2)  # as the single layer does with more dimensions
            flat: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
            return flat if x.ndim == 2 else flat.unflatten(0, x.shape[:-1])
        if func in CLIENT_BY_CLIENT:
            call = partial(func, **(kwargs or {}))
            return _ClientByClient.apply(call, *args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """`F.linear` with a batching rule of its own."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass  # differentiated where it is batched, never here

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return _Linears.apply(x, weight, bias), 0  # type: ignore[no-untyped-call]


class _Linears(torch.autograd.Function):
    """Linear layers side by side: x [B, n, i], weight [B, o, i], bias [B, o].

    The products of the single layer's passes; autograd's own for `baddbmm` would lay out the
    weight's gradient the other way round, and norms would sum it in another order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.bmm(g, weight) if needs[0] else None,
            torch.bmm(g.transpose(1, 2), x) if needs[1] else None,
            g.sum(1) if needs[2] else None,
        )


class _ClientByClient(torch.autograd.Function):
    """A function of one tensor that each client's numbers go through alone."""

    @staticmethod
    def forward(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return call(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass  # differentiated where it is batched, never here

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Callable[[Tensor], Tensor], x: Tensor) -> Any:
        return torch.stack([call(one) for one in x.unbind(in_dims[1])]), 0
