"""Pseudo-images: means of random images, of a client's own or of a public data set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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

    source = load(name, image_size=shape[-1])
    if len(shape) != 3 or len(source.shape) != 3:
        raise BadInput(
            f"proxy data must be images for a network that reads images; {name!r} has inputs of"
            f" shape {source.shape}, the network reads {shape}"
        )
    pool = federate(source, "iid", clients=1, split="merged(train=1.0)").client(0).train
    x = sample_means(pool, count, of, gen)
    if x.shape[1] != shape[0]:
        x = x.mean(1, keepdim=True).expand(-1, shape[0], -1, -1).contiguous()
    return x if x.shape[2:] == shape[1:] else F.interpolate(x, size=shape[1:], mode="bilinear")


def pooled(shares: list[Tensor], old: Tensor | None, count: int, gen: Generator) -> Tensor:
    """`count` images of all shares, in random order; where they are too few, old ones follow."""
    x = torch.cat(shares)
    x = x[torch.randperm(len(x), generator=gen)]
    return (x if old is None else torch.cat([x, old]))[:count]


def mixed(
    x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor], k: int, gen: Generator
) -> tuple[Tensor, Tensor]:
    """Each pseudo-image averaged with `k` random images of a batch, labels alike (FedBR, eq. 4).

    Labels of the batch are hard [n] or soft [n, K], as its loss uses them.
    """
    images, labels = batch
    if labels.dim() == 1:
        labels = F.one_hot(labels, y.shape[1]).to(y.dtype)
    rows = torch.randint(len(images), (len(x), k), generator=gen)
    return (x + images[rows].sum(1)) / (k + 1), (y + labels[rows].sum(1)) / (k + 1)
