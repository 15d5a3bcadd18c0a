"""Data before anything is trained: who holds what, how unlike clients are, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fedloom.advice.duplicates import Duplicates, Twice, duplicates, on_both_sides
from fedloom.advice.reading import Reading, groups, named, read, row_names
from fedloom.advice.skew import Skew, feature_skew, label_skew
from fedloom.data import FederatedData, Source
from fedloom.data.images import picture_files
from fedloom.data.load import path_of
from fedloom.data.partition.registry import CLIENTS, partitioner
from fedloom.data.registry import registered
from fedloom.errors import FedloomError
from fedloom.files import jsonable
from fedloom.launch.start import with_settings
from fedloom.record import dump
from fedloom.runs.config import RunConfig, RunSettings
from fedloom.runs.experiment import Experiment, Model, dealt
from fedloom.runs.given import Given

FEW_ROWS = 10
"""Training rows below which a client can hardly learn alone, nor be judged."""
AMOUNT_ROWS = 5
"""Rows of a class, on average, below which whole numbers are more likely amounts."""


@dataclass(frozen=True)
class ClientFacts:
    """What one client holds."""

    name: str
    train: int
    val: int
    test: int
    classes: int | None
    """How many classes, or labels that occur; None where targets are numbers."""
    only_in_test: tuple[str, ...]
    """Classes that it is tested on and has no training row of."""


@dataclass(frozen=True)
class Checked:
    """A page on the data; `problems` are what a run would fail on."""

    data: str
    rows: int
    """That can be read."""
    kind: str
    shape: tuple[int, ...]
    targets: str
    class_names: tuple[str, ...]
    partition: str
    split: str
    clients: tuple[ClientFacts, ...]
    label_skew: Skew | None
    feature_skew: Skew | None
    duplicates: Duplicates | None
    reading: Reading = field(repr=False)
    problems: tuple[str, ...]
    """What a training would fail on."""
    remarks: tuple[str, ...]
    """What one should know."""
    config: RunConfig = field(repr=False)
    """Of a run, with the partition that was looked at."""
    federated: FederatedData | None = field(repr=False)

    @property
    def good(self) -> bool:
        """Would a run begin?"""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        reading = self.reading
        record = {
            "data": self.data,
            "good": self.good,
            "problems": self.problems,
            "remarks": self.remarks,
            "rows": self.rows,
            "kind": self.kind,
            "shape": self.shape,
            "targets": self.targets,
            "class_names": self.class_names,
            "partition": self.partition,
            "split": self.split,
            "clients": [dump(client) for client in self.clients],
            "label_skew": self.label_skew and dump(self.label_skew),
            "feature_skew": self.feature_skew and dump(self.feature_skew),
            "duplicates": self.duplicates and dump(self.duplicates),
            "unreadable": [dump(one) for one in reading.unreadable],
            "missing": [dump(one) for one in reading.missing],
        }
        return dict(jsonable(record))


@with_settings
def check(
    data: Any = "digits",
    *,
    group: str | None = None,
    model: str | Model = "auto",
    **settings: Unpack[RunSettings],
) -> Checked:
    """Look at data before anything is trained; settings are the keys of `RunConfig`.

    Where no `partition` is named, the clients are those that the data itself has (its users, or
    its domains). `group` names a column, such as a patient's number, whose rows must not be both
    trained on and tested on.

    >>> checked = check("digits", clients=5, partition="iid")
    >>> checked.good, checked.label_skew.words, len(checked.clients)
    (True, 'none', 5)
    """
    written = Given("fedavg", data, model).config(settings)
    config, loaded = written.imported(), registered(data)
    if isinstance(loaded, FederatedData):
        return _page(config, data, Reading(loaded.source), loaded, [], model, group)
    reading = read(config, loaded)
    remarks: list[str] = []
    federated = None
    if reading.source is not None:
        if not written.model_fields_set & {"partition", "clients"}:
            config, remarks = _with_clients(config, reading.source)
        try:
            federated = dealt(config, reading.source)
        except FedloomError as e:
            reading = replace(reading, problems=(*reading.problems, str(e)))
    return _page(config, data, reading, federated, remarks, model, group)


def _with_clients(config: RunConfig, source: Source) -> tuple[RunConfig, list[str]]:
    """The configuration with the clients that the data has, where it names any."""
    for natural, numbers in (("by_user", source.user), ("by_domain", source.domain)):
        if numbers is not None:
            return config.changed(partition=natural), []
    remark = (
        "the data does not say who holds a row, so its rows were dealt to"
        f" {CLIENTS} made-up clients by {config.partition}, as a run does by default; name the"
        " column of clients by --client, or set --partition"
    )
    return config, [remark]


def _page(
    config: RunConfig,
    data: Any,
    reading: Reading,
    federated: FederatedData | None,
    remarks: list[str],
    model: str | Model,
    group: str | None,
) -> Checked:
    source = reading.source
    twice = None if federated is None else duplicates(federated)
    problems = list(_faults(reading))
    if federated is not None and source is not None:
        problems += _refusal(config, federated, model)
        remarks = [
            *remarks,
            *_files_not_read(data),
            *_remarks(config, federated),
            *_on_duplicates(twice, row_names(data), reading),
            *_on_groups(config, data, federated, reading, group),
        ]
    return Checked(
        data=str(data) if isinstance(data, str | Path) else type(data).__name__,
        rows=0 if source is None else len(source),
        kind="" if source is None else source.kind,
        shape=() if source is None else source.shape,
        targets="" if source is None else source.targets,
        class_names=() if source is None else source.class_names,
        partition=config.partition if federated is None else _partition(federated, config),
        split=config.split,
        clients=() if federated is None else tuple(_clients(federated)),
        label_skew=None if federated is None else label_skew(federated),
        feature_skew=None if federated is None else feature_skew(federated),
        duplicates=twice,
        reading=reading,
        problems=tuple(problems),
        remarks=tuple(remarks),
        config=config,
        federated=federated,
    )


def _partition(federated: FederatedData, config: RunConfig) -> str:
    return str(federated.partition.recipe.get("partition", config.partition))


def _clients(data: FederatedData) -> Iterator[ClientFacts]:
    sizes = data.partition.packed.sizes.tolist()
    held = data.counts()
    train, test = data.counts("train"), data.counts("test")
    has_classes = data.targets != "numbers"
    for cid, name in enumerate(data.client_names):
        unseen = np.flatnonzero((test[cid] > 0) & (train[cid] == 0) & has_classes)
        learned, validated, tested = sizes[cid]
        yield ClientFacts(
            name,
            learned,
            validated,
            tested,
            classes=int((held[cid] > 0).sum()) if has_classes else None,
            only_in_test=tuple(data.counted[k] for k in unseen),
        )


# ------------------------------------------------------------------ what a run fails on


def _faults(reading: Reading) -> Iterator[str]:
    """What kept rows from being read, in a sentence for every column and for all files."""
    yield from reading.problems
    if reading.unreadable:
        names = ", ".join(one.name for one in reading.unreadable)
        yield (
            f"{_many(len(reading.unreadable), 'image')} cannot be decoded, damaged or no image:"
            f" {names}; remove or replace them"
        )
    for column in dict.fromkeys(one.column for one in reading.missing):
        lacking = [one for one in reading.missing if one.column == column]
        where = ", ".join(f"{one.client} {one.rows}" for one in lacking if one.client)
        yield (
            f"column {column!r} lacks values, or has infinite ones, in"
            f" {_many(sum(one.rows for one in lacking), 'row')}{f' ({where})' if where else ''};"
            " fill them or drop those rows"
        )


def _refusal(config: RunConfig, data: FederatedData, model: str | Model) -> Iterator[str]:
    """What a run of FedAvg on this data would be refused for."""
    try:
        given = None if isinstance(model, str) else model
        Experiment.build(config.changed(out=None), None, data, given)
    except FedloomError as e:
        yield str(e)


# ------------------------------------------------------------------ what one should know


def _remarks(config: RunConfig, data: FederatedData) -> Iterator[str]:
    facts = list(_clients(data))
    for split in ("test", "val"):
        lacking = [one.name for one in facts if not getattr(one, split)]
        if lacking and len(lacking) < len(facts):
            yield (
                f"{_many(len(lacking), 'client')} too small for split {config.split!r}, which gives"
                f" them no {split} rows, so that they are not scored there: {named(lacking)}"
            )
    few = [f"{one.name} {one.train}" for one in facts if one.train < FEW_ROWS]
    if few:
        yield (
            f"{_many(len(few), 'client')} with fewer than {FEW_ROWS} training rows: {named(few)}"
        )
    if data.targets != "numbers":
        yield from _on_classes(data, facts)
    if data.targets == "classes" and _look_like_amounts(data):
        yield (
            f"the targets are {data.classes} whole numbers, most of them of few rows, and taken for"
            " classes; if they are amounts, add --task regression"
        )
    test = data.source.official_test
    if test is not None and config.split.startswith("merged"):
        yield (
            f"the data has a published test set of {int(test.sum())} rows, which split"
            f" {config.split!r} mixes with the others; --split official keeps it apart"
        )


def _look_like_amounts(data: FederatedData) -> bool:
    names = data.source.class_names
    return len(names) * AMOUNT_ROWS > len(data.source.y) and all(map(_is_whole, names))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").removesuffix(".0").isdecimal()


def _on_classes(data: FederatedData, facts: Sequence[ClientFacts]) -> Iterator[str]:
    what = "class" if data.targets == "classes" else "label"
    train = data.counts("train").sum(axis=0)
    tests = data.counts("test").sum(axis=0)
    if data.targets == "classes":
        y = np.asarray(data.source.y)
        for rows in data.partition.shared.values():
            tests = tests + np.bincount(y[rows], minlength=data.classes)
    unseen = [data.counted[k] for k in np.flatnonzero((tests > 0) & (train == 0))]
    if unseen:
        yield (
            f"no client has training rows of {_many(len(unseen), what)} in test rows:"
            f" {named(unseen)}"
        )
    nowhere = [data.counted[k] for k in np.flatnonzero((tests == 0) & (train == 0))]
    if nowhere:
        yield f"{_many(len(nowhere), what)} without any row: {named(nowhere)}"
    surprised = [f"{one.name} ({named(one.only_in_test, 3)})" for one in facts if one.only_in_test]
    if surprised:
        yield (
            f"{_many(len(surprised), 'client')} tested on a {what} that they have no training row"
            f" of: {named(surprised)}"
        )


def _on_duplicates(
    twice: Duplicates | None, row_name: Callable[[int], str], reading: Reading
) -> Iterator[str]:
    if twice is None:
        return

    def example(field_name: str) -> str:
        one: Twice = twice.examples[field_name]
        row, other = (
            row_name(r if reading.kept is None else int(reading.kept[r]))
            for r in (one.row, one.other)
        )
        return f"{row} of {one.client} is {other} of {one.other_client}"

    if twice.leaks_within:
        yield (
            f"leak: {_many(twice.leaks_within, 'test row')} equal to a row that the same client"
            f" trains or validates on, for instance {example('leaks_within')}"
        )
    if twice.leaks_across:
        yield (
            f"leak: {_many(twice.leaks_across, 'test row')} equal to a training row of another"
            f" client, for instance {example('leaks_across')}"
        )
    if twice.across:
        pairs = named([f"{a} and {b} {n}" for a, b, n in twice.pairs], 3)
        yield (
            f"{_many(twice.across, 'input')} held by several clients ({pairs}), for instance"
            f" {example('across')}"
        )
    if twice.within:
        most = sorted(twice.within_by_client.items(), key=lambda item: -item[1])
        yield (
            f"{_many(twice.within, 'row')} repeating another row of the same client"
            f" ({named([f'{name} {n}' for name, n in most], 3)}), for instance {example('within')}"
        )
    if twice.contradictions:
        yield (
            f"{_many(twice.contradictions, 'input')} with unlike targets, for instance"
            f" {example('contradictions')}"
        )


def _on_groups(
    config: RunConfig, data: Any, federated: FederatedData, reading: Reading, group: str | None
) -> Iterator[str]:
    """Groups whose rows are both trained on and tested on."""
    source = federated.source
    if group is not None:
        values, what = groups(config, data, group, reading.kept), f"group{{}} of {group!r}"
    elif source.user is not None and _by(federated, config) != "by_user":
        names = np.array(source.user_names or [str(u) for u in range(int(source.user.max()) + 1)])
        values, what = names[source.user], "user{}"
    else:
        return
    if len(values) != len(source):
        yield (
            f"the rows cannot be told apart by {group!r}, because the shift or the encoder made new"
            " ones of them"
        )
        return
    both = on_both_sides(federated, values)
    if both:
        plural = what.format("" if len(both) == 1 else "s")
        yield f"leak: rows of {len(both)} {plural} are both trained on and tested on: {named(both)}"


def _by(federated: FederatedData, config: RunConfig) -> str:
    expression = _partition(federated, config)
    return "" if expression.endswith(".json") else partitioner(expression)


def _files_not_read(data: Any) -> Iterator[str]:
    """Files in a folder of images whose names are not those of images."""
    path = path_of(registered(data))
    if path is None or not path.is_dir():
        return
    pictures = set(picture_files(path))
    others = sorted(
        str(f.relative_to(path))
        for f in path.rglob("*")
        if f.is_file() and f not in pictures and not f.name.startswith(".")
    )
    if pictures and others:
        yield f"{_many(len(others), 'file')} not read, being no images by name: {named(others)}"


def _many(count: int, what: str) -> str:
    """`1 row`, `2 rows`, `3 classes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what[-1] == 's' else 's'}"
