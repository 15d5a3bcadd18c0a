"""Weights & Biases, offline: `wandb sync FOLDER/wandb/offline-run-*` sends a run, if you wish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.errors import needs_extra
from fedloom.loggers.base import Logger, Plain

if TYPE_CHECKING:
    from wandb import Run


class WandB(Logger):
    """Curves, configuration and summary in files; nothing goes over the network."""

    name = "wandb"
    appends = False  # and a kill costs its file the last second

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import
        with needs_extra(self.name):
            import wandb
        self._wandb = wandb
        self._run: Run | None = None

    def _open(self, folder: Path, title: str, log: str | None) -> str:
        if log is not None:
            for part in folder.glob(f"wandb/offline-run-*-{log}*"):
                shutil.rmtree(part)
        quiet = self._wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=1,
        )
        self._run = self._wandb.init(
            project="fedloom",
            name=title,
            id=log,
            dir=str(folder),
            mode="offline",
            reinit="create_new",
            settings=quiet,
        )
        # Its own steps count plans, of which a round may have several.
        self._run.define_metric("*", step_metric="round")
        return self._run.id

    def _write_config(self, config: Plain) -> None:
        assert self._run is not None
        self._run.config.update(config)  # type: ignore[no-untyped-call]

    def _write(self, values: Mapping[str, float], step: int) -> None:
        assert self._run is not None
        self._run.log({"round": self._round, **values}, step=step, commit=True)

    def _write_summary(self, summary: Plain) -> None:
        assert self._run is not None
        self._run.summary.update({f"summary/{key}": value for key, value in summary.items()})

    def _close(self, well: bool) -> None:
        assert self._run is not None
        self._run.finish(exit_code=0 if well else 1)
        self._run = None
        # A run of the user's own would still need the service process.
        if self._wandb.setup().most_recent_active_run is None:
            self._wandb.teardown()
