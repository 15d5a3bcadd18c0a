"""What `--metrics` tells of a link and of a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedloom.deploy.operations.metrics import (
    AuditCounts,
    Sample,
    disk_samples,
    run_samples,
    serving,
    up_sample,
)
from fedloom.deploy.processes.children import Child, listens
from fedloom.deploy.project.folder import Project
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.quota import out_of_room


@contextmanager
def watched_link(project: Project, child: Child, address: str | None) -> Iterator[str]:
    """Health and numbers of a SuperLink while the block runs; yields where they are."""
    begun, server = time.time(), project.root / "server"
    audit = AuditCounts(server / "audit.jsonl")
    host, _, port = project.link.address.rpartition(":")

    def samples() -> list[Sample]:
        own = [*up_sample(child.alive, begun, 1), *disk_samples(server)]
        return [*own, *run_samples(server / "runs"), *audit.samples()]

    def trouble() -> str:
        if not child.alive:
            return "the SuperLink does not run"
        return "" if listens(host, int(port)) else "the SuperLink does not listen yet"

    with serving(address, samples, trouble) as place:
        yield place


@dataclass
class Watch:
    """A node that is watched."""

    address: str = ""
    starts: int = 0


@contextmanager
def watched_node(config: SiteConfig, child: Child, address: str | None) -> Iterator[Watch]:
    """Health and numbers of a SuperNode while the block runs; the block counts its starts."""
    watch, begun, audit = Watch(), time.time(), AuditCounts(config.state / "audit.jsonl")

    def samples() -> list[Sample]:
        own = [*up_sample(child.alive, begun, watch.starts), *disk_samples(config.state)]
        most = Sample("folder_most_bytes", "most_disk of site.toml.", config.most_disk)
        return [*own, most, *audit.samples()]

    def trouble() -> str:
        if not child.alive:
            return "the SuperNode does not run"
        return out_of_room(config.state, config.most_disk)

    with serving(address, samples, trouble) as watch.address:
        yield watch
