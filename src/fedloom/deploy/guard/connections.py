"""Which connections may stay open, and how long a request's head may take to arrive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedloom.deploy.guard.local_peer import Address

HEAD_SECONDS = 10.0
"""For the TLS handshake, and for the first lines of a request once they begin to arrive."""
MOST_ENDING = 50
"""Connections that were hung up and still have their file open; see `SPARE_FILES` of `serve`."""


class Connection(socket.socket):
    """An accepted connection, counted until it is closed."""

    def __init__(self, accepted: socket.socket, closed: Callable[[], None]) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self._on_close: Callable[[], None] | None = closed

    def close(self) -> None:
        """Close it; it no longer counts."""
        hook, self._on_close = self._on_close, None
        super().close()
        if hook is not None:
            hook()

    def hang_up(self) -> None:
        """End it for both sides; asyncio, which owns the socket by then, closes it soon."""
        with suppress(OSError):  # the other end was quicker
            self.shutdown(socket.SHUT_RDWR)


Holder = tuple[bool, str]
"""Who a connection counts for: (False, neighbourhood) until a request on it was allowed, then
(True, site)."""


def _neighbourhood(host: str) -> str:
    """An address; of IPv6 the network of 64 bits, all of whose addresses one machine may take.

    >>> _neighbourhood("192.0.2.7"), _neighbourhood("2001:db8::1:2"), _neighbourhood("fe80::1%eth0")
    ('192.0.2.7', '2001:db8::', 'fe80::')
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))


class Connections:
    """All that are open, so divided that strangers cannot take a site's place.

    A connection is a stranger's until the guard allowed a request on it. When there are too many,
    the oldest connection of the stranger's address with the most of them goes, so that whoever
    opens many loses his own; those of sites go only where no stranger has any.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most_of_one` holds for each address of strangers, and for each site."""
        self.most, self.most_of_one = most, most_of_one
        self._held: dict[Holder, dict[Address, Connection]] = {}
        """Oldest first."""
        self._holders: dict[Address, Holder] = {}
        self.ending = 0
        """Hung up, and not closed yet."""

    def accepted(self, raw: socket.socket, address: Address) -> Connection:
        """Count a new connection, of a stranger so far; another one may have to go for it."""
        stranger = False, _neighbourhood(address[0])
        if self._remove(address) is not None:  # its other end reset it, and uses the port again
            self.ending += 1
        if len(self._held.get(stranger, ())) >= self.most_of_one:
            self._drop(stranger)
        elif len(self._holders) >= self.most:
            self._drop(min(self._held, key=lambda holder: (holder[0], -len(self._held[holder]))))
        connection = Connection(raw, lambda: self._closed(address, connection))
        self._add(stranger, address, connection)
        return connection

    def vouch(self, address: Address, site: str) -> None:
        """From now on the connection from this address and port is that of a site."""
        if (connection := self._remove(address)) is None:
            return
        holder = True, site
        if len(self._held.get(holder, ())) >= self.most_of_one:
            self._drop(holder)
        self._add(holder, address, connection)

    def is_of(self, address: Address, site: str) -> bool:
        """Was the connection from this address and port vouched for as that of this site?"""
        return self._holders.get(address) == (True, site)

    def _add(self, holder: Holder, address: Address, connection: Connection) -> None:
        self._held.setdefault(holder, {})[address] = connection
        self._holders[address] = holder

    def _remove(self, address: Address) -> Connection | None:
        holder = self._holders.pop(address, None)
        if holder is None:
            return None
        connection = self._held[holder].pop(address)
        if not self._held[holder]:
            del self._held[holder]
        return connection

    def _drop(self, holder: Holder) -> None:
        connection = self._remove(next(iter(self._held[holder])))
        assert connection is not None
        self.ending += 1
        connection.hang_up()

    def _closed(self, address: Address, connection: Connection) -> None:
        holder = self._holders.get(address)
        if holder is not None and self._held[holder][address] is connection:
            self._remove(address)
        else:
            self.ending -= 1


class Listener(socket.socket):
    """Accepts connections and has them counted."""

    def __init__(
        self, host: str, port: int, connections: Connections, accepting: Callable[[], None]
    ) -> None:
        """`accepting` is called before each connection is accepted."""
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.connections, self._accepting = connections, accepting
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((host, port))

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        if self.connections.ending >= MOST_ENDING:
            raise BlockingIOError  # asyncio closes those first, then comes back
        self._accepting()
        accepted, address = super().accept()
        return self.connections.accepted(accepted, (str(address[0]), int(address[1]))), address


class ImpatientProtocol(H11Protocol):
    """Closes a connection on which a request's head does not arrive in time."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not self._awaits_head():
            self._unwatch()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _too_slow(self) -> None:
        self._due = None
        if self._awaits_head():
            self.transport.abort()
