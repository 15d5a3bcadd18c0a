"""Who the sites are and what they have in common, written down where the server runs."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedloom.data import Seats
from fedloom.deploy.settings import Settings
from fedloom.errors import BadInput, RunFolderError
from fedloom.runs.folder import write_json

log = logging.getLogger("fedloom")
_ALIKE = ("shape", "kind", "class_names", "vocabulary")


class Books:
    """Site -> client id, and the kind of data all of them hold; durable over restarts."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file, self.settings = file, settings
        self.places = settings.run.clients or 0
        self._data: dict[str, Any] = {}
        self._ids: dict[str, int] = {name: i for i, name in enumerate(settings.sites)}
        if file.exists():
            self._read()

    def admit(self, hello: dict[str, Any]) -> int:
        """The client id of a site; refuses one that is not expected or has other data."""
        name, data = str(hello["site"]), {key: hello[key] for key in _ALIKE}
        self._check_alike(name, data)
        if name not in self._ids:
            if self.settings.sites:
                raise BadInput(f"site {name!r} is not among the sites of this federation")
            if len(self._ids) >= self.places:
                raise BadInput(f"site {name!r} comes when all {self.places} places are taken")
            self._ids[name] = len(self._ids)
        self._data = data
        self._write()
        for package, ours in (("fedloom", version("fedloom")), ("torch", torch.__version__)):
            if hello[package] != ours:
                log.warning("%s has %s %s, the server %s", name, package, hello[package], ours)
        log.info("site %s is client %d", name, self._ids[name])
        return self._ids[name]

    def seats(self) -> Seats:
        """The federation as the server knows it, once a site is there."""
        data = self._data
        names = tuple(data["class_names"])
        shape = tuple(map(int, data["shape"]))
        return Seats(self.places, shape, names, data["kind"], int(data["vocabulary"]))

    def name(self, cid: int) -> str:
        """Of a client's site."""
        return next((name for name, i in self._ids.items() if i == cid), f"client {cid}")

    def _check_alike(self, name: str, data: dict[str, Any]) -> None:
        for key in _ALIKE if self._data else ():
            if data[key] != self._data[key]:
                raise BadInput(
                    f"site {name!r} has {key.replace('_', ' ')} {data[key]}, the others have"
                    f" {self._data[key]}; state class-names or image-size for all of them"
                )

    def _read(self) -> None:
        try:
            saved = json.loads(self.file.read_text(encoding="utf-8"))
            self._ids, self._data = dict(saved["sites"]), dict(saved["data"])
        except (ValueError, KeyError) as e:
            raise RunFolderError(f"{self.file} is damaged ({e}); restore it") from None

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"sites": self._ids, "data": self._data})
