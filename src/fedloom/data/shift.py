"""`rotate(step=15) + permute_labels(groups=5)`: clients whose inputs or labels differ by client.

A shift is applied once. Turned images become rows of a new source in the cache, one for every
(row, angle) in use, so that training pays nothing per batch; label shifts are one small table.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from inspect import signature
from math import factorial
from pathlib import Path

import numpy as np
import torch

from fedloom.data import cache
from fedloom.data.augment import rotate as turn
from fedloom.data.partition.assignment import ClientRows, Partition
from fedloom.data.partition.draw import TRIES, Floats, Ints, positive, rng, whole
from fedloom.data.source import Source, cached
from fedloom.errors import BadInput
from fedloom.expression import parse
from fedloom.registry import Registry

shifts = Registry("shift")

_CHUNK = 1024  # images turned at a time


@dataclass(frozen=True)
class Shift:
    """What a shift asks for.

    `angles[i]` turns each of client i's rows (train, validation, test, in this order), in degrees
    counter-clockwise; each test set that belongs to no client is copied once for every one of
    `shared_angles`.
    """

    angles: tuple[Floats, ...] = ()
    shared_angles: tuple[float, ...] = ()
    label_maps: Ints | None = None  # [N, K]

    def then(self, other: Shift) -> Shift:
        """This shift and another one; labels are renamed by this one first."""
        if self.angles and other.angles:
            raise BadInput("a shift may turn the images once; leave one of the rotations out")
        a, b = self.label_maps, other.label_maps
        both = None if a is None or b is None else np.take_along_axis(b, a, axis=1)
        return Shift(
            self.angles or other.angles,
            self.shared_angles or other.shared_angles,
            both if both is not None else (b if a is None else a),
        )


@shifts
def rotate(step: float = 15.0, groups: int | None = None, *, sizes: tuple[int, ...]) -> Shift:
    """Client i sees its images turned by `step * i` degrees (FedBR's RotatedMNIST).

    With `groups`, by `step * (i mod groups)`: FedPAC's feature skew (C.10), which does not say by
    how much. Test sets that belong to no client are copied once for each angle.
    """
    positive(step=step)
    groups = len(sizes) if groups is None else groups
    whole(groups=groups)
    by_client = [step * (i % groups) % 360 for i in range(len(sizes))]
    angles = tuple(np.full(n, angle) for n, angle in zip(sizes, by_client, strict=True))
    return Shift(angles, tuple(dict.fromkeys(by_client)))


@shifts
def rotate_images(
    angles: int = 10, step: float = 15.0, alpha: float = 1.0, *, sizes: tuple[int, ...], seed: int
) -> Shift:
    """Each image is turned by one of 0, step, ..., with the client's own odds from Dir(alpha).

    FedBR's CIFAR-10. Deviation: its code draws the odds from a Dirichlet of 0.1 per angle where the
    paper says Dir(1.0); `alpha=0.1` gives the code's.
    """
    whole(angles=angles)
    positive(step=step, alpha=alpha)
    choices = step * np.arange(angles) % 360
    drawn = []
    for i, n in enumerate(sizes):
        gen = rng(seed, "rotate_images", i)
        drawn.append(gen.choice(choices, size=n, p=gen.dirichlet(np.full(angles, alpha))))
    return Shift(tuple(drawn), tuple(dict.fromkeys(choices.tolist())))


@shifts
def permute_labels(groups: int = 5, *, sizes: tuple[int, ...], classes: int, seed: int) -> Shift:
    """Clients of group i mod `groups` name the classes by their own permutation (FedPAC, Table 3).

    No two groups have the same one.
    """
    whole(groups=groups)
    gen, maps = rng(seed, "permute_labels"), dict[tuple[int, ...], None]()
    possible = groups <= factorial(min(classes, 20))
    for _ in range(TRIES + 100 * groups if possible else 0):
        if len(maps) == groups:
            break
        maps[tuple(gen.permutation(classes).tolist())] = None
    if len(maps) < groups:
        raise BadInput(f"{classes} classes have no {groups} unlike permutations; use fewer groups")
    table = np.array(list(maps), dtype=np.int64)
    return Shift(label_maps=table[np.arange(len(sizes)) % groups])


def apply(
    expression: str, source: Source, partition: Partition, seed: int
) -> tuple[Source, Partition]:
    """The source and the partition as the clients see them after the shift."""
    shift = Shift(label_maps=partition.label_maps)
    for call in parse(expression):
        if source.targets != "classes" and "classes" in signature(shifts[call.name]).parameters:
            raise BadInput(
                f"{call.name} changes classes, and data {source.name!r} has {source.targets}; leave"
                " it out of shift"
            )
        sizes = tuple(partition.packed.sizes.sum(axis=1).tolist())
        shift = shift.then(shifts.build(call, sizes=sizes, classes=source.classes, seed=seed))
    recipe = {**partition.recipe, "shift": expression}
    partition = replace(partition, label_maps=shift.label_maps, recipe=recipe)
    return _turned(source, partition, shift) if shift.angles else (source, partition)


def _turned(source: Source, partition: Partition, shift: Shift) -> tuple[Source, Partition]:
    """A source with a row for every (row, angle) in use, and the partition in terms of it."""
    if source.kind != "image":
        raise BadInput(f"only images can be rotated, and data {source.name!r} is {source.kind}")
    tests = {
        f"{name}@{angle:g}": (rows, np.full(len(rows), angle))
        for name, rows in partition.shared.items()
        for angle in shift.shared_angles
    }
    rows = [*(client.all for client in partition.clients), *(rows for rows, _ in tests.values())]
    angles, which = np.unique(
        np.concatenate([*shift.angles, *(a for _, a in tests.values())]), return_inverse=True
    )
    pairs, new = np.unique(which * len(source) + np.concatenate(rows), return_inverse=True)
    turned = _materialised(source, pairs % len(source), angles[pairs // len(source)])
    renumbered = iter(np.split(new, np.cumsum([len(r) for r in rows])[:-1]))
    clients = tuple(_like(client, next(renumbered)) for client in partition.clients)
    shared = {name: next(renumbered) for name in tests}
    return turned, replace(partition, clients=clients, shared=shared, source=turned.fingerprint)


def _materialised(source: Source, rows: Ints, angles: Floats) -> Source:
    """`source[rows]`, each image turned by its angle, in the cache; `angles` are sorted."""
    which = hashlib.sha256(rows.astype("<i8").tobytes() + angles.astype("<f8").tobytes())
    name = f"{source.name}-turned"
    folder = cache.entry(name, source.fingerprint, which.hexdigest())

    def build(scratch: Path) -> Source:
        shape = (len(rows), *source.shape)
        x = np.lib.format.open_memmap(scratch / "x.npy", "w+", source.x.dtype, shape)
        for start in range(0, len(rows), _CHUNK):
            at = slice(start, start + _CHUNK)
            x[at] = _turn(source.x[rows[at]], angles[at])
        test, domain, user = (
            None if a is None else a[rows]
            for a in (source.official_test, source.domain, source.user)
        )
        return replace(
            source,
            name=name,
            x=x,
            y=source.y[rows],
            official_test=test,
            domain=domain,
            user=user,
            path=None,
        )

    return cached(folder, build).described_as(replace(source, name=name))


def _turn(images: np.ndarray, angles: Floats) -> np.ndarray:
    out, some = images.copy(), np.flatnonzero(angles)
    if len(some):
        turned = turn(torch.from_numpy(images[some]), torch.from_numpy(angles[some])).numpy()
        out[some] = np.rint(turned).clip(0, 255) if images.dtype == np.uint8 else turned
    return out


def _like(client: ClientRows, rows: Ints) -> ClientRows:
    first, second = len(client.train), len(client.train) + len(client.val)
    return ClientRows(rows[:first], rows[first:second], rows[second:])
