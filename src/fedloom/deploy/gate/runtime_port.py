"""The SuperNode's local port answers to processes that the SuperNode started, and to nobody else.

Flower asks nobody there who they are: another user of the machine could take a run's task, with
the server's message, or answer in the site's name.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.deploy.guard.local_peer import LocalPeers
from fedloom.deploy.processes.federation import SITE_MARK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("fedloom")


class OwnProcessesOnly:
    """Refuses requests of other users and of processes that are none of this site's."""

    def __init__(self, app: ASGIApp, peers: LocalPeers) -> None:
        self.app, self.peers = app, peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and self._refused(scope):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse("only this site's own processes may do this\n", 403)
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refused(self, scope: Any) -> bool:
        client, server = scope.get("client"), scope.get("server")
        if not client or not server:
            return True
        return self.peers.refuses((client[0], client[1]), (server[0], server[1])) is not None


def guard_runtime_port() -> None:
    """From now on Flower's local interface is made with the guard."""
    if not Path("/proc/net/tcp").exists():
        log.warning(
            "this system does not tell who is at the other end of a connection: give the"
            " SuperNode a machine of its own"
        )
        return
    from flwr.supernode import main as supernode

    without_guard = supernode.create_app
    peers = LocalPeers(SITE_MARK, os.environ[SITE_MARK])

    def with_guard(*args: Any, **keys: Any) -> Any:
        app = without_guard(*args, **keys)
        app.add_middleware(OwnProcessesOnly, peers=peers)
        return app

    supernode.create_app = with_guard
