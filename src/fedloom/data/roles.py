"""From a table to a source, by the roles of its columns.

A row is one sample. Every column has a role: label, client (who holds the row), domain (where it
comes from) or input. The input is numbers, one column of images, one column of text, or columns of
lists of numbers, which are inputs of unlike length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.fields import Fields
from fedloom.data.images import Picture, decode
from fedloom.data.options import Columns, Options
from fedloom.data.several_inputs import flat
from fedloom.data.source import (
    Kind,
    Source,
    Targets,
    class_codes,
    code_targets,
    rows_of_classes,
    targets_of,
)
from fedloom.data.tables import Table
from fedloom.data.text import FIRST, numbered, tokenize
from fedloom.errors import BadInput

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")  # a data frame's index, as pandas saves it
_BATCH = 500  # undecoded images in memory at a time
_SAMPLE = 1000  # rows that show whether a column is text


@dataclass(frozen=True)
class UsualNames:
    """What the column of a role is called where the user names none; the first that is present
    counts. Without `inputs`, every column that has no other role is an input."""

    label: tuple[str, ...] = ("label", "target", "y")
    client: tuple[str, ...] = ("user", "client")
    domain: tuple[str, ...] = ("domain",)
    inputs: tuple[str, ...] = ()


USUAL = UsualNames()
NUMBERS = "table"
"""What the columns of numbers are called together, beside columns of lists."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are what."""

    labels: tuple[str, ...]
    """The column of the target; several where a row has several labels or numbers."""
    client: str | None
    domain: str | None
    inputs: tuple[str, ...]


def source_of(
    table: Table, name: str, options: Options, scratch: Path, usual: UsualNames = USUAL
) -> Source:
    """A table's rows as a source; images are decoded into `scratch`."""
    if not len(table.rows):
        raise BadInput(f"{table.where} has no rows")
    roles = roles_of(table, options.columns, usual)
    kind = _kind(table, roles.inputs, named=bool(options.columns.inputs or usual.inputs))
    y, class_names, targets = _targets(table, roles.labels, options)
    if options.classes and targets != "classes":
        raise BadInput(f"{table.where} has {targets} and no classes; leave out classes")
    if options.classes:  # before images are decoded: DomainNet has 345 classes, ten are wanted
        wanted = class_codes(class_names, options.classes)
        rows, y = rows_of_classes(y, wanted)
        table, class_names = table.take(rows), tuple(class_names[c] for c in wanted)
        if not len(rows):
            raise BadInput(f"{table.where} has no rows of the classes {', '.join(class_names)}")
    client, client_names = table.numbered(roles.client) if roles.client else (None, ())
    domain, domain_names = table.coded(roles.domain) if roles.domain else (None, ())
    vocabulary, fields = 0, options.fields
    words: tuple[str, ...] = ()
    if kind == "fields":
        fields, x = _fields(table, roles.inputs, options)
        vocabulary = max(field.vocabulary for field in fields)
    elif kind == "text":
        texts, words = _texts(table, roles.inputs[0]), options.words
        if words:
            x = numbered(texts, words, options.positions)
        else:
            x, words = tokenize(texts, options.vocabulary, options.positions)
        vocabulary = len(words) + FIRST
    elif kind == "image":
        x = _images(table, roles.inputs[0], options.image_size, scratch)
    else:
        x = numbers(table, roles.inputs)
    return Source(
        name=name,
        x=x,
        y=y,
        class_names=class_names,
        kind=kind,
        official_test=table.test,
        domain=domain,
        domain_names=domain_names,
        user=client,
        user_names=client_names,
        vocabulary=vocabulary,
        targets=targets,
        fields=fields if kind == "fields" else (),
        words=words,
    )


def _targets(
    table: Table, names: tuple[str, ...], options: Options
) -> tuple[np.ndarray, tuple[str, ...], Targets]:
    """The targets, the names of classes, labels or numbers, and which of these they are."""
    targets = options.targets
    if targets is None and table.names_in(names[0]) is not None:
        targets = "classes"  # `ClassLabel` says so
    if len(names) == 1 and targets in (None, "classes"):
        targets = targets or targets_of(table.whole(names[0]), table.where)
    if len(names) == 1 and targets == "classes":
        return (*table.labels(names[0], options.class_names), targets)
    columns = np.stack([table.whole(name) for name in names], axis=1)
    targets = targets or targets_of(columns, table.where)
    if targets == "classes":
        raise BadInput(
            f"{len(names)} columns of {table.where} are named as label, and a row has one class; "
            "name one column, or set task to multilabel or regression"
        )
    return (*code_targets(columns, targets, options.class_names or names, table.where), targets)


def input_columns(table: Table, columns: Columns) -> tuple[str, ...]:
    """The columns that are the input, in their order."""
    return roles_of(table, columns).inputs


