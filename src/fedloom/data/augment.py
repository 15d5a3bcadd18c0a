"""`crop(pad=4) + flip + rotation(degrees=30)`: augmentation of a whole batch, from one generator.

An augmentation maps raw images `[B, C, H, W]`, before they are normalised, so that what it fills in
is black; each image has its own draw.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedloom.errors import BadInput
from fedloom.expression import parse
from fedloom.registry import Registry

Augmentation = Callable[[Tensor, Generator], Tensor]

augmentations = Registry("augmentation")


def augmentation(expression: str) -> Augmentation:
    """One function for a whole expression."""
    steps: list[Augmentation] = [augmentations.build(call) for call in parse(expression)]

    def augment(x: Tensor, gen: Generator) -> Tensor:
        for step in steps:
            x = step(x, gen)
        return x

    return augment


@augmentations
def crop(pad: int = 4) -> Augmentation:
    """A window of the image's own size, anywhere in the image padded by `pad` on all sides."""
    if not isinstance(pad, int) or pad < 1:
        raise BadInput(f"crop's pad is a whole number of pixels above zero, not {pad!r}")

    def augment(x: Tensor, gen: Generator) -> Tensor:
        b, _, h, w = x.shape
        top, left = torch.randint(0, 2 * pad + 1, (2, b), generator=gen)
        windows = F.pad(x, (pad, pad, pad, pad)).unfold(2, h, 1).unfold(3, w, 1)
        return windows[torch.arange(b), :, top, left]

    return augment


@augmentations
def flip(p: float = 0.5) -> Augmentation:
    """Left and right exchanged with probability `p`."""
    if not isinstance(p, int | float) or not 0 <= p <= 1:
        raise BadInput(f"flip's p is a probability, not {p!r}")

    def augment(x: Tensor, gen: Generator) -> Tensor:
        chosen = (torch.rand(len(x), generator=gen) < p).nonzero().squeeze(1)
        return x.index_copy(0, chosen, x.index_select(0, chosen).flip(-1))

    return augment


@augmentations
def rotation(degrees: float = 30.0) -> Augmentation:
    """An angle drawn uniformly from -degrees to degrees."""
    if not isinstance(degrees, int | float) or degrees < 0:
        raise BadInput(f"rotation's degrees are a number of at least zero, not {degrees!r}")

    def augment(x: Tensor, gen: Generator) -> Tensor:
        return rotate(x, (torch.rand(len(x), generator=gen) * 2 - 1) * degrees)

    return augment


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Images `[B, C, H, W]` turned counter-clockwise about their centre, bilinear, black outside.

    >>> rotate(torch.arange(4.0).view(1, 1, 2, 2), torch.tensor([90.0])).round().int().tolist()
    [[[[1, 3], [0, 2]]]]
    """
    h, w = x.shape[-2:]
    turn = torch.deg2rad(degrees.float())
    cos, sin, none = turn.cos(), turn.sin(), torch.zeros_like(turn)
    # The grid's axes both run from -1 to 1, hence the aspect ratio beside the sine.
    rows = [torch.stack([cos, -sin * h / w, none], 1), torch.stack([sin * w / h, cos, none], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, mode="bilinear", align_corners=False)
