"""A site's states belong to the settings they began with; under others they are not used.

Else a run under the same experiment's name, with a method that shares what the first one kept,
would send what should have stayed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pydantic import BaseModel

from fedloom.deploy.settings import Settings
from fedloom.engines.flower.site_store import LostState
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


def bind(folder: Path, settings: Settings) -> None:
    """Bind the folder of an experiment to its settings, or refuse others than it is bound to."""
    acting = acting_settings(settings)
    if not (folder / FILE).exists():
        if folder.name == PROPOSALS:
            raise OtherSettings(
                f"the site keeps what it is asked under the name {PROPOSALS!r}; name another"
                " experiment"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OtherSettings(
                f"what the site keeps under the name {settings.experiment!r} comes from settings"
                " that nobody recorded; the site moves it away, or the server names another"
                " experiment"
            )
        record = {
            "sha256": settings_digest(acting),
            "settings": acting,
            "defaults": [key for key, value in acting.items() if value == _default(key)],
        }
        _write_once(folder / FILE, json.dumps(record, indent=2))
    if changed := _changed(_read(folder / FILE, settings.experiment), acting):
        raise OtherSettings(
            f"experiment {settings.experiment!r} began at this site with other settings"
            f" ({', '.join(changed)}); go back to those, or name another experiment"
        )


class _Binding(BaseModel):
    """What the file says."""

    sha256: str
    settings: dict[str, Any]
    defaults: list[str] = []
    """Keys whose value was the default; files of earlier versions do not say."""


_MISSING = object()
"""Equals no setting."""


def _changed(bound: _Binding, acting: Mapping[str, Any]) -> list[str]:
    """Keys that differ. One that only one of the two versions of fedloom knows means in the other
    what fedloom does without the key: nearly always its default."""
    changed = []
    for key in sorted((bound.settings.keys() | acting.keys()) - MAY_CHANGE):
        began = bound.settings.get(key, OLD_BEHAVIOUR.get(key, _default(key)))
        now = acting.get(key, began if key in bound.defaults else _MISSING)
        if began != now:
            changed.append(key)
    return changed


def _default(key: str) -> Any:
    fields = {**RunConfig.model_fields, **Settings.model_fields}
    return jsonable(fields[key].default) if key in fields else _MISSING


def _read(file: Path, experiment: str) -> _Binding:
    with suppress(OSError, ValueError):
        bound = _Binding.model_validate_json(file.read_bytes())
        if settings_digest(bound.settings) == bound.sha256:
            return bound
    raise OtherSettings(
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
