"""A pretrained network that stays as it is, run once over the data: its outputs are the inputs.

What never changes need not be computed in every round, at every test and by every run. It is kept
in the cache folder, beside the data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedloom.core.net import Net
from fedloom.core.threads import one_thread
from fedloom.core.tree import Tree
from fedloom.data import Source
from fedloom.data.cache import entry
from fedloom.data.source import Kind, cached
from fedloom.errors import BadInput, UnknownName
from fedloom.models import build_model
from fedloom.models.pretrained import PRETRAINED, pretrained_weights
from fedloom.models.weights import fill
from fedloom.runs.config import RunConfig

_ROWS = 64
"""That go through the network at a time."""


def through_encoder(source: Source, config: RunConfig) -> Source:
    """The rows as the configured encoder makes them; as they are where none is configured."""
    encoder = config.encoder
    if encoder is None:
        return source
    for key in ("augment", "shift"):
        if getattr(config, key) is not None:
            raise BadInput(
                f"{key} = {getattr(config, key)!r} changes images, and with encoder ="
                f" {encoder!r} a run sees none; leave one of the two out"
            )
    weights, sha256 = pretrained_weights(_parsed(encoder)[0])
    folder = entry(source.name, source.fingerprint, encoder, sha256, torch.__version__)
    outputs = cached(folder, lambda _: encoded(source, encoder, weights))
    return outputs.described_as(source).normalized(config.normalization)


def encoded(source: Source, encoder: str, weights: Tree | None = None) -> Source:
    """Every row's output at the encoder's part, of pixels from 0 to 1; without weights by drawn
    ones, which is enough to try settings."""
    if source.kind != "image" or source.x.dtype != np.uint8:
        raise BadInput(f"encoder = {encoder!r} takes images with pixels of one byte; leave it out")
    net, part = _network(encoder, source.shape, source.classes)
    if weights is not None:
        fill(net, weights, "head.*", f"encoder = {encoder!r}")
    x = _outputs(net, part, source.x)
    return replace(source, x=x, kind=_kind(x.shape[1:]), path=None)


def form_of_inputs(
    kind: Kind, shape: tuple[int, ...], classes: int, encoder: str | None
) -> tuple[Kind, tuple[int, ...]]:
    """Kind and shape of what a run's networks see of such rows; needs neither rows nor weights."""
    if encoder is None:
        return kind, shape
    net, part = _network(encoder, shape, classes)
    encoded_shape = tuple(net.shape_of(part))
    return _kind(encoded_shape), encoded_shape


def _kind(shape: tuple[int, ...]) -> Kind:
    return "image" if len(shape) == 3 else "table"


def _network(encoder: str, shape: tuple[int, ...], classes: int) -> tuple[Net, str]:
    """The encoder for such images, and its part whose outputs are wanted."""
    name, part = _parsed(encoder)
    net = build_model(f"{name}(stages=fine)", shape, classes, seed=0)
    parts = [stage for stage in net.reads if stage != net.logits]
    if part not in parts:
        raise UnknownName(f"part of {name}", part, parts)
    return net, part


def _parsed(encoder: str) -> tuple[str, str]:
    """Network and part."""
    name, _, part = encoder.partition("/")
    if name not in PRETRAINED:
        raise UnknownName("pretrained network", name, PRETRAINED)
    return name, part


@torch.no_grad()
def _outputs(net: Net, part: str, images: np.ndarray) -> np.ndarray:
    x = np.empty((len(images), *net.shape_of(part)), np.float32)
    weights = net.tree()
    with one_thread():
        for start in range(0, len(images), _ROWS):
            rows = slice(start, start + _ROWS)
            pixels = torch.from_numpy(np.array(images[rows])).float() / 255
            x[rows] = net(weights, pixels, want=part)[part].numpy()
    return x
