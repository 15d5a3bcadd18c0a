"""Who keeps a connection to the link when there are more than it holds."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("flwr")

from fedloom.deploy.guard.connections import MOST_ENDING, Connections, Listener

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="127.0.0.2 is this machine"
)


class Door:
    """A listener of six places, of which one holder has three; tests accept and close by hand."""

    def __init__(self, stack: ExitStack) -> None:
        self.connections = Connections(most=6, most_of_one=3)
        listener = Listener("127.0.0.1", 0, self.connections, lambda: None)
        self.listener = stack.enter_context(listener)
        self.listener.listen(200)
        self.stack = stack
        self.inside: dict[socket.socket, socket.socket] = {}

    def knock(self, source: str) -> socket.socket:
        """A connection from this address, seen from outside."""
        outside = socket.create_connection(
            self.listener.getsockname(), timeout=60, source_address=(source, 0)
        )
        self.stack.enter_context(outside)
        self.inside[outside] = self.stack.enter_context(self.listener.accept()[0])
        return outside

    def vouch(self, outside: socket.socket, site: str) -> None:
        self.connections.vouch(outside.getsockname(), site)

    def tidy(self) -> None:
        """Close what was hung up, as asyncio does."""
        for outside in self.inside:
            if not self.is_open(outside):
                self.inside[outside].close()

    def is_open(self, outside: socket.socket) -> bool:
        outside.setblocking(False)
        with suppress(BlockingIOError):
            return outside.recv(1) != b""
        return True

    def open_ones(self, outside: list[socket.socket]) -> list[bool]:
        return [self.is_open(one) for one in outside]


@pytest.fixture
def door() -> Iterator[Door]:
    with ExitStack() as stack:
        yield Door(stack)


def test_who_opens_many_loses_his_own_oldest(door: Door) -> None:
    flood = [door.knock("127.0.0.2") for _ in range(5)]
    assert door.open_ones(flood) == [False, False, True, True, True]


def test_a_newcomer_takes_the_place_of_the_address_with_the_most(door: Door) -> None:
    """Two addresses hold all six places; one more connection of a third address, then of a fourth,
    each costs the one with the most its oldest."""
    first = [door.knock("127.0.0.2") for _ in range(3)]
    second = [door.knock("127.0.0.3") for _ in range(3)]
    third = door.knock("127.0.0.4")
    assert door.open_ones(first) == [False, True, True]
    fourth = door.knock("127.0.0.5")
    assert door.open_ones(second) == [False, True, True]
    assert door.open_ones([third, fourth]) == [True, True]


def test_a_site_s_connections_stay_whatever_strangers_do(door: Door) -> None:
    """They are the oldest, the most of one holder, and from the same address as strangers."""
    site = [door.knock("127.0.0.2") for _ in range(3)]
    for one in site:
        door.vouch(one, "hospital-a")
    for _ in range(10):
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"):
            door.knock(source)
        door.tidy()
    assert all(door.open_ones(site))
    assert len(door.connections._holders) == 6


def test_a_site_has_no_more_than_its_share(door: Door) -> None:
    mine = [door.knock("127.0.0.2") for _ in range(3)]
    for one in mine:
        door.vouch(one, "hospital-a")
    door.vouch(mine[0], "hospital-a")  # used again: now the second one is the oldest
    more = door.knock("127.0.0.2")
    door.vouch(more, "hospital-a")
    assert door.open_ones([*mine, more]) == [True, False, True, True]
    others = [door.knock("127.0.0.3") for _ in range(3)]
    for one in others:
        door.vouch(one, "hospital-b")
    assert door.is_open(door.knock("127.0.0.4"))  # all six are sites': the oldest one goes
    assert door.open_ones([*mine, more]) == [True, False, False, True]
    assert all(door.open_ones(others))


def test_closed_connections_no_longer_count(door: Door) -> None:
    outside = [door.knock("127.0.0.2") for _ in range(3)]
    for one in outside:
        door.inside[one].close()
    again = [door.knock("127.0.0.2") for _ in range(3)]
    assert all(door.open_ones(again))
    assert (len(door.connections._holders), door.connections.ending) == (3, 0)


def test_no_more_are_accepted_before_those_that_were_hung_up_are_closed(door: Door) -> None:
    """Each of them still has a file open."""
    for _ in range(3 + MOST_ENDING):
        door.knock("127.0.0.2")
    with pytest.raises(BlockingIOError):
        door.knock("127.0.0.2")
    door.tidy()
    assert door.connections.ending == 0
    assert door.is_open(door.knock("127.0.0.2"))
