"""What a caller hands over: expressions that stand in a configuration, and objects beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.core.method import Method
from fedloom.data import FederatedData
from fedloom.errors import BadInput
from fedloom.extensions import replaced
from fedloom.methods import describe
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT, Experiment, Model, check_not_divided_again
from fedloom.runs.folder import RunPaths
from fedloom.runs.stored import read_config, stored_data_path


@dataclass(frozen=True)
class Given:
    """Method, data and model of a run, each as an expression or as an object."""

    method: str | Method
    data: Any
    model: str | Model

    @property
    def label(self) -> str:
        """The method as it was written."""
        return self.method if isinstance(self.method, str) else describe(self.method)

    def config(self, settings: Mapping[str, Any]) -> RunConfig:
        """The configuration, with a placeholder for what has no expression."""
        if isinstance(self.data, FederatedData):
            check_not_divided_again(self.data, settings)
        data = str(self.data) if isinstance(self.data, str | Path) else OBJECT
        model = self.model if isinstance(self.model, str) else OBJECT
        return RunConfig.checked({**settings, "method": self.label, "data": data, "model": model})

    def build(self, config: RunConfig, data_path: str | None = None) -> Experiment:
        """The experiment of a configuration and these objects; `data_path` is where the data lies,
        where that is not to be found by the configuration."""
        return Experiment.build(
            config,
            None if isinstance(self.method, str) else self.method,
            data_path if isinstance(self.data, str | Path) else self.data,
            None if isinstance(self.model, str) else self.model,
        )


def rebuilt(
    path: str | Path,
    call: str,
    method: Method | None = None,
    data: Any = None,
    model: Model | None = None,
    rounds: int | None = None,
    imports: Sequence[str] = (),
) -> Experiment:
    """The experiment of a run folder; what it was given as Python objects must be given again.

    `call` is what the caller is called in Python, for the sentence that asks for an object;
    `imports` are files to import in place of those that the run recorded.
    """
    config = read_config(path)
    for key, again in (("data", data), ("model", model)):
        if getattr(config, key) == OBJECT and again is None:
            raise BadInput(
                f"the run in {path} was given its {key} as a Python object; give it again"
                f" from Python: fedloom.{call}({str(path)!r}, {key}=...)"
            )
    given = Given(
        config.method if method is None else method,
        config.data if data is None else data,
        config.model if model is None else model,
    )
    more: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    more["imports"] = replaced(config.imports, imports)
    # A folder that was moved is resumed where it is now.
    data_path = stored_data_path(RunPaths(path)) if data is None else None
    return given.build(config.changed(out=str(path), **more), data_path)
