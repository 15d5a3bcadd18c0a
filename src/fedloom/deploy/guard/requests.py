"""Each request is decided on before a byte of its body is read."""

from __future__ import annotations

import asyncio
import binascii
import logging
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from fedloom.deploy.guard.local_peer import Address, LocalPeers
from fedloom.deploy.project.public_keys import PublicKeys
from fedloom.plain_text import plain

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fedloom.deploy.guard.connections import Connections

log = logging.getLogger("fedloom")

FOR_SITES = "/v1/fleet/"
HERE = "(this machine)"
"""In place of a site's name; no site can have it."""
LOCAL_BODY = 256 * 2**20
"""Bytes of a request from this machine: it may hold the app with users' code."""
RECORD_SECONDS = 600.0
"""One line of the audit log for each status in this time, with how many there were."""
Record = Callable[[int, str, int], None]
"""Status, an example with its sender, how many since the last one."""
LOG_SECONDS = 60.0
"""One line for each kind of refusal in this time: a flood must not fill the disk."""


@dataclass(frozen=True)
class Refusal:
    """A request that is not passed on."""

    status: int
    why: str
    heard_out: bool = False
    """Is the rest of the body read, and thrown away, so that the sender can read the answer? The
    end of a connection with bytes that nobody read makes its other end lose the answer."""


@dataclass(frozen=True)
class Allowed:
    """A request whose body is read."""

    site: str
    """Who speaks, by the key; `HERE` for a command of this machine."""
    most_body: int
    """Bytes that the body may have."""


@dataclass(frozen=True)
class Rules:
    """What a request must fulfil, in the order in which it is asked."""

    hosts: Callable[[], Collection[str]]
    """Names by which this server may be called."""
    keys: PublicKeys | None
    """Sites that are let in; None: without authentication."""
    peers: LocalPeers | None
    """None: any process of this machine may submit runs, for rehearsals without /proc."""
    most_body: int
    """Bytes of one request from a site."""
    body_seconds: float

    def decide(self, scope: Scope, known_here: bool = False) -> Allowed | Refusal:
        """Whether a request is passed on, by its head alone. `known_here`: an earlier one on the
        same connection was found to be this machine's, and looking again takes long."""
        headers = _headers(scope)
        server: Address = scope.get("server") or ("", 0)
        client: Address = scope.get("client") or ("", 0)
        host = _host(headers.get("host", ""))
        if host != server[0] and host not in self.hosts():
            return Refusal(421, f"this server is not called {plain(host, 80)}")
        if not scope["path"].startswith(FOR_SITES):
            why = None if known_here else self._not_local(client, server)
            if why is not None:
                return Refusal(403, why)
            allowed = Allowed(HERE, LOCAL_BODY)
        elif self.keys is None:
            allowed = Allowed(client[0], self.most_body)
        else:
            signer = _signer(headers, self.keys)
            if isinstance(signer, Refusal):
                return signer
            allowed = Allowed(signer, self.most_body)
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > allowed.most_body:
            most = allowed.most_body
            why = f"a body of {plain(stated, 20)} bytes is more than {most}"
            return Refusal(413, why, heard_out=True)
        return allowed

    def _not_local(self, client: Address, server: Address) -> str | None:
        if self.peers is not None:
            return self.peers.refuses(client, server)
        loopback = client[0].startswith("127.") or client[0] == "::1"
        return None if loopback else "only the server's own machine may do this"


class Guard:
    """Passes on what the rules allow, with its body read whole, bounded in size and time."""

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        connections: Connections,
        record: Record = lambda status, example, count: None,
    ) -> None:
        self.app, self.rules, self.connections, self.record = app, rules, connections, record
        self._logged: dict[tuple[int, str], float] = {}
        self._recorded: dict[int, float] = {}
        self._unrecorded: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        client = scope.get("client")
        address: Address | None = (client[0], client[1]) if client else None
        known_here = address is not None and self.connections.is_of(address, HERE)
        decision = self.rules.decide(scope, known_here)
        if isinstance(decision, Refusal):
            await self._refuse(decision, scope, receive, send)
            return
        if address is not None:
            self.connections.vouch(address, decision.site)
        body = await self._body(receive, decision.most_body)
        if body is None:
            return  # the other end hung up
        if isinstance(body, Refusal):
            await self._refuse(body, scope, receive, send)
            return
        await self.app(scope, _replayed(body, receive), send)

    async def _body(self, receive: Receive, most: int) -> bytes | Refusal | None:
        parts: list[bytes] = []
        seconds, size = self.rules.body_seconds, 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    more = message.get("more_body", False)
                    if size > most:
                        return Refusal(413, f"a body of more than {most} bytes", heard_out=more)
                    parts.append(part)
                    if not more:
                        return b"".join(parts)
        except TimeoutError:
            why = f"the body did not arrive within {seconds:g} s"
            return Refusal(408, why, heard_out=True)

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        client, moment = (scope.get("client") or ("?",))[0], time.monotonic()
        kind = (refusal.status, client)
        if moment - self._logged.get(kind, -LOG_SECONDS) >= LOG_SECONDS:
            if len(self._logged) > 1000:
                self._logged.clear()
            self._logged[kind] = moment
            log.warning("refused %s %s: %s", client, plain(scope["path"], 80), refusal.why)
        self._unrecorded[refusal.status] += 1
        if moment - self._recorded.get(refusal.status, -RECORD_SECONDS) >= RECORD_SECONDS:
            self._recorded[refusal.status] = moment
            example = f"{client} {plain(scope['path'], 80)}: {refusal.why}"
            self.record(refusal.status, example, self._unrecorded.pop(refusal.status))
        text = f"{refusal.why}\n".encode()
        # Closed, so that a body that is still on its way is not read.
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": text, "more_body": True})
        if refusal.heard_out:
            await self._hear_out(receive)
        await send({"type": "http.response.body", "body": b""})

    async def _hear_out(self, receive: Receive) -> None:
        """Read and forget the rest of a body, as long as a body may take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rules.body_seconds):
                while (await receive()).get("more_body", False):
                    pass


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Hands out a body that was read already, then whatever comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


def _headers(scope: Scope) -> dict[str, str]:
    """The last of each name counts nowhere: a header that comes twice is joined, and so useless."""
    joined: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[key] = f"{joined[key]},{text}" if key in joined else text
    return joined


def _host(written: str) -> str:
    """The name in a Host header, without its port.

    >>> _host("Server.example:9092"), _host("[::1]:9092"), _host("127.0.0.1")
    ('server.example', '::1', '127.0.0.1')
    """
    if written.startswith("["):
        return written[1:].partition("]")[0].lower()
    return written.partition(":")[0].lower().rstrip(".")


def _signer(headers: dict[str, str], keys: PublicKeys) -> str | Refusal:
    """The site that signed the time stamp, or why that does not show a site which is let in."""
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        stamp = headers[TIMESTAMP_HEADER]
        name = keys.name_of(key)
        if name is None:
            return Refusal(401, "this key is not let in")
        age = (now() - datetime.fromisoformat(stamp)).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return Refusal(401, "the signed time is not the server's time; compare the clocks")
        if not verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature):
            return Refusal(401, "the signature is not by this key")
    except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
        return Refusal(401, "the request is not signed by a site")
    return name
