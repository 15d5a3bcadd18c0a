"""Where copies of a site's or a run's data lie, and their removal."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedloom.audit import AuditLog
from fedloom.data.cache import cache_root
from fedloom.deploy.settings import NAME
from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.runs.folder import RunFolder
from fedloom.runs.stored import read_config

_SCRATCH = ".tmp-"  # what a process was decoding when it was killed


@dataclass(frozen=True)
class Copy:
    """A folder or file that can be removed."""

    path: Path
    what: str

    @property
    def nbytes(self) -> int:
        """Of all files in it; links count for nothing and are never followed."""
        return folder_bytes(self.path)


def folder_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    if path.is_symlink() or path.is_file():
        return os.lstat(path).st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # a process that runs has removed it
                continue
    return total


def copies_of_site(config: SiteConfig, experiment: str | None, models: bool) -> list[Copy]:
    """What a purge of a site removes; its records (audit log, approvals, proposals) are kept.

    With an experiment its states alone; otherwise those of all, and the decoded copies of the data.
    """
    inside = experiment is None or Path(experiment).name == experiment
    if experiment and not (inside and _is_experiment(config.state / experiment)):
        raise BadInput(f"{config.state} has no experiment {experiment!r}; check the name")
    copies = [] if experiment else list(_cached(config.data.stem))
    folders = [config.state / experiment] if experiment else _experiments(config.state)
    for folder in folders:
        kinds = {
            "states": "what the site keeps between rounds",
            "outputs": "what frozen stages of the network make of the site's rows",
            "model": "the site's own model",
        }
        for name in kinds if models else ("states", "outputs"):
            if (folder / name).exists():
                copies.append(Copy(folder / name, f"{kinds[name]}, of experiment {folder.name}"))
    return copies


def copies_of_run(path: Path, models: bool) -> list[Copy]:
    """What a purge of a run folder removes; scores, ledger and configuration are kept."""
    data = read_config(path).data
    copies = list(_cached(Path(data).stem))
    checkpoints = RunFolder(path).checkpoints
    if models and checkpoints.exists():
        copies.append(Copy(checkpoints, "models and clients' states: the run cannot go on then"))
    return copies


def whole_cache() -> list[Copy]:
    """Every decoded copy of data that this user has."""
    return list(_cached(None))


def remove(copies: list[Copy], site: SiteConfig | None = None) -> int:
    """Remove them, and at a site write it down; returns how many bytes they took."""
    freed = 0
    for copy in copies:
        nbytes = copy.nbytes
        if copy.path.is_symlink() or not copy.path.is_dir():
            copy.path.unlink(missing_ok=True)  # of a link the link alone
        else:
            shutil.rmtree(copy.path)
        freed += nbytes
        if site is not None:
            log = AuditLog(site.state / "audit.jsonl")
            log.append("purged", path=str(copy.path), what=copy.what, bytes=nbytes)
    return freed


def _experiments(state: Path) -> list[Path]:
    folders = sorted(state.iterdir()) if state.is_dir() else []
    return [folder for folder in folders if _is_experiment(folder)]


def _is_experiment(folder: Path) -> bool:
    """Is it a folder of an experiment, and no link or path to elsewhere?"""
    named = re.fullmatch(NAME, folder.name) is not None
    return named and folder.is_dir() and not folder.is_symlink()


def _cached(stem: str | None) -> Iterator[Copy]:
    """Entries of the cache for data of this name, in any version of the file, and leftovers of
    processes that were killed; None: all."""
    root = cache_root()
    name = ".*" if stem is None else re.escape(re.sub(r"[^A-Za-z0-9_]+", "_", stem)) + r"(_.*)?"
    pattern = re.compile(name + r"-[0-9a-f]{24}")
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        if pattern.fullmatch(entry.name):
            yield Copy(entry, "rows of data, decoded")
        elif entry.name.startswith(_SCRATCH):
            yield Copy(entry, "rows of data that a process was decoding when it ended")
