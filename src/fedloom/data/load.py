"""The one door to data: a known name, a path, a table or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.fields import Fields
from fedloom.data import cache, hub, local, tables
from fedloom.data.known import EMBEDDED, known_name
from fedloom.data.named_images import named_images
from fedloom.data.normalization import Normalize
from fedloom.data.options import Columns, Options
from fedloom.data.registry import register_data, registered
from fedloom.data.roles import source_of
from fedloom.data.several_inputs import Longest
from fedloom.data.source import Source, Targets, cached
from fedloom.data.text import POSITIONS, VOCABULARY
from fedloom.errors import BadInput, UnknownName

_LONGEST = 200  # characters of a path that a message repeats


class UnknownData(UnknownName):
    """A name that is no data set; the message also says how to name data of one's own."""

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
    client: str | None = None,
    domain: str | None = None,
    inputs: str | Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    vocabulary: int = VOCABULARY,
    positions: int = POSITIONS,
    targets: Targets | None = None,
    longest: Longest = None,
    fields: Fields = (),
    words: Sequence[str] = (),
) -> Source:
    """The source of a known data set, a path or an object; files are decoded once, then
    memory-mapped.

    Args:
        data: a name (`names()`), an `.npz`, CSV or parquet file, a folder of images or of parquet
            files, a `pandas.DataFrame`, a `datasets.Dataset` or `DatasetDict`, a pair `(x, y)`
            whose x may be several inputs or rows of unlike length, or a source.
        normalize: `half` (mean and deviation 0.5), `channel` (those of all clients' training
            rows), `site` (each client by its own) or `none`; see `Source.normalized` for the
            default. A source keeps its own.
        image_size: side to which images are resized; by default as they are, or 64 where their
            sizes differ.
        subset: part of a known data set published on its own (`emnist`: `byclass`, `letters`).
        classes: keep only these classes, by name or number, numbered in this order.
        label, client, domain: columns of a table that say of each row its class, who holds it and
            where it comes from; by default `label`, `target` or `y`; `user` or `client`; `domain`.
            Several columns, `"age, dose"`, are the labels or numbers of a row.
        inputs: columns that are the input, `"age, dose"` or a list; by default all others.
        class_names: all classes of one's own data, where the labels at hand may lack some.
        vocabulary, positions: number of token ids and length of a text.
        targets: `classes`, `labels` (0 or 1 for each of several) or `numbers`; by default what the
            values look like (`Source.from_arrays`).
        longest: positions of a row at most, where rows are of unlike length; longer ones are cut.
        fields: the inputs of other data, which these rows must be like.
        words: of other data (`Source.words`), by which texts are numbered.

    >>> source = load("digits")
    >>> len(source), source.shape, source.classes
    (1797, (1, 8, 8), 10)
    """
    data = registered(data)
    options = Options(
        image_size=image_size,
        subset=subset,
        classes=Options.several(classes),
        class_names=None if class_names is None else tuple(class_names),
        columns=Columns.named(label, client, domain, inputs),
        vocabulary=vocabulary,
        positions=positions,
        targets=targets,
        longest=longest,
        fields=fields,
        words=tuple(words),
    )
    if isinstance(data, Source):
        options.columns.refuse_for(f"the source {data.name!r}")
        chosen = data.only(options.classes)
        return chosen if normalize is None else chosen.normalized(normalize)
    if isinstance(data, str | Path):
        return _named(data, options).normalized(normalize)
    return _in_memory(data, options).normalized(normalize)


def names() -> list[str]:
    """The data sets known by name."""
    return sorted([EMBEDDED, *hub.KNOWN, *register_data])


def path_of(data: Any) -> Path | None:
    """The file or folder that `load` reads; None where it is a known name, or no text at all."""
    if not isinstance(data, str | Path) or known_name(str(data), Options()) is not None:
        return None
    return _existing(data)


