"""A newcomer's rows, in the form that a run's networks know: what does not fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data import FederatedData, RemoteData, Source, federate, load
from fedloom.data.local import input_columns
from fedloom.data.text import POSITIONS
from fedloom.errors import BadInput, UnknownName
from fedloom.runs.client_models import columns_of
from fedloom.runs.encoder import through_encoder
from fedloom.runs.experiment import Experiment
from fedloom.serving.preprocessing import raw_dtype


@dataclass(frozen=True)
class Reading:
    """How a newcomer's data is read, where it is not as the run's was."""

    label: str | None = None
    inputs: str | None = None
    image_size: int | None = None
    split: str | None = None


@dataclass(frozen=True)
class NewcomerRows:
    """A newcomer's rows as client 0 of a federation of its own."""

    data: FederatedData
    name: str
    columns: tuple[str, ...] = ()
    """Of a table, where they are known."""


def newcomer_rows(experiment: Experiment, data: Any, reading: Reading) -> NewcomerRows:
    """Rows from whatever `load` takes, divided as the run divides a client's; or data of one client
    that is divided already."""
    name = Path(data).stem if isinstance(data, str | Path) else "newcomer"
    if isinstance(data, FederatedData):
        if len(data) != 1:
            raise BadInput(f"the data has {len(data)} clients, and one joins; give that one's")
        if reading != Reading():
            raise BadInput(
                "this data is read and divided already; leave out label, inputs, image_size, split"
            )
        source = _as_the_run_has_it(experiment, data.source)
        return NewcomerRows(_scaled(experiment, replace(data, source=source)), data.client_names[0])
    columns = _columns(experiment, data, reading)
    source = _as_the_run_has_it(experiment, _source(experiment, data, reading, columns))
    config = experiment.config
    divided = federate(
        source,
        "iid",
        1,
        config.partition_seed,
        reading.split or config.split,
        augment=config.augment,
    )
    return NewcomerRows(_scaled(experiment, divided), name, columns)


def _source(
    experiment: Experiment, data: Any, reading: Reading, columns: tuple[str, ...]
) -> Source:
    config, run = experiment.config, experiment.data
    words = run.source.words if isinstance(run, FederatedData) else ()
    if run.kind == "text" and not words and not isinstance(data, Source):
        raise BadInput(
            "the words behind the token ids of this run are not known; give token ids:"
            " fedloom.Source.from_arrays(ids, y, kind='text')"
        )
    source = load(
        data,
        normalize=config.normalization,
        image_size=reading.image_size or config.image_size,
        label=reading.label or (config.label if _has_columns(data) else None),
        inputs=columns,
        targets=run.targets,
        words=words,
        positions=run.shape[0] if words else POSITIONS,
    )
    return through_encoder(source, config)


def _columns(experiment: Experiment, data: Any, reading: Reading) -> tuple[str, ...]:
    """The input columns, by the names that they have in the newcomer's table; none: all columns
    that have no other role."""
    config, run = experiment.config, experiment.data
    named = reading.inputs or (config.inputs if _has_columns(data) else None)
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    if run.kind not in ("table", "text") or not _has_columns(data) or _is_npz(data):
        return ()
    wanted = run.columns if isinstance(run, RemoteData) else columns_of(experiment)
    path = Path(data).expanduser() if isinstance(data, str | Path) else None
    label = reading.label or config.label
    headers = input_columns(path, label) if path is not None and path.exists() else ()
    return tuple(_header_of(name, headers) for name in wanted)


def _has_columns(data: Any) -> bool:
    """A pair of arrays and a source have none with names."""
    return not isinstance(data, Source | tuple | list)


def _is_npz(data: Any) -> bool:
    return isinstance(data, str | Path) and Path(data).suffix.lower() == ".npz"


def _header_of(name: str, headers: Sequence[str]) -> str:
    """A column as the newcomer's file heads it: a unit may follow the name, `age [years]`."""
    if name in headers:
        return name
    with_unit = (header for header in headers if header.split("[")[0].split("(")[0].strip() == name)
    return next(with_unit, name)


def _as_the_run_has_it(experiment: Experiment, source: Source) -> Source:
    """The same rows with the run's classes in its order; rows of another form are refused."""
    run = experiment.data
    for what, has, wanted in (
        ("kind", source.kind, run.kind),
        ("shape", source.shape, run.shape),
        ("targets", source.targets, run.targets),
    ):
        if has != wanted:
            raise BadInput(
                f"a row of {source.name!r} has {what} {_text(has)}, and in the run {_text(wanted)};"
                f" {_remedy(what, source)}"
            )
    if isinstance(run, FederatedData) and raw_dtype(source) != raw_dtype(run.source):
        raise BadInput(
            f"the rows of {source.name!r} are {raw_dtype(source)}, and those of the run"
            f" {raw_dtype(run.source)}; give them in the same type"
        )
    if source.vocabulary > run.vocabulary:
        raise BadInput(
            f"{source.name!r} has token ids up to {source.vocabulary - 1}, and the run knows"
            f" {run.vocabulary}; number words as for the run"
        )
    names = run.source.class_names if isinstance(run, FederatedData) else run.class_names
    words = run.source.words if isinstance(run, FederatedData) else ()
    if words and source.words and source.words != words:
        raise BadInput(
            f"the words of {source.name!r} have other token ids than those of the run; give the"
            " texts themselves, a path or a table"
        )
    numbered = replace(source, vocabulary=run.vocabulary, words=words)
    return _renumbered(numbered, names) if run.targets == "classes" else _named(numbered, names)


def _remedy(what: str, source: Source) -> str:
    if what == "shape" and source.kind == "image":
        return "set image_size (--image-size), or give images of the run's size and colours"
    if what == "shape" and source.kind == "table":
        return "name the columns by inputs=... (--inputs)"
    return "give rows as the run's clients have them"


def _renumbered(source: Source, names: tuple[str, ...]) -> Source:
    """Classes are matched by name: a newcomer may lack some, and may not have others."""
    if source.class_names == names:
        return source
    for name in source.class_names:
        if name not in names:
            raise UnknownName(f"class in {source.name!r} that the run does not have:", name, names)
    codes = np.array([names.index(name) for name in source.class_names], dtype=np.int64)
    return replace(source, y=codes[np.asarray(source.y)], class_names=names, path=None)


def _named(source: Source, names: tuple[str, ...]) -> Source:
    """Labels and numbers come in the run's order, and columns of a table by the run's names."""
    if len(source.class_names) != len(names):
        raise BadInput(
            f"a row of {source.name!r} has {len(source.class_names)} {source.targets}, and in the"
            f" run {len(names)} ({', '.join(names)}); name their columns by label=... (--label)"
        )
    return replace(source, class_names=names)


def _scaled(experiment: Experiment, divided: FederatedData) -> FederatedData:
    """Normalised as the run normalises: at sites of a deployment each by its own rows."""
    run = experiment.data
    if not isinstance(run, FederatedData):
        source = divided.source.normalized(experiment.config.normalization)
        return replace(divided, source=source)
    source = replace(divided.source, normalize=run.source.normalize)
    return replace(divided, source=source).scaled_as(run)


def _text(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)
