"""The one door to data: a known name, a path, or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data import cache, hub, local
from fedloom.data.source import Normalize, Source, cached
from fedloom.data.text import POSITIONS, VOCABULARY
from fedloom.errors import BadInput, UnknownName

EMBEDDED = "digits"


class UnknownData(UnknownName):
    """A name that is no data set; the message also says how one's own data is given."""

    def __str__(self) -> str:
        return f"{super().__str__()} (or give a path, or put the data in a folder of FEDLOOM_DATA)"


def load(
    data: Any,
    *,
    normalize: Normalize | None = None,
    image_size: int | None = None,
    subset: str | None = None,
    classes: str | int | Sequence[str | int] = (),
    label: str | None = None,
    class_names: Sequence[str] | None = None,
    vocabulary: int = VOCABULARY,
    positions: int = POSITIONS,
) -> Source:
    """The source of a known data set, a path or arrays; decoded once, then memory-mapped.

    Args:
        data: a name (`names()`), an `.npz`, CSV or parquet file, a folder of images, a pair
            `(x, y)`, or a source.
        normalize: `half` (mean and deviation 0.5), `channel` or `none`; see `Source.normalized`
            for the default.
        image_size: side to which images are resized; by default as they are, or 64 where their
            sizes differ.
        subset: part of a known data set published on its own (`emnist`: `byclass`, `letters`).
        classes: keep only these classes, by name or number, numbered in this order.
        label: label column of a table.
        class_names: all classes of one's own data, where the labels at hand may lack some.
        vocabulary, positions: number of token ids and length of a text.

    >>> source = load("digits")
    >>> len(source), source.shape, source.classes
    (1797, (1, 8, 8), 10)
    """
    chosen = (classes,) if isinstance(classes, str | int) else tuple(classes)
    options = hub.HubOptions(image_size, subset, chosen, vocabulary, positions)
    if isinstance(data, str | Path):
        source = _named(data, options, label=label, class_names=class_names)
    else:
        source = _in_memory(data, class_names).only(chosen)
    return source.normalized(normalize)


def names() -> list[str]:
    """The data sets known by name."""
    return sorted([EMBEDDED, *hub.KNOWN])


def digits() -> Source:
    """Scikit-learn's 1,797 handwritten digits, which need no download.

    Their values 0..16 are stored times 15, so that they are exact and whole in uint8 (0..240).
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    pixels = (x.reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    return Source.from_arrays(pixels, y, name=EMBEDDED, kind="image")


def _in_memory(data: Any, class_names: Sequence[str] | None) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return Source.from_arrays(data[0], data[1], class_names=class_names)
    raise BadInput(
        f"cannot load data from {type(data).__name__}; give a name, a path or a pair (x, y)"
    )


def _named(
    data: str | Path,
    options: hub.HubOptions,
    *,
    label: str | None,
    class_names: Sequence[str] | None,
) -> Source:
    known = {_squash(n): n for n in names()}
    name = known.get(_squash(data)) if isinstance(data, str) else None
    if name == EMBEDDED:
        return digits().only(options.classes)
    if name is not None:
        return _hub(name, options)
    return _path(_existing(data), options, label=label, class_names=class_names)


def _hub(name: str, options: hub.HubOptions) -> Source:
    entry = hub.hub_entry(name, options)
    folder = hub.mirror(name, options.subset)
    origin = cache.stamps(folder) if folder is not None else entry.repo
    place = cache.entry(name, asdict(entry), asdict(options), origin)
    return cached(place, lambda scratch: hub.read(name, folder, scratch, options))


def _path(
    path: Path, options: hub.HubOptions, *, label: str | None, class_names: Sequence[str] | None
) -> Source:
    def build(scratch: Path) -> Source:
        source = local.read(
            path, scratch, image_size=options.image_size, label=label, class_names=class_names
        )
        return source.only(options.classes)

    place = cache.entry(path.stem, asdict(options), label, class_names, cache.stamps(path))
    return cached(place, build)


def _existing(data: str | Path) -> Path:
    """A path as given, or below FEDLOOM_DATA; an error says whether a path or a name was meant."""
    path = Path(data).expanduser()
    if path.exists():
        return path.absolute()
    in_mirror = hub.mirror(str(data))
    if in_mirror is not None:
        return in_mirror
    if isinstance(data, Path) or len(path.parts) > 1 or path.suffix:
        raise BadInput(f"there is no file or folder {path}; give an existing path or a known name")
    raise UnknownData("data set", data, names())


def _squash(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
