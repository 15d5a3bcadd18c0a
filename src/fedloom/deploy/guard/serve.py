"""Flower's own program with the guard around it."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware import Middleware

from fedloom.deploy.guard.connections import (
    HEAD_SECONDS,
    Connections,
    ImpatientProtocol,
    Listener,
)
from fedloom.deploy.guard.local_peer import LocalPeers
from fedloom.deploy.guard.requests import Guard, Record, Rules
from fedloom.deploy.guard.uploads import Uploads
from fedloom.deploy.processes.children import FLWR
from fedloom.deploy.project.certificates import host_names
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.public_keys import PublicKeys
from fedloom.deploy.server.audit import record_event
from fedloom.errors import BadInput, DiskError

log = logging.getLogger("fedloom")

HOME = "FLWR_HOME"
"""Environment variable that marks the commands of `fedloom deploy` for a project."""
MEGABYTE = 10**6
CONNECTION_BUFFER = 32 * 1024
"""Bytes that asyncio reads at a time; each connection has as many from its beginning, by default
eight times so many, which is what strangers' connections would cost in memory."""
SPARE_FILES = 200
"""Open files that are not connections: the database, logs, pipes."""


def serve(project: Project) -> None:
    """Run the SuperLink with this process's arguments until it is stopped."""
    if version("flwr") != FLWR:
        raise BadInput(
            f"the guard was made for flwr {FLWR}, and {version('flwr')} is installed; without it"
            f" the SuperLink would be open: pip install flwr=={FLWR}"
        )
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    link = project.link
    certificate = Certificate(link.certificate, link.key)
    keys = PublicKeys(project.keys_folder) if link.tls else None
    rules = Rules(
        hosts=lambda: {*link.hosts, "localhost", *certificate.names()},
        keys=keys,
        peers=_local_peers(project),
        most_body=int(link.most_body_mb * MEGABYTE),
        body_seconds=link.body_seconds,
    )
    Uploads(keys, int(link.most_reply_mb * MEGABYTE)).install()
    most = max(10, min(link.connections, _most_open_files() - SPARE_FILES))
    connections = Connections(most, link.connections_per_address)
    without_guard = extensions.get_middleware

    def with_guard() -> tuple[Middleware, ...]:
        guard = Middleware(Guard, rules=rules, connections=connections, record=_record(project))
        return (guard, *without_guard())

    extensions.get_middleware = with_guard
    uvicorn.run = _listening(connections, certificate)
    # For handshakes that are begun and not ended: uvicorn has no setting for it.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HEAD_SECONDS  # type: ignore[attr-defined]
    asyncio.sslproto.SSLProtocol.max_size = CONNECTION_BUFFER  # type: ignore[attr-defined]
    flower_superlink()


def _record(project: Project) -> Record:
    """Writes refused requests to the server's audit log; a full disk must not stop the others."""

    def record(status: int, example: str, count: int) -> None:
        try:
            fields = {"status": status, "example": example, "count": count}
            record_event(project.root, "requests refused", **fields)
        except DiskError as e:
            log.error("the audit log: %s", e)

    return record


def _local_peers(project: Project) -> LocalPeers | None:
    if Path("/proc/net/tcp").exists():
        return LocalPeers(HOME, str(project.home))
    if project.link.is_loopback:
        return None
    raise BadInput(
        f"on {sys.platform} the guard cannot tell who submits runs; run `fedloom deploy link` on"
        " Linux, or bind it to 127.0.0.1"
    )


def _listening(connections: Connections, certificate: Certificate) -> Callable[..., None]:
    """In place of `uvicorn.run`, as Flower calls it."""

    def run(app: Any, *, host: str, port: int, **settings: Any) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=settings["log_config"],
            access_log=settings["access_log"],
            ssl_keyfile=settings["ssl_keyfile"],
            ssl_certfile=settings["ssl_certfile"],
            loop="asyncio",  # its connections can be counted where they are accepted
            http=ImpatientProtocol,
            ws="none",
            proxy_headers=False,  # the guard goes by the connection, not by what a header says
        )
        config.load()
        certificate.context = config.ssl
        listener = Listener(host, port, connections, certificate.renew)
        uvicorn.Server(config).run(sockets=[listener])

    return run


def _most_open_files() -> int:
    """Raised as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


class Certificate:
    """The server's certificate, taken anew for the next connection when its file changes."""

    def __init__(self, certificate: Path | None, key: Path | None) -> None:
        self.certificate, self.key = certificate, key
        self.context: ssl.SSLContext | None = None
        self._stamp = self._stamps()
        self._names = self._read_names()

    def names(self) -> frozenset[str]:
        """Names and addresses that stand in it."""
        return self._names

    def renew(self) -> None:
        """Use what the files hold now."""
        stamp = self._stamps()
        if stamp == self._stamp or self.context is None or self.certificate is None:
            return
        try:
            self.context.load_cert_chain(self.certificate, self.key)
            self._names = self._read_names()
        except (OSError, ValueError):  # just being written; the one before goes on
            return
        self._stamp = stamp
        log.info("the server's certificate was renewed")

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        files = [file for file in (self.certificate, self.key) if file is not None]
        try:
            return tuple((f.stat().st_mtime_ns, f.stat().st_ino) for f in files)
        except OSError:
            return ()

    def _read_names(self) -> frozenset[str]:
        names = [] if self.certificate is None else host_names(self.certificate)
        return frozenset(name.lower() for name in names)
