"""MLflow, in plain files: `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri FOLDER`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.errors import needs_extra
from fedloom.loggers.base import Logger, Plain

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MLflow(Logger):
    """Parameters are the configuration, metrics the curves; of the summary, numbers are metrics
    and the rest tags, all named `summary/...`."""

    name = "mlflow"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import
        # Files need no SQLAlchemy, and no seconds of migrations before the first round.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with needs_extra(self.name):
            from mlflow import MlflowClient, entities
        self._new_client, self._entities = MlflowClient, entities
        self._client: MlflowClient | None = None
        self._run = ""

    def _open(self, folder: Path, title: str, log: str | None) -> str:
        # MLflow remembers stores it has opened, also one that was overwritten since.
        (folder / ".trash").mkdir(exist_ok=True)
        self._client = self._new_client(folder.resolve().as_uri())
        if log is None:
            experiment = self._client.get_experiment_by_name("fedloom")
            home = (
                experiment.experiment_id
                if experiment
                else self._client.create_experiment("fedloom")
            )
            self._run = self._client.create_run(home, run_name=title).info.run_id
        else:
            self._run = log
            self._client.update_run(log, status="RUNNING")
        return self._run

    def _write_config(self, config: Plain) -> None:
        assert self._client is not None
        params = [self._entities.Param(key, str(value)) for key, value in config.items()]
        self._client.log_batch(self._run, params=params)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        assert self._client is not None
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(k, v, now, self._round) for k, v in values.items()]
        self._client.log_batch(self._run, metrics)

    def _write_summary(self, summary: Plain) -> None:
        assert self._client is not None
        for key, value in summary.items():
            if isinstance(value, int | float):
                self._client.log_metric(self._run, f"summary/{key}", value, step=self._round)
            else:
                self._client.set_tag(self._run, f"summary/{key}", str(value))

    def _close(self, well: bool) -> None:
        assert self._client is not None
        self._client.set_terminated(self._run, "FINISHED" if well else "FAILED")
        self._client = None
