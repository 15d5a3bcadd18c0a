"""Which site is which client, and whether its data is what all agreed on."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedloom.core.fields import Fields
from fedloom.data import RemoteData
from fedloom.data.source import Kind, Targets
from fedloom.deploy.project.schema import Schema, in_words
from fedloom.deploy.settings import NAME, Settings
from fedloom.deploy.versions import check_version
from fedloom.errors import BadInput, RunFolderError
from fedloom.files import naming_disk, parse_json, write_json
from fedloom.plain_text import plain
from fedloom.runs.config import checked
from fedloom.runs.encoder import form_of_inputs

log = logging.getLogger("fedloom")


class Hello(BaseModel):
    """How a site introduces itself."""

    model_config = ConfigDict(frozen=True)

    site: str = Field(pattern=f"^{NAME}$", max_length=100)
    shape: tuple[int, ...] = Field(min_length=1)
    kind: Kind
    class_names: tuple[str, ...] = Field(min_length=1)
    vocabulary: int = Field(ge=0)
    targets: Targets = "classes"
    fields: Fields = ()
    schema_digest: str = Field(alias="schema", pattern="^[0-9a-f]{64}$")
    fedloom: str = Field(max_length=100)
    torch: str = Field(max_length=100)

    @field_validator("fields", mode="before")
    @classmethod
    def _parsed(cls, texts: Any) -> Any:
        """Each input is a text of JSON."""
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("inputs are texts of JSON")
        return [parse_json(text) for text in texts]


class SiteRegistry:
    """Site -> client id; refuses sites whose data is not what the project's schema says.

    The registry is written to its file when training begins, for this run and its restarts.
    """

    def __init__(self, file: Path, settings: Settings, schema: Schema) -> None:
        self.file, self.settings, self.schema = file, settings, schema
        self.places = settings.run.clients or 0
        if settings.class_names and settings.class_names != schema.class_names:
            raise BadInput(
                f"class-names is {list(settings.class_names)}, and the schema has"
                f" {list(schema.class_names)}; make them agree, or leave class-names empty"
            )
        self._ids: dict[str, int] = {}
        self._written = file.exists()
        if self._written:
            self._read()
        for name in settings.sites:
            self._ids.setdefault(name, len(self._ids))

    def admit(self, introduction: dict[str, Any]) -> int:
        """The client id of a site; refuses one that is not expected or has other data."""
        hello = checked(Hello, introduction)
        check_version(hello.site, hello.fedloom)
        self._check_schema(hello)
        if hello.site not in self._ids:
            if self.settings.sites:
                raise BadInput(f"site {hello.site!r} is not among the sites of this federation")
            if len(self._ids) >= self.places:
                raise BadInput(f"site {hello.site!r} comes when all {self.places} places are taken")
            self._ids[hello.site] = len(self._ids)
        if self._written:
            self.write()
        for package, theirs, ours in (
            ("fedloom", hello.fedloom, version("fedloom")),
            ("torch", hello.torch, torch.__version__),
        ):
            if theirs != ours:
                log.warning("%s has %s %s, the server %s", hello.site, package, plain(theirs), ours)
        log.info("site %s is client %d", hello.site, self._ids[hello.site])
        return self._ids[hello.site]

    def remote_data(self) -> RemoteData:
        """The federation as the server knows it."""
        schema, encoder = self.schema, self.settings.run.encoder
        names = schema.class_names
        # The schema is of the sites' own rows, which networks see through the encoder.
        kind, shape = form_of_inputs(schema.kind, schema.shape, encoder)
        columns = () if encoder else tuple(column.name for column in schema.columns)
        return RemoteData(
            self.places,
            shape,
            names,
            kind,
            schema.vocabulary,
            schema.targets,
            columns=columns,
            fields=schema.fields,
        )

    def write(self) -> None:
        """Write the registry to its file."""
        with naming_disk(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, {"sites": self._ids, "schema": self.schema.digest})
        self._written = True

    def name(self, cid: int) -> str:
        """Of a client's site."""
        return next((name for name, i in self._ids.items() if i == cid), f"client {cid}")

    def _check_schema(self, hello: Hello) -> None:
        """Every field that the server can compare is named; the digest has the columns too."""
        if hello.fields != self.schema.fields:
            theirs, ours = in_words(hello.fields), in_words(self.schema.fields)
            raise BadInput(
                f"site {hello.site!r} has inputs {plain(theirs)}, and the schema {ours}; mend its"
                " data, or agree on another schema"
            )
        for key in ("kind", "shape", "targets", "class_names", "vocabulary"):
            theirs, ours = getattr(hello, key), getattr(self.schema, key)
            if theirs != ours:
                raise BadInput(
                    f"site {hello.site!r} has {key.replace('_', ' ')} {_text(theirs)}, and the"
                    f" schema {_text(ours)}; mend its data, or agree on another schema"
                )
        if hello.schema_digest != self.schema.digest:
            raise BadInput(
                f"site {hello.site!r} has other columns, another order of columns or other units"
                " than the schema; `fedloom deploy check` at the site tells which"
            )

    def _read(self) -> None:
        try:
            saved = json.loads(self.file.read_text(encoding="utf-8"))
            self._ids, digest = dict(saved["sites"]), str(saved["schema"])
        except (ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{self.file} is damaged ({e}); restore it") from None
        if digest != self.schema.digest:
            raise BadInput(
                f"{self.file.parent} began with another schema; restore it, or begin another"
                " experiment"
            )


def _text(value: Any) -> str:
    return plain(list(value) if isinstance(value, tuple) else value)
