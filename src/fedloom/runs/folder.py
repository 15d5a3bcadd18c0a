"""The run folder: who may write in it, what lies where, and writing that a kill cannot tear."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy
import torch
from filelock import FileLock, Timeout

from fedloom.errors import RunFolderError
from fedloom.files import parse_json, read_regular, sync_folder, write_atomic, write_json
from fedloom.record import FORMAT
from fedloom.version import __version__

_LOCK = "fedloom.lock"
_PID = "fedloom.pid"
_LOGS = ("tensorboard", "wandb", "mlflow")


def current_versions() -> dict[str, str | int]:
    """What computes: the versions and the thread count that decide a run's last bits; and the
    format in which the folder is written."""
    return {
        "format": FORMAT,
        "fedloom": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


class RunPaths:
    """Where a run keeps what; enough for whoever only reads a run.

    `config` (the resolved configuration; its presence makes the folder a run), `versions` (what
    `current_versions` said when the run began), `data_path` (where the data lies, of which the
    configuration has a relative path), `partition` (which rows every client holds),
    `metrics` (the journal), `digests` (of every message and state), `ledger` (what left which
    client), `diagnostics` (what `diagnose` found), `unmasked` (of whose uploads sums were asked
    for), `checkpoints` (a folder), `summary` (the result
    of a run that ended), `report` (what a live page leaves), and, where loggers watched, a folder
    for each (`log`).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.versions = self.path / "versions.json"
        self.data_path = self.path / "data_path.json"
        self.partition = self.path / "partition.json"
        self.metrics = self.path / "metrics.jsonl"
        self.digests = self.path / "digests.jsonl"
        self.ledger = self.path / "ledger.jsonl"
        self.diagnostics = self.path / "diagnostics.jsonl"
        self.unmasked = self.path / "unmasked.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.summary = self.path / "summary.json"
        self.report = self.path / "report.html"

    def log(self, name: str) -> Path:
        """The folder of one logger."""
        return self.path / name

    def check_format(self) -> None:
        """Refuse, by name, a folder that another version of fedloom wrote in another format."""
        try:
            versions = parse_json(read_regular(self.versions))
            written = versions.get("format", 1)
        except (OSError, ValueError, AttributeError):
            raise RunFolderError(
                f"{self.versions} cannot be read, so the format of the run is unknown; restore it"
            ) from None
        if written != FORMAT:
            raise RunFolderError(
                f"the run in {self.path} is in format {written}, of fedloom"
                f" {versions.get('fedloom', 'unknown')}; this version reads format {FORMAT}:"
                " use that version, or run it again"
            )


class RunFolder(RunPaths):
    """A run folder that this process alone may write in, until `close` or its death.

    The operating system drops the lock of a killed process, so nothing is left to clean up.
    `fedloom.pid` tells others who holds the lock; it stays, and marks the folder as fedloom's own.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch, RunFolder.create(Path(scratch) / "run") as folder:
    ...     write_json(folder.config, {"method": "fedavg"})
    ...     folder.config.read_text().split()
    ['{', '"method":', '"fedavg"', '}']
    """

    def __init__(self, path: str | Path) -> None:
        """Names a folder without taking it: use `create` or `open`."""
        super().__init__(path)
        self._lock_file = self.path / _LOCK
        self._lock = FileLock(self._lock_file, timeout=0, thread_local=False)
        self._pid = self.path / _PID

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> Self:
        """Take a folder for a new run: a missing, empty or, with `overwrite`, a used one.

        Overwriting removes the files of the old run by name; anything else in the folder stays.
        """
        folder = cls(path)
        folder._make()
        folder._acquire()
        if folder.config.exists() and not overwrite:
            folder.close()
            raise RunFolderError(
                f"{path} already holds a run: resume it, pick another --out, or give --overwrite"
            )
        folder._clear()
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Take the folder of an earlier run, to go on with it."""
        folder = cls(path)
        missing = [p.name for p in (folder.config, folder._pid) if not p.is_file()]
        if missing:
            raise RunFolderError(
                f"there is no run in {path}: it has no {' and no '.join(missing)};"
                " check the path, or start a new run"
            )
        folder._refuse_links()
        folder._acquire()
        return folder

    def write_versions(self) -> None:
        """Write `current_versions` to `versions.json`."""
        write_json(self.versions, current_versions())

    def close(self) -> None:
        """Let other processes have the folder; closing twice is fine."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise RunFolderError(f"cannot make the run folder {self.path}: {error}") from error
        # Checked before the lock puts a file there: a stranger's folder is left as it was.
        if names and not names & {_LOCK, _PID}:
            raise RunFolderError(
                f"{self.path} is not empty and not a run folder, so nothing is written or deleted"
                " there; pick another --out"
            )

    def _refuse_links(self) -> None:
        """A run's files lie in its folder: through a link, what is elsewhere would be written,
        cut and deleted by whoever goes on with a stranger's run."""
        for path in (self._pid, self._lock_file, *self._files()):
            if path.is_symlink():
                raise RunFolderError(
                    f"{path} is a link to {os.readlink(path)}, and nothing outside a run folder is"
                    " written or deleted; put there what it points to"
                )

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
            write_atomic(self._pid, f"{os.getpid()}\n")
        except Timeout:
            raise RunFolderError(
                f"{self.path} is already in use by process {self._holder()};"
                " wait for it to end, or pick another --out"
            ) from None
        except OSError as error:
            self._lock.release()
            raise RunFolderError(f"cannot write in {self.path}: {error}") from error

    def _holder(self) -> str:
        with suppress(OSError):
            return read_regular(self._pid, 100).decode(errors="replace").strip()
        return "unknown"

    def _clear(self) -> None:
        for used in self._files():
            if used.is_dir() and not used.is_symlink():
                shutil.rmtree(used)
            else:
                used.unlink(missing_ok=True)
        sync_folder(self.path)

    def _files(self) -> tuple[Path, ...]:
        # The configuration is removed first: whatever a kill leaves behind is then no run any more.
        return (
            self.config,
            self.versions,
            self.data_path,
            self.partition,
            self.metrics,
            self.digests,
            self.ledger,
            self.diagnostics,
            self.unmasked,
            self.summary,
            self.report,
            self.checkpoints,
            *map(self.log, _LOGS),
        )
