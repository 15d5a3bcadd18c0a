"""The settings of `load`: which columns, which classes, which size of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedloom.core.fields import Fields
from fedloom.data.several_inputs import Longest
from fedloom.data.source import Targets
from fedloom.data.text import POSITIONS, VOCABULARY
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Columns:
    """The columns of a table, or the arrays of an `.npz` file, that a user names.

    A role that is None is looked for under its usual names (`roles.UsualNames`); `inputs` that are
    empty are all columns without another role.
    """

    label: str | None = None
    client: str | None = None
    domain: str | None = None
    inputs: tuple[str, ...] = ()

    @classmethod
    def named(
        cls,
        label: str | None,
        client: str | None,
        domain: str | None,
        inputs: str | Sequence[str],
    ) -> Columns:
        """Columns as a user writes them; several inputs may be one text, `"age, dose"`.

        >>> Columns.named("outcome", None, None, "age, dose").inputs
        ('age', 'dose')
        """
        names = inputs.split(",") if isinstance(inputs, str) else inputs
        stripped = [name.strip() for name in names]
        columns = cls(label, client, domain, tuple(name for name in stripped if name))
        role_of: dict[str, str] = {}
        for role, name in columns.roles():
            if name in role_of:
                raise BadInput(
                    f"{role_of[name]} and {role} both name the column {name!r}; "
                    "a column has one role"
                )
            role_of[name] = role
        return columns

    def roles(self) -> list[tuple[str, str]]:
        """Each named column after the role it is named for."""
        single = [("label", self.label), ("client", self.client), ("domain", self.domain)]
        named = [(role, name) for role, name in single if name is not None]
        return [*named, *(("inputs", name) for name in self.inputs)]

    def refuse_for(self, data: str) -> None:
        """An error where a column is named although the data has none."""
        for role, name in self.roles():
            raise BadInput(
                f"{role} = {name!r} names a column of a table, and {data} has no columns; "
                f"leave {role} out"
            )


@dataclass(frozen=True)
class Options:
    """Everything that decides what is read; part of the cache key."""

    image_size: int | None = None
    subset: str | None = None
    classes: tuple[str | int, ...] = ()
    class_names: tuple[str, ...] | None = None
    columns: Columns = Columns()
    vocabulary: int = VOCABULARY
    positions: int = POSITIONS
    targets: Targets | None = None
    longest: Longest = None
    fields: Fields = ()
    words: tuple[str, ...] = ()
    """By which texts are numbered, in place of words that are counted."""

    def as_key(self) -> dict[str, Any]:
        """For a cache key; without what is left open, as in folders that were written before it
        could be set."""
        values = asdict(self)
        open_ended = ("targets", "longest", "fields", "words")
        return {k: v for k, v in values.items() if k not in open_ended or v}

    @staticmethod
    def several(classes: str | int | Sequence[str | int]) -> tuple[str | int, ...]:
        """Classes as a tuple, where a single one may have been named."""
        return (classes,) if isinstance(classes, str | int) else tuple(classes)
