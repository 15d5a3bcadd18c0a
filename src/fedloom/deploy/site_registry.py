"""Which site is which client, and the format of data that all have in common."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedloom.data import RemoteData
from fedloom.data.source import Kind
from fedloom.deploy.settings import NAME, Settings
from fedloom.errors import BadInput, RunFolderError
from fedloom.files import write_json
from fedloom.runs.config import checked

log = logging.getLogger("fedloom")


class DataFormat(BaseModel):
    """What the data of all sites must have in common."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[int, ...] = Field(min_length=1)
    kind: Kind
    class_names: tuple[str, ...] = Field(min_length=1)
    vocabulary: int = Field(ge=0)


class Hello(DataFormat):
    """How a site introduces itself."""

    site: str = Field(pattern=f"^{NAME}$")
    fedloom: str
    torch: str


class SiteRegistry:
    """Site -> client id, and the kind of data all of them hold.

    The first site to connect determines the format of the data. The registry is written to its file
    when training begins, for this run and its restarts: until then a mistake at a site is put right
    by starting again.
    """

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file, self.settings = file, settings
        self.places = settings.run.clients or 0
        self._format: DataFormat | None = None
        self._ids: dict[str, int] = {}
        self._written = file.exists()
        if self._written:
            self._read()
        for name in settings.sites:
            self._ids.setdefault(name, len(self._ids))

    def admit(self, introduction: dict[str, Any]) -> int:
        """The client id of a site; refuses one that is not expected or has other data."""
        hello = checked(Hello, introduction)
        self._check_format(hello)
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
                log.warning("%s has %s %s, the server %s", hello.site, package, theirs, ours)
        log.info("site %s is client %d", hello.site, self._ids[hello.site])
        return self._ids[hello.site]

    def remote_data(self) -> RemoteData:
        """The federation as the server knows it, once a site was admitted."""
        assert self._format is not None, "no site was admitted"
        return RemoteData(self.places, **dict(self._format))

    def write(self) -> None:
        """Write the registry to its file."""
        assert self._format is not None, "no site was admitted"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"sites": self._ids, "data": self._format.model_dump()})
        self._written = True

    def name(self, cid: int) -> str:
        """Of a client's site."""
        return next((name for name, i in self._ids.items() if i == cid), f"client {cid}")

    def _check_format(self, hello: Hello) -> None:
        stated = DataFormat(**{key: getattr(hello, key) for key in DataFormat.model_fields})
        self._format = self._format or stated
        for key, ours in dict(self._format).items():
            if (theirs := getattr(stated, key)) != ours:
                raise BadInput(
                    f"site {hello.site!r} has {key.replace('_', ' ')} {_text(theirs)}, the first"
                    f" one to come {_text(ours)}; state class-names or image-size for all, or mend"
                    " the data of the one that is wrong, and start again"
                )

    def _read(self) -> None:
        try:
            saved = json.loads(self.file.read_text(encoding="utf-8"))
            self._ids, self._format = dict(saved["sites"]), DataFormat(**saved["data"])
        except (ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{self.file} is damaged ({e}); restore it") from None


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
