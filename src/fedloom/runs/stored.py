"""A run folder read back: its configuration, its newest states, whether its data is the same."""

from __future__ import annotations

from pathlib import Path

from fedloom.data.load import path_of
from fedloom.errors import BadInput, RunFolderError
from fedloom.files import parse_json, read_regular, write_json
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT, Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.store import ClientStates


def read_config(path: str | Path) -> RunConfig:
    """The configuration of a run folder; a folder in another format is refused."""
    paths = RunPaths(path)
    try:
        settings = parse_json(read_regular(paths.config))
    except OSError:
        raise RunFolderError(
            f"there is no run in {path}: it has no {paths.config.name}; check the path"
        ) from None
    except ValueError as e:
        raise RunFolderError(f"{paths.config} is not valid JSON ({e}); restore it") from None
    if not isinstance(settings, dict):
        raise RunFolderError(f"{paths.config} holds no settings but {settings!r:.60}; restore it")
    paths.check_format()
    return RunConfig.checked(settings)


def write_data_path(config: RunConfig, paths: RunPaths) -> None:
    """Note where data lies that the configuration names by a relative path: whoever opens the run
    may be elsewhere."""
    place = None if config.data == OBJECT else path_of(config.data)
    if place is not None and not Path(config.data).expanduser().is_absolute():
        write_json(paths.data_path, {"path": str(place)})


def stored_data_path(paths: RunPaths) -> str | None:
    """Where a run's data lay when it began, if that was noted and it still does."""
    try:
        noted = parse_json(read_regular(paths.data_path))
        place = noted["path"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(f"{paths.data_path} cannot be read; restore or delete it") from None
    return place if isinstance(place, str) and Path(place).exists() else None


def difference(config: RunConfig) -> str:
    """How the run that is in a configuration's folder differs from it; empty: not at all.

    The folder itself does not count: it may have been moved, or be named from elsewhere.
    """
    stored = read_config(str(config.out)).model_dump()
    wanted = config.model_dump(exclude={"out"})
    for key, value in wanted.items():
        if value != stored[key]:
            return f"a run with {key} = {stored[key]!r}, not {value!r}"
    return ""


def check_same_data(experiment: Experiment, folder: RunPaths) -> None:
    """Refuse to go on where the data or its partition is not what the run began with."""
    if not folder.partition.is_file():
        raise RunFolderError(f"{folder.path} lacks {folder.partition.name}; start the run again")
    now = experiment.data.partition
    saved = type(now).load(folder.partition)
    for what, is_now, was in (
        ("data", now.source, saved.source),
        ("partition", now.fingerprint, saved.fingerprint),
    ):
        if is_now != was:
            raise BadInput(
                f"the {what} of the run in {folder.path} changed (fingerprint {is_now[:12]}, was"
                f" {was[:12]}); restore the data or start a new run"
            )


def newest_states(experiment: Experiment, folder: RunPaths) -> tuple[Snapshot, list[str]]:
    """A run's newest good checkpoint, and a sentence for every damaged one."""
    check_same_data(experiment, folder)
    states = ClientStates(int(experiment.config.memory * 2**20))
    return Checkpoints(folder.checkpoints).load_latest(states)
