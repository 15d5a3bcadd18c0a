"""Layers of several clients as one computation, with the bits that each client's own layer has.

A batched product equals the single ones only where it runs the same kernel with the same
accumulation, which is why a linear layer is one `baddbmm` and its gradients are the single layer's
products. What differs by the order of a sum differs in many numbers at once, and `engines.blocks`
sees that when it compares. What differs by a number's place in a tensor is too rare to be seen in a
trial: on a CPU the last few numbers, which fill no vector register, go through another sigmoid, and
a few in a hundred of those come out otherwise. So only layers without such functions are in the
table, or layers that compute them client by client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def side_by_side(layer: nn.Module, z: Tensor) -> Tensor:
    """The outputs [B, n, ...] of B clients' layers; the layer's tensors have the same dimension
    more. A layer that is not in the table has a method of this name."""
    if type(layer) in _BATCHED:
        return _BATCHED[type(layer)](layer, z)
    return layer.side_by_side(z)  # type: ignore[operator, no-any-return]


MOST_ROWS_OF_MEAN = 16
"""So many rows `means_of_losses` adds up as torch's mean does, which takes more in groups."""


def means_of_losses(rows: Tensor) -> Tensor:
    """The means of rows' cross-entropies, [B, n] -> [B], as the loss of each batch of at most
    `MOST_ROWS_OF_MEAN` rows averages them: one after the other, and the first row last.

    >>> means_of_losses(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    tensor([1.5000, 4.0000])
    """
    members, n = rows.shape
    member = torch.arange(members, device=rows.device).repeat_interleave(n)
    # The sums of `index_add_` go in order, unlike those of `sum`.
    return rows.new_zeros(members).index_add_(0, member, rows.roll(-1, 1).flatten()) / n


def has_batched_form(layer: nn.Module) -> bool:
    """Is there a `side_by_side` of the layer and all that is in it? Hooks on a layer are called
    by its own forward pass alone."""
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    own = callable(getattr(type(layer), "side_by_side", None))
    return own or (type(layer) in _BATCHED and all(map(has_batched_form, layer.children())))


def vmap_knows(layer: nn.Module) -> bool:
    """May `vmap` run the layer, on a device where places do not matter? Layers that draw have a
    stream per client; BatchNorm changes its statistics in place."""
    return not any(
        isinstance(m, _DropoutNd | _BatchNorm) or getattr(m, "draws", False) is True
        for m in layer.modules()
    )


def _linear(layer: nn.Linear, z: Tensor) -> Tensor:
    rows = z.flatten(1, -2)  # as the single layer does with more dimensions
    out: Tensor = _Linears.apply(rows, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return out if z.ndim == 3 else out.view(*z.shape[:-1], out.shape[-1])


def _chain(layers: nn.Sequential, z: Tensor) -> Tensor:
    for layer in layers:
        z = side_by_side(layer, z)
    return z


def _flatten(layer: nn.Flatten, z: Tensor) -> Tensor:
    start, end = (d + 1 if d >= 0 else d for d in (layer.start_dim, layer.end_dim))
    return z.flatten(start, end)


_BATCHED: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.Sequential: _chain,
    nn.Linear: _linear,
    nn.ReLU: lambda layer, z: F.relu(z, layer.inplace),
    nn.LeakyReLU: lambda layer, z: F.leaky_relu(z, layer.negative_slope, layer.inplace),
    nn.Flatten: _flatten,
    nn.Identity: lambda layer, z: z,
}
"""A class that inherits one of these may compute something else, and is not meant."""


class _Linears(torch.autograd.Function):
    """Linear layers side by side: x [B, n, i], weight [B, o, i], bias [B, o] or None.

    The products of the single layer's passes; autograd's own for `bmm` and `baddbmm` would lay out
    the weight's gradient the other way round, and norms would sum it in another order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.transpose(1, 2))
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
