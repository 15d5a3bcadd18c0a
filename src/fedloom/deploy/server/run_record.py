"""What the server's audit log has of a run: from being submitted to its end, or why it had none."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.supercore.run import Run

from fedloom.deploy.consent.proposal import PACKAGES, WAITS
from fedloom.deploy.server.audit import record_event
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.engines.flower import Traffic
from fedloom.record import RoundRecord, Summary
from fedloom.runs.watcher import RunView, Watcher


class RunRecord(Watcher):
    """Writes what was asked for, who took part, who was turned away, and what travelled."""

    def __init__(
        self,
        project: Path,
        run: Run,
        registry: SiteRegistry,
        settings: Settings,
        traffic: Traffic,
    ) -> None:
        self.project, self.run, self.registry = project, run, registry
        self.settings, self.traffic = settings, traffic

    def submitted(self) -> None:
        """The run is there, and nobody has answered yet."""
        self._append("submitted", **self._about())

    def turned_away(self, site: str, why: str, refused: bool) -> None:
        """A site that is connected and does not take part."""
        event = "introduction refused" if refused else "no introduction"
        self._append("waiting" if WAITS in why else event, site=site, why=why)

    def begun(self, run: RunView) -> None:
        """Enough sites are there."""
        self._append("run began", **self._about(), steps_done=run.done)

    def step(self, run: RunView, record: RoundRecord) -> None:
        """A round."""
        self._append(
            "round",
            round=record.round,
            kind=record.kind,
            rows=self._named(record.rows),
            absent=self._named(record.absent),
            bytes_up=record.bytes_up,
            bytes_down=record.bytes_down,
            **self._bytes_of_sites(),
        )

    def ended(self, run: RunView, summary: Summary) -> None:
        """The digest of all states."""
        self._append("run ended", state_sha256=summary.state_sha256, rounds=summary.rounds)

    def models_saved(self, failed: Mapping[int, str]) -> None:
        """Sites were asked to keep their models for use."""
        self._append("models saved", not_saved=self._named(failed), **self._bytes_of_sites())

    def _about(self) -> dict[str, Any]:
        """App, versions and all settings, whoever set them."""
        settings = self.settings
        return {
            "app": self.run.fab_hash,
            "versions": {name: version(name) for name in PACKAGES},
            "schema": self.registry.schema.digest,
            "settings": {
                **settings.model_dump(mode="json", exclude={"run"}),
                **settings.run.model_dump(mode="json"),
            },
        }

    def _bytes_of_sites(self) -> dict[str, Any]:
        """Of whole messages, tensors and the rest, since the line before."""
        down, up = self.traffic.taken()
        return {"bytes_to": self._named(down), "bytes_from": self._named(up)}

    def _named(self, by_client: Mapping[int, Any]) -> dict[str, Any]:
        return {self.registry.name(cid): value for cid, value in sorted(by_client.items())}

    def _append(self, event: str, **fields: Any) -> None:
        about = {"run": str(self.run.run_id), "experiment": self.settings.experiment}
        record_event(self.project, event, **about, **fields)
