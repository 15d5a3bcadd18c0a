"""Which settings each experiment began with, as the gate itself wrote it down.

It lies beside the counters, outside of the folders in which apps keep their states, and is compared
before an app is started: an app that looks at nothing gets no other states either.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from fedloom.deploy.settings import Settings
from fedloom.deploy.site.state_binding import Binding, check_folder
from fedloom.errors import BadInput
from fedloom.files import write_json

_BINDINGS = TypeAdapter(dict[str, Binding])


class Bindings:
    """Of all experiments of a site, `state/bindings.json`."""

    def __init__(self, state: Path) -> None:
        self.state, self.file = state, state / "bindings.json"

    def check(self, settings: Settings) -> None:
        """Refuse other settings than an experiment began with; raises `OtherSettings`. Where a
        gate of an earlier version wrote nothing down, what the app recorded counts."""
        bound = self._read().get(settings.experiment)
        if bound is None:
            check_folder(self.state / settings.experiment, settings)
        else:
            bound.check(settings)

    def bind(self, settings: Settings) -> None:
        """The same, and from now on the experiment belongs to these settings."""
        self.check(settings)
        bindings = self._read()
        if settings.experiment not in bindings:
            bindings[settings.experiment] = Binding.of(settings)
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.file, {name: bound.model_dump() for name, bound in bindings.items()})

    def _read(self) -> dict[str, Binding]:
        if not self.file.exists():
            return {}
        try:
            return _BINDINGS.validate_json(self.file.read_bytes())
        except ValueError:
            raise BadInput(f"{self.file} is damaged; restore it") from None
