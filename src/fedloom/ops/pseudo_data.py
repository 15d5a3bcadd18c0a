"""Pseudo-images: means of random images, of a client's own or of a public data set."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedloom.core.data import Split
from fedloom.errors import BadInput


def sample_means(
    split: Split, count: int, of: int, gen: Generator, balanced: bool = False
) -> Tensor:
    """`count` means of `of` rows drawn with replacement; balanced: every class equally likely."""
    weight = torch.ones(len(split))
    if balanced:
        weight = 1 / torch.bincount(split.y).float()[split.y]
    rows = torch.multinomial(weight, count * of, replacement=True, generator=gen)
    x = split.x(rows)
    return x.view(count, of, *x.shape[1:]).mean(1)


def proxy_images(name: str, shape: tuple[int, ...], count: int, of: int, gen: Generator) -> Tensor:
    """`count` means of `of` images of a known data set, brought to a network's input shape."""
    from fedloom.data import federate, load

    if len(shape) != 3:
        raise BadInput(f"proxy data {name!r} are images, the network reads inputs of shape {shape}")
    source = load(name, image_size=shape[-1])
    pool = federate(source, "iid", clients=1, split="merged(train=1.0)").client(0).train
    x = sample_means(pool, count, of, gen)
    if x.shape[1] != shape[0]:
        x = x.mean(1, keepdim=True).expand(-1, shape[0], -1, -1).contiguous()
    return x
