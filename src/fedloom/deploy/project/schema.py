"""What the data of all sites must look like: `schema.toml`, agreed on before anybody connects.

Shape and classes alone do not tell two tables apart: columns in another order, or in other units,
train without a word. So the project says what an input is, column by column, each site has a copy,
and what a site's data really looks like is compared with both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedloom.core.fields import Field as InputField
from fedloom.core.fields import Fields
from fedloom.data.source import Kind, Targets
from fedloom.errors import BadInput
from fedloom.files import read_toml, write_atomic
from fedloom.runs.config import checked

LARGEST_INPUT = 10**8
"""Numbers in one input: more is a mistake, and would ask for more memory than there is."""
MOST_NAMES = 100_000
_UNIT = re.compile(r"(.*\S)\s*[\[(]([^\[\]()]+)[\])]\s*")


class Column(BaseModel):
    """One input of a table.

    >>> Column.of_header("age [years]"), Column.of_header("sex")
    (Column(name='age', unit='years'), Column(name='sex', unit=''))
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    unit: str = ""

    @classmethod
    def of_header(cls, header: str, units: Mapping[str, str] | None = None) -> Self:
        """From a column's name, where a unit may stand in brackets."""
        match = _UNIT.fullmatch(header)
        name, unit = (match[1], match[2].strip()) if match else (header.strip(), "")
        return cls(name=name, unit=unit or (units or {}).get(name, ""))

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


class Schema(BaseModel):
    """The data of every site: what one input is, what a row's target is, and the classes, labels or
    numbers in their order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    shape: tuple[int, ...] = Field(min_length=1)
    class_names: tuple[str, ...] = Field(min_length=1, max_length=MOST_NAMES)
    vocabulary: int = Field(0, ge=0)
    targets: Targets = "classes"
    columns: tuple[Column, ...] = Field((), max_length=MOST_NAMES)
    fields: Annotated[Fields, Field(max_length=1000)] = ()
    """The inputs that a row consists of, where there are several or rows are of unlike length."""

    @field_validator("shape")
    @classmethod
    def _bounded(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if min(shape) < 1 or prod(shape) > LARGEST_INPUT:
            raise ValueError(f"an input has 1 to {LARGEST_INPUT} numbers")
        return shape

    @classmethod
    def read(cls, file: Path, hint: str) -> Self:
        """From a TOML file; `hint` says what to do where it is missing."""
        return checked(cls, read_toml(file, "the schema", hint))

    @classmethod
    def of_data(
        cls,
        data: Path,
        label: str | None = None,
        class_names: Sequence[str] | None = None,
        units: Mapping[str, str] | None = None,
        image_size: int | None = None,
        targets: Targets | None = None,
    ) -> Self:
        """What a file or folder of data looks like; of images, resized as a run resizes them."""
        from fedloom.data import load

        source = load(
            data, label=label, class_names=class_names, image_size=image_size, targets=targets
        )
        return cls.of_source(source, data, label, units)

    @classmethod
    def of_source(
        cls, source: Any, data: Path, label: str | None, units: Mapping[str, str] | None = None
    ) -> Self:
        """The same of data that is read already."""
        from fedloom.data.local import input_columns

        headers = input_columns(data, label)
        return cls.of_rows(source, [Column.of_header(header, units) for header in headers])

    @classmethod
    def of_rows(cls, source: Any, columns: Sequence[Column] = ()) -> Self:
        """The same of rows whose columns are known, or that have none."""
        return cls(
            kind=source.kind,
            shape=tuple(source.shape),
            class_names=tuple(source.class_names),
            vocabulary=source.vocabulary,
            targets=source.targets,
            columns=tuple(columns),
            fields=source.fields,
        )

    @property
    def digest(self) -> str:
        """sha256 of all of it: what a site states in its introduction."""
        about = self.model_dump(mode="json")
        if self.targets == "classes":
            del about["targets"]  # so that a schema from before there were others keeps its digest
        if not self.fields:
            del about["fields"]
        text = json.dumps(about, sort_keys=True, ensure_ascii=True)
        return sha256(text.encode()).hexdigest()

    @property
    def units(self) -> dict[str, str]:
        """Column -> unit."""
        return {column.name: column.unit for column in self.columns if column.unit}

    def write(self, file: Path) -> None:
        """As a TOML file."""
        lines = [
            "# What the data of every site must look like; compared by `fedloom deploy check` and",
            "# when a site introduces itself. Columns count in this order. State their units.",
            f"kind = {json.dumps(self.kind)}",
            f"shape = {list(self.shape)}",
            f"class_names = {json.dumps(list(self.class_names), ensure_ascii=False)}",
            f"vocabulary = {self.vocabulary}",
        ]
        if self.targets != "classes":
            lines.append(f"targets = {json.dumps(self.targets)}")
        for column in self.columns:
            name, unit = (json.dumps(t, ensure_ascii=False) for t in (column.name, column.unit))
            lines += ["", "[[columns]]", f"name = {name}", f"unit = {unit}"]
        for field in self.fields:
            lines += ["", "[[fields]]", *_stated(field)]
        write_atomic(file, "\n".join(lines) + "\n")

    def difference(self, actual: Schema) -> str:
        """How data that looks like `actual` differs from this; empty where it does not."""
        if self.fields != actual.fields:
            return f"inputs {in_words(actual.fields)}, not {in_words(self.fields)}"
        for key in ("kind", "shape", "targets", "class_names", "vocabulary"):
            wanted, has = getattr(self, key), getattr(actual, key)
            if wanted != has:
                return f"{key.replace('_', ' ')} {_text(has)}, not {_text(wanted)}"
        return self._other_columns(actual)

    def _other_columns(self, actual: Schema) -> str:
        wanted, has = ([c.name for c in s.columns] for s in (self, actual))
        if wanted != has and sorted(wanted) == sorted(has):
            i = next(i for i, pair in enumerate(zip(wanted, has, strict=True)) if len({*pair}) > 1)
            return (
                f"the columns of the schema in another order: column {i + 1} is {has[i]!r}, not"
                f" {wanted[i]!r}"
            )
        if wanted != has:
            missing = [name for name in wanted if name not in has]
            extra = [name for name in has if name not in wanted]
            parts = [f"lacks {missing[:5]}"] if missing else []
            parts += [f"has {extra[:5]} too"] if extra else []
            return f"other columns: it {' and '.join(parts) or 'repeats columns'}"
        for ours, theirs in zip(self.columns, actual.columns, strict=True):
            if ours.unit != theirs.unit:
                return f"column {theirs}, not {ours}"
        return ""


def in_words(fields: Fields) -> str:
    """Several inputs in one line."""
    return f"({'; '.join(map(str, fields)) or 'a single one'})"


def _stated(field: InputField) -> list[str]:
    """An input as lines of TOML, without what it has not."""
    values = {**asdict(field), "shape": list(field.shape)}
    absent = {
        "time": field.time is None,
        "pixels": not field.pixels,
        "vocabulary": not field.vocabulary,
    }
    return [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
        if not absent.get(key, False)
    ]


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def site_schema(
    source: Any, data: Path, label: str | None, units: Mapping[str, str], agreed: Schema | None
) -> Schema:
    """What a site's data looks like. Units that neither the file nor the site states are those of
    the copy of the schema that the site was given and keeps."""
    known = {**(agreed.units if agreed else {}), **units}
    return Schema.of_source(source, data, label, known)


def check_site(agreed: Schema, actual: Schema, data: Path) -> None:
    """Refuse data that is not what was agreed on."""
    if difference := agreed.difference(actual):
        raise BadInput(f"{data} has {difference}; put the data right, or agree on another schema")