def digits() -> Source:
    """Scikit-learn's 1,797 handwritten digits, which need no download.

    Their values 0..16 are stored times 15, so that they are exact and whole in uint8 (0..240).
    """
    # From the file itself: importing scikit-learn takes as long as all the rest of a short run.
    package = find_spec("sklearn")
    assert package is not None, "a dependency of fedloom"
    assert package.origin is not None, "the file of a package"
    file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    return Source.from_arrays(pixels, rows[:, -1].astype(np.int64), name=EMBEDDED, kind="image")


def _in_memory(data: Any, options: Options) -> Source:
    table = tables.from_object(data)
    if table is not None:
        return _tabular(table, options)
    if isinstance(data, tuple | list) and len(data) == 2:
        options.columns.refuse_for("a pair (x, y)")
        x, y = data
        source = Source.from_arrays(
            x,
            y,
            class_names=options.class_names,
            targets=options.targets,
            longest=options.longest,
            fields=options.fields,
        )
        return source.only(options.classes)
    raise BadInput(
        f"cannot load data from {type(data).__name__}; give a name, a path or a pair (x, y), or a "
        "pandas.DataFrame or datasets.Dataset"
    )


def _tabular(table: tables.Table, options: Options) -> Source:
    with cache.scratch_folder() as scratch:
        source = source_of(table, "table", options, scratch)
        # Decoded images are a file of the scratch folder, which is gone after this block.
        return source.memory_mapped() if source.kind == "image" else source


def _named(data: str | Path, options: Options) -> Source:
    known = known_name(data, options) if isinstance(data, str) else None
    if known is not None:
        return _known(*known)
    path = _existing(data)
    if path is not None:
        return _path(path, options)
    name = hub.name_of_repository(str(data))
    if name is not None:
        return _hub(name, options)
    raise _nowhere(data)


def _known(name: str, options: Options) -> Source:
    if name != EMBEDDED:
        return _hub(name, options)
    options.columns.refuse_for(f"data set {EMBEDDED!r}")
    return digits().only(options.classes)


def _hub(name: str, options: Options) -> Source:
    # A known data set names its classes itself; a task that wants no classes is refused later.
    options = replace(options, class_names=None, targets=None, longest=None, fields=())
    entry = hub.hub_entry(name, options)
    folder = hub.mirror(name, options.subset)
    origin = cache.stamps(folder) if folder is not None else entry.repo
    place = cache.entry(name, asdict(entry), options.as_key(), origin)
    return cached(place, lambda scratch: hub.read(name, folder, scratch, options))


def _path(path: Path, options: Options) -> Source:
    stamps = [stamp for file in (path, *named_images(path)) for stamp in cache.stamps(file)]
    place = cache.entry(path.stem, options.as_key(), stamps)
    return cached(place, lambda scratch: local.read(path, scratch, options))


def _existing(data: str | Path) -> Path | None:
    """A path that exists, from here or below FEDLOOM_DATA."""
    if not str(data).strip():
        return None  # an empty path would be the working directory
    path = Path(data).expanduser()
    try:
        if path.exists():
            return path.absolute()
    except OSError:  # longer than any path, for instance
        return None
    return hub.mirror(str(data))


def _nowhere(data: str | Path) -> Exception:
    """The error for what is neither a path nor a name; it says which of both was meant."""
    path = Path(data).expanduser()
    if len(str(data)) > _LONGEST:
        return BadInput(f"{str(data)[:_LONGEST]!r}... is neither the name of data nor a path")
    if len(path.parts) == 2 and not path.is_absolute() and not path.suffix:
        return BadInput(
            f"there is no file or folder {data}; a data set of the hub is given in Python "
            f"(fedloom.load(datasets.load_dataset({str(data)!r}))), or put in a folder {data} of "
            "FEDLOOM_DATA: its columns are not known here, so it is not downloaded"
        )
    if isinstance(data, Path) or len(path.parts) > 1 or path.suffix:
        return BadInput(f"there is no file or folder {path}; give an existing path or a known name")
    return UnknownData("data set", data, names())
