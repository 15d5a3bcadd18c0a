"""A cell's federation, small: made-up rows of the same schema, divided as configured, then cut to
a few clients with a few rows each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedloom.data import FederatedData, Partition, Source, divide, federate
from fedloom.data.generated import like
from fedloom.data.partition import ClientRows
from fedloom.data.partition.draw import Ints
from fedloom.errors import FedloomError
from fedloom.models import build_model
from fedloom.runs.config import RunConfig
from fedloom.runs.encoder import encoded
from fedloom.runs.experiment import default_model

CLIENTS, NEWCOMERS = 2, 1
"""That train, and that are kept out of training where the configuration does so."""
TRAIN, OTHER = 4, 2
"""Rows of a client for training, and of each of its other splits."""
SHARED_TESTS = 2
ROWS_PER_CLASS = 12
_ROWS_PER_CLIENT = 40
"""With which a partition is tried first."""
_MOST_ROWS = 1_500_000
_SIDES = (16, 32, 64)
"""Sides of images that are tried in place of larger ones, the smallest first."""
_NO_INPUT = {"image": (1, 1, 1), "signal": (1, 1), "table": (1,), "text": (1,)}


def small_federation(config: RunConfig, size: int | None) -> FederatedData:
    """Few clients with few rows, as the configuration divides data; images have this side."""
    source = small_source(config, size)
    clients = CLIENTS + min(config.newcomers, NEWCOMERS)
    partition = _few(_divided(config, source), clients, len(source))
    data = federate(
        source,
        partition,
        seed=config.partition_seed,
        shift=config.shift,
        augment=config.augment,
    )
    shared = dict(
        list(data.partition.shared.items())[:SHARED_TESTS]
    )  # a shift makes a set an angle
    return replace(data, partition=replace(data.partition, shared=shared))


def small_source(config: RunConfig, size: int | None) -> Source:
    """Made-up rows of the configured data."""
    source = like(config.data, ROWS_PER_CLASS, image_size=size)
    inputs = source if config.encoder is None else encoded(source, config.encoder)
    return inputs.normalized(config.normalization)


def smallest_side(config: RunConfig) -> int | None:
    """The side of images on which the configured network is played: as configured, or the smallest
    that the network takes where that is large; None where the data has no images or keeps its
    own side."""
    own = like(config.data, 1).shape
    side = config.image_size or (own[-1] if len(own) == 3 else 0)
    for smaller in _SIDES:
        if smaller < side and _takes(config, smaller):
            return smaller
    return config.image_size


def _takes(config: RunConfig, side: int) -> bool:
    """Whether all networks of a configuration can be built for images of this side."""
    source = like(config.data, 1, image_size=side)
    try:
        if config.encoder is not None:
            source = encoded(source, config.encoder)
        for word in config.model.split("|"):
            name = word.strip()
            spec = default_model("image", source.shape) if name == "auto" else name
            build_model(spec, source.shape, source.classes, seed=0)
    except (FedloomError, RuntimeError, ValueError, ZeroDivisionError):
        return False  # each network fails in its own way where nothing is left of an image
    return True


def _divided(config: RunConfig, source: Source) -> Partition:
    """The configured partition of as many copies of the rows as it needs: clients of 600 rows are
    not to be had of a hundred rows."""
    copies = math.ceil(_ROWS_PER_CLIENT * (config.clients or CLIENTS) / len(source))
    while True:
        try:
            return divide(
                _repeated(source, copies),
                config.partition,
                config.clients,
                config.partition_seed,
                config.split,
            )
        except FedloomError:
            copies *= 4
            if copies * len(source) > _MOST_ROWS:
                raise


def _repeated(source: Source, copies: int) -> Source:
    """The rows several times, with nothing for an input: a partition does not look at it."""
    rows = np.tile(np.arange(len(source)), copies)
    return replace(
        source,
        x=np.zeros((len(rows), *_NO_INPUT[source.kind]), source.x.dtype),
        y=source.y[rows],
        official_test=None if source.official_test is None else source.official_test[rows],
        domain=None if source.domain is None else source.domain[rows],
        user=None if source.user is None else source.user[rows],
        path=None,
    )


def _few(partition: Partition, count: int, rows: int) -> Partition:
    """The first clients and the last one, with some of the rows of each; rows beyond the source are
    copies of those within it."""
    kept = [*range(min(len(partition), count) - 1), len(partition) - 1]
    clients = [partition.clients[i] for i in kept]
    return Partition(
        [
            ClientRows(
                _some(client.train, TRAIN, rows),
                _some(client.val, OTHER, rows),
                _some(client.test, OTHER, rows),
            )
            for client in clients
        ],
        {name: _some(shared, OTHER, rows) for name, shared in partition.shared.items()},
        names=tuple(_of(partition.names, kept)),
    )


def _some(rows: Ints, count: int, limit: int) -> Ints:
    """So many rows, evenly out of all, so that most classes stay."""
    spaced = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)
    return np.sort(rows[spaced] % limit)


def _of(names: tuple[str, ...], kept: Iterable[int]) -> list[str]:
    return [names[i] for i in kept] if names else []
