"""Pseudo-images: means of random images, of a client or of a public data set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedloom.core.data import Split
from fedloom.errors import BadInput
from fedloom.ops.soft_labels import soft_labels


def sample_means(
    split: Split, count: int, of: int, gen: Generator, balanced: bool = False
) -> Tensor:
    """`count` means of `of` rows each, drawn with replacement.

    Every row is equally likely to be drawn; with `balanced`, every class.
    """
    weight = torch.ones(len(split))
    if balanced:
        weight = 1 / torch.bincount(split.y).float()[split.y]
    rows = torch.multinomial(weight, count * of, replacement=True, generator=gen)
    x = split.x(rows)
    return x.view(count, of, *x.shape[1:]).mean(1)


def proxy_images(name: str, shape: tuple[int, ...], count: int, of: int, gen: Generator) -> Tensor:
    """`count` means of `of` images each of a public data set, in a network's input shape."""
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
    if x.shape[2:] != shape[1:]:
        x = F.interpolate(x, size=shape[1:], mode="bilinear")
    return x


def pool_images(shares: list[Tensor], old: Tensor | None, count: int, gen: Generator) -> Tensor:
    """`count` images of all clients' shares, in random order, and after them old images where the
    shares hold too few."""
    x = torch.cat(shares)
    x = x[torch.randperm(len(x), generator=gen)]
    if old is not None:
        x = torch.cat([x, old])
    return x[:count]


def mix_images(
    x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor], k: int, gen: Generator
) -> tuple[Tensor, Tensor]:
    """Each pseudo-image x with label y averaged with `k` random images of a batch and their labels
    (FedBR, eq. 4).

    The labels of the batch are hard [n] or soft [n, K], as its loss uses them.
    """
    images, labels = batch
    labels = soft_labels(labels, y.shape[1], like=y)
    rows = torch.randint(len(images), (len(x), k), generator=gen)
    return (x + images[rows].sum(1)) / (k + 1), (y + labels[rows].sum(1)) / (k + 1)