def roles_of(table: Table, columns: Columns, usual: UsualNames = USUAL) -> Roles:
    """The columns that a user names, and the usual ones for the roles that nobody named."""
    labels = _label_columns(table, columns.label, usual)
    taken = {*labels, *columns.inputs}
    for label in labels:
        if label in columns.inputs:
            raise BadInput(
                f"column {label!r} of {table.where} is the label, and cannot be an input"
            )
    client = _optional(table, "client", columns.client, usual.client, taken)
    domain = _optional(table, "domain", columns.domain, usual.domain, taken)
    single = [("client", client), ("domain", domain)]
    for role, name in [*(("label", label) for label in labels), *single]:
        if name is not None and table.holds(name) not in ("numbers", "text"):
            raise BadInput(
                f"column {name!r} of {table.where} cannot be the {role}: it holds "
                f"{table.described(name)}, not numbers or text"
            )
    if columns.inputs:
        return Roles(
            labels, client, domain, tuple(table.need("inputs", (name,)) for name in columns.inputs)
        )
    if usual.inputs:
        return Roles(labels, client, domain, (table.need("inputs", usual.inputs),))
    # A second column that is usually the client is not a feature either.
    no_features = {*labels, client, domain, *(() if columns.client else usual.client)}
    rest = [c for c in table.columns if c not in no_features and not _INDEX.fullmatch(c)]
    if not rest:
        raise BadInput(f"{table.where} has no feature columns beside {labels[0]!r}")
    return Roles(labels, client, domain, tuple(rest))


def _label_columns(table: Table, named: str | None, usual: UsualNames) -> tuple[str, ...]:
    """The columns of the target; "a, b" names two, unless a column is called just so."""
    if named is None:
        return (table.need("label", usual.label),)
    if named in table.columns or "," not in named:
        return (table.need("label", (named,)),)
    names = dict.fromkeys(name.strip() for name in named.split(",") if name.strip())
    return tuple(table.need("label", (name,)) for name in names)


def _optional(
    table: Table, role: str, named: str | None, usual: Sequence[str], taken: set[str]
) -> str | None:
    """The column of a role that a table may lack, unless the user names one."""
    if named is not None:
        return table.need(role, (named,))
    return next((name for name in usual if name in table.columns and name not in taken), None)


def _kind(table: Table, inputs: tuple[str, ...], named: bool) -> Kind:
    """What the inputs are together; a column of single words is text only where it was named."""
    holds = {name: table.holds(name) for name in inputs}
    not_numbers = [name for name in inputs if holds[name] != "numbers"]
    if not not_numbers:
        return "table"
    if all(holds[name] == "lists" for name in not_numbers):
        return "fields"
    name = not_numbers[0]
    if len(inputs) == 1 and holds[name] == "images":
        return "image"
    if len(inputs) == 1 and holds[name] == "text" and (named or _is_prose(table, name)):
        return "text"
    raise BadInput(
        f"column {name!r} of {table.where} is not numeric (it holds {table.described(name)}); the "
        "input is numbers, or one column of images or of text: encode it as numbers, drop it, name "
        "it by client=... or domain=... (--client, --domain), or name the columns to use by "
        "inputs=... (--inputs)"
    )


def _is_prose(table: Table, name: str) -> bool:
    """Whether most values are several words, and not categories, dates or misspelt numbers."""
    texts = table.take(np.arange(min(_SAMPLE, len(table.rows)))).values(name).tolist()
    return sum(len(str(text).split()) > 1 for text in texts) > len(texts) / 2


def _fields(table: Table, names: Sequence[str], options: Options) -> tuple[Fields, np.ndarray]:
    """Every column of lists as an input of its own, of unlike length, and all columns of numbers
    as one more."""
    lists = [name for name in names if table.holds(name) == "lists"]
    columns = [name for name in names if name not in lists]
    if columns and NUMBERS in lists:
        raise BadInput(
            f"column {NUMBERS!r} of {table.where} holds lists, and the columns of numbers together"
            " get this name; rename it"
        )
    x: dict[str, Any] = {NUMBERS: numbers(table, columns)} if columns else {}
    x |= {name: table.lists(name) for name in lists}
    return flat(x, table.where, None, options.longest, options.fields, lists_unlike=True)


def numbers(table: Table, names: Sequence[str]) -> np.ndarray:
    """Columns of numbers as float32 [n, d]."""
    x = np.empty((len(table.rows), len(names)), np.float32)
    for i, (name, values) in enumerate(zip(names, table.each_values(names), strict=True)):
        with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
            x[:, i] = values.astype(np.float32)
        if not np.isfinite(x[:, i]).all():
            raise BadInput(
                f"column {name!r} of {table.where} has missing or infinite values; fill them"
            )
    return x


def _texts(table: Table, name: str) -> list[str]:
    return [str(text) for text in table.whole(name).tolist()]


def _images(table: Table, name: str, size: int | None, scratch: Path) -> np.ndarray:
    def pictures() -> Iterable[Picture]:
        return (picture() for picture in pictures_of(table, name))

    return decode(pictures, len(table.rows), size, scratch)


def pictures_of(table: Table, name: str) -> Iterator[Callable[[], Picture]]:
    """A column of images, row by row, each to be fetched by a call, which may be refused."""
    import datasets

    rows = table.rows.select_columns([name])
    if isinstance(rows.features[name], datasets.Image):
        rows = rows.cast_column(name, datasets.Image(decode=False))
    for batch in rows.with_format("arrow").iter(_BATCH):
        for stored in batch.column(name).to_pylist():
            yield partial(_picture, stored, name, table)


def _picture(stored: Any, name: str, table: Table) -> Picture:
    """The bytes of an image, or the file they are in."""
    if isinstance(stored, bytes):
        return stored
    if stored is None or not (stored.get("bytes") or stored.get("path")):
        raise BadInput(f"column {name!r} of {table.where} lacks some images; drop those rows")
    if stored["bytes"]:
        content: bytes = stored["bytes"]
        return content
    path = Path(stored["path"])
    path = path if table.folder is None else table.folder / path
    if not path.is_file():
        raise BadInput(f"{table.where} names the image file {path}, which does not exist")
    return path
