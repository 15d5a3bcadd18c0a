"""A pretrained network that stays as it is, run once over the data: its outputs are the inputs.

What never changes need not be computed in every round, at every test and by every run. It is kept
in the cache folder, beside the data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedloom.core.threads import one_thread
from fedloom.core.tree import Tree
from fedloom.data import Source
from fedloom.data.cache import entry
from fedloom.data.source import Kind, cached
from fedloom.errors import BadInput
from fedloom.models.fixed_encoder import FixedEncoder, network_and_part
from fedloom.models.pretrained import pretrained_weights
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
    weights, sha256 = pretrained_weights(network_and_part(encoder)[0])
    folder = entry(source.name, source.fingerprint, encoder, sha256, torch.__version__)
    outputs = cached(folder, lambda _: encoded(source, encoder, weights))
    outputs = replace(outputs.described_as(source), images=source.shape)
    return outputs.normalized(config.normalization)


def encoded(source: Source, expression: str, weights: Tree | None = None) -> Source:
    """Every row's output at the encoder's part, of pixels from 0 to 1; without weights by drawn
    ones, which is enough to try settings."""
    if source.kind != "image" or source.x.dtype != np.uint8:
        raise BadInput(
            f"encoder = {expression!r} takes images with pixels of one byte; leave it out"
        )
    encoder = FixedEncoder.of(expression, source.shape)
    if weights is not None:
        encoder.filled(weights, expression)
    x = _outputs(encoder, source.x)
    return replace(source, x=x, kind=_kind(x.shape[1:]), path=None)


def form_of_inputs(
    kind: Kind, shape: tuple[int, ...], encoder: str | None
) -> tuple[Kind, tuple[int, ...]]:
    """Kind and shape of what a run's networks see of such rows; needs neither rows nor weights."""
    if encoder is None:
        return kind, shape
    encoded_shape = FixedEncoder.of(encoder, shape).shape
    return _kind(encoded_shape), encoded_shape


def _kind(shape: tuple[int, ...]) -> Kind:
    return "image" if len(shape) == 3 else "table"


@torch.no_grad()
def _outputs(encoder: FixedEncoder, images: np.ndarray) -> np.ndarray:
    x = np.empty((len(images), *encoder.shape), np.float32)
    weights = encoder.weights
    with one_thread():
        for start in range(0, len(images), _ROWS):
            rows = slice(start, start + _ROWS)
            x[rows] = encoder(weights, torch.from_numpy(np.array(images[rows]))).numpy()
    return x
