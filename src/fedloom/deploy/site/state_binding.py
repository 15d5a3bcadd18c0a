"""A site's states belong to the settings they began with; under others they are not used.

Else a run under the same experiment's name, with a method that shares what the first one kept,
would send what should have stayed. The gate compares before an app is started (`gate.bindings`),
and the app once more. Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

from pydantic import BaseModel

from fedloom.deploy.settings import Settings
from fedloom.engines.lost_state import LostState
from fedloom.files import jsonable
from fedloom.policy.keys import MAY_CHANGE, OLD_BEHAVIOUR, concerns_sites
from fedloom.runs.config import RunConfig

FILE = "settings.json"
PROPOSALS = "proposals"
"""A folder of the site's that may be empty, beside those of experiments."""


class OtherSettings(LostState):
    """The states of an experiment were made under other settings."""


def acting_settings(settings: Settings) -> dict[str, Any]:
    """What a site acts on, by key."""
    values = {**settings.run.model_dump(), **settings.model_dump(exclude={"run"})}
    return {key: jsonable(values[key]) for key in sorted(values) if concerns_sites(key)}


def settings_digest(acting: Mapping[str, Any]) -> str:
    """Of settings that decide what states mean."""
    lasting = {key: value for key, value in acting.items() if key not in MAY_CHANGE}
    return sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


class Binding(BaseModel):
    """The settings that an experiment began with at a site."""

    sha256: str
    settings: dict[str, Any]
    defaults: list[str] = []
    """Keys whose value was the default; files of earlier versions do not say."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """To these."""
        acting = acting_settings(settings)
        defaults = [key for key, value in acting.items() if value == _default(key)]
        return cls(sha256=settings_digest(acting), settings=acting, defaults=defaults)

    @property
    def is_whole(self) -> bool:
        """Are these the settings that were written down?"""
        return settings_digest(self.settings) == self.sha256

    def check(self, settings: Settings) -> None:
        """Refuse others than these."""
        if not self.is_whole:
            raise _damaged(settings.experiment)
        if changed := self._changed(acting_settings(settings)):
            raise OtherSettings(
                f"experiment {settings.experiment!r} began at this site with other settings"
                f" ({', '.join(changed)}); go back to those, or name another experiment"
            )

    def _changed(self, acting: Mapping[str, Any]) -> list[str]:
        """Keys that differ. One that only one of the two versions of fedloom knows means in the
        other what fedloom does without the key: nearly always its default."""
        changed = []
        for key in sorted((self.settings.keys() | acting.keys()) - MAY_CHANGE):
            began = self.settings.get(key, OLD_BEHAVIOUR.get(key, _default(key)))
            now = acting.get(key, began if key in self.defaults else _MISSING)
            if began != now:
                changed.append(key)
        return changed


def bind(folder: Path, settings: Settings) -> None:
    """Bind the folder of an experiment to its settings, or refuse others than it is bound to. This
    is the app's own look; the gate has looked before, whatever the app does."""
    check_folder(folder, settings)
    if not (folder / FILE).exists():
        record = Binding.of(settings).model_dump()
        _write_once(folder / FILE, json.dumps(record, indent=2))
        check_folder(folder, settings)  # another process may have been first


def check_folder(folder: Path, settings: Settings) -> None:
    """Refuse other settings than those that an experiment's folder is bound to, and a folder with
    something in it that is bound to none."""
    if (folder / FILE).exists():
        _read(folder / FILE, settings.experiment).check(settings)
    elif folder.name == PROPOSALS:
        raise OtherSettings(
            f"the site keeps what it is asked under the name {PROPOSALS!r}; name another experiment"
        )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OtherSettings(
            f"what the site keeps under the name {settings.experiment!r} comes from settings that"
            " nobody recorded; the site moves it away, or the server names another experiment"
        )


_MISSING = object()
"""Equals no setting."""


def _default(key: str) -> Any:
    fields = {**RunConfig.model_fields, **Settings.model_fields}
    return jsonable(fields[key].default) if key in fields else _MISSING


def _read(file: Path, experiment: str) -> Binding:
    try:
        return Binding.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        raise _damaged(experiment) from None


def _damaged(experiment: str) -> OtherSettings:
    return OtherSettings(
        f"the site's record of the settings of experiment {experiment!r} is damaged; the site"
        " restores it, or the server names another experiment"
    )


def _write_once(file: Path, text: str) -> None:
    """Write a file that is not there yet; of two processes the first one wins."""
    folder = file.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Beside the folder, so that another process finds it empty, or with the file.
    with NamedTemporaryFile("w", dir=folder.parent, encoding="utf-8", delete=False) as temporary:
        temporary.write(text + "\n")
        temporary.flush()
        os.fsync(temporary.fileno())
    try:
        os.link(temporary.name, file)
    except FileExistsError:
        pass  # the other process's settings count; `bind` compares
    finally:
        os.unlink(temporary.name)
