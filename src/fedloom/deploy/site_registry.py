"""Who the sites are and what they have in common, written down where the server runs."""

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


class Alike(BaseModel):
    """What all sites must have in common."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[int, ...] = Field(min_length=1)
    kind: Kind
    class_names: tuple[str, ...] = Field(min_length=1)
    vocabulary: int = Field(ge=0)


class Hello(Alike):
    """What a site says of itself."""

    site: str = Field(pattern=f"^{NAME}$")
    fedloom: str
    torch: str


class SiteRegistry:
    """Site -> client id, and the kind of data all of them hold.

    The first site to come says what the data is like. That is written down, for this run and its
    restarts, when training begins: until then a mistake is mended by starting again.
    """

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file, self.settings = file, settings
        self.places = settings.run.clients or 0
        self._alike: Alike | None = None
        self._ids: dict[str, int] = {}
        self._settled = file.exists()
        if self._settled:
            self._read()
        for name in settings.sites:
            self._ids.setdefault(name, len(self._ids))

    def admit(self, said: dict[str, Any]) -> int:
        """The client id of a site; refuses one that is not expected or has other data."""
        hello = checked(Hello, said)
        self._check_alike(hello)
        if hello.site not in self._ids:
            if self.settings.sites:
                raise BadInput(f"site {hello.site!r} is not among the sites of this federation")
            if len(self._ids) >= self.places:
                raise BadInput(f"site {hello.site!r} comes when all {self.places} places are taken")
            self._ids[hello.site] = len(self._ids)
        if self._settled:
            self.settle()
        for package, theirs, ours in (
            ("fedloom", hello.fedloom, version("fedloom")),
            ("torch", hello.torch, torch.__version__),
        ):
            if theirs != ours:
                log.warning("%s has %s %s, the server %s", hello.site, package, theirs, ours)
        log.info("site %s is client %d", hello.site, self._ids[hello.site])
        return self._ids[hello.site]

    def seats(self) -> RemoteData:
        """The federation as the server knows it, once a site is there."""
        assert self._alike is not None, "no site was admitted"
        return RemoteData(self.places, **dict(self._alike))

    def settle(self) -> None:
        """Write down who is who, and what their data is like."""
        assert self._alike is not None, "no site was admitted"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"sites": self._ids, "data": self._alike.model_dump()})
        self._settled = True

    def name(self, cid: int) -> str:
        """Of a client's site."""
        return next((name for name, i in self._ids.items() if i == cid), f"client {cid}")

    def _check_alike(self, hello: Hello) -> None:
        alike = Alike(**{key: getattr(hello, key) for key in Alike.model_fields})
        self._alike = self._alike or alike
        for key, ours in dict(self._alike).items():
            if (theirs := getattr(alike, key)) != ours:
                raise BadInput(
                    f"site {hello.site!r} has {key.replace('_', ' ')} {_text(theirs)}, the first"
                    f" one to come {_text(ours)}; state class-names or image-size for all, or mend"
                    " the data of the one that is wrong, and start again"
                )

    def _read(self) -> None:
        try:
            saved = json.loads(self.file.read_text(encoding="utf-8"))
            self._ids, self._alike = dict(saved["sites"]), Alike(**saved["data"])
        except (ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{self.file} is damaged ({e}); restore it") from None


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
