"""From a table to a source, by the roles of its columns.

A row is one sample. Every column has a role: label, client (who holds the row), domain (where it
comes from) or input. The input is numbers, one column of images, or one column of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.images import Picture, decode
from fedloom.data.options import Columns, Options
from fedloom.data.source import Kind, Source, class_codes, rows_of_classes
from fedloom.data.tables import Table
from fedloom.data.text import tokenize
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


@dataclass(frozen=True)
class _Roles:
    label: str
    client: str | None
    domain: str | None
    inputs: tuple[str, ...]


def source_of(
    table: Table, name: str, options: Options, scratch: Path, usual: UsualNames = USUAL
) -> Source:
    """A table's rows as a source; images are decoded into `scratch`."""
    if not len(table.rows):
        raise BadInput(f"{table.where} has no rows")
    roles = _roles(table, options.columns, usual)
    kind = _kind(table, roles.inputs, named=bool(options.columns.inputs or usual.inputs))
    y, class_names = table.labels(roles.label, options.class_names)
    if options.classes:  # before images are decoded: DomainNet has 345 classes, ten are wanted
        wanted = class_codes(class_names, options.classes)
        rows, y = rows_of_classes(y, wanted)
        table, class_names = table.take(rows), tuple(class_names[c] for c in wanted)
        if not len(rows):
            raise BadInput(f"{table.where} has no rows of the classes {', '.join(class_names)}")
    client, client_names = table.numbered(roles.client) if roles.client else (None, ())
    domain, domain_names = table.coded(roles.domain) if roles.domain else (None, ())
    vocabulary = 0
    if kind == "text":
        texts = _texts(table, roles.inputs[0])
        x, vocabulary = tokenize(texts, options.vocabulary, options.positions)
    elif kind == "image":
        x = _images(table, roles.inputs[0], options.image_size, scratch)
    else:
        x = _numbers(table, roles.inputs)
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
    )


def _roles(table: Table, columns: Columns, usual: UsualNames) -> _Roles:
    label = table.need("label", (columns.label,) if columns.label else usual.label)
    taken = {label, *columns.inputs}
    if label in columns.inputs:
        raise BadInput(f"column {label!r} of {table.where} is the label, and cannot be an input")
    client = _optional(table, "client", columns.client, usual.client, taken)
    domain = _optional(table, "domain", columns.domain, usual.domain, taken)
    for role, name in (("label", label), ("client", client), ("domain", domain)):
        if name is not None and table.holds(name) not in ("numbers", "text"):
            raise BadInput(
                f"column {name!r} of {table.where} cannot be the {role}: it holds "
                f"{table.described(name)}, not numbers or text"
            )
    if columns.inputs:
        return _Roles(
            label, client, domain, tuple(table.need("inputs", (name,)) for name in columns.inputs)
        )
    if usual.inputs:
        return _Roles(label, client, domain, (table.need("inputs", usual.inputs),))
    # A second column that is usually the client is not a feature either.
    no_features = {label, client, domain, *(() if columns.client else usual.client)}
    rest = [c for c in table.columns if c not in no_features and not _INDEX.fullmatch(c)]
    if not rest:
        raise BadInput(f"{table.where} has no feature columns beside {label!r}")
    return _Roles(label, client, domain, tuple(rest))


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


def _numbers(table: Table, names: Sequence[str]) -> np.ndarray:
    columns = []
    for name in names:
        with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
            column = table.values(name).astype(np.float32)
        if not np.isfinite(column).all():
            raise BadInput(
                f"column {name!r} of {table.where} has missing or infinite values; fill them"
            )
        columns.append(column)
    return np.stack(columns, axis=1)


def _texts(table: Table, name: str) -> list[str]:
    return [str(text) for text in table.whole(name).tolist()]


def _images(table: Table, name: str, size: int | None, scratch: Path) -> np.ndarray:
    import datasets

    rows = table.rows.select_columns([name])
    if isinstance(rows.features[name], datasets.Image):
        rows = rows.cast_column(name, datasets.Image(decode=False))

    def pictures() -> Iterable[Picture]:
        for batch in rows.with_format("arrow").iter(_BATCH):
            for stored in batch.column(name).to_pylist():
                yield _picture(stored, name, table)

    return decode(pictures, len(rows), size, scratch)


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
