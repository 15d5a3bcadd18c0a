"""`fedloom deploy check` on the way to the server, its certificate, and both clocks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("flwr")

from certificates_for_tests import DAY, authority, server_context
from site_to_spoil import SiteToSpoil, free_port, undecided, wrong

from fedloom.deploy.check import connection


def test_a_name_that_does_not_resolve(site: SiteToSpoil) -> None:
    """A scope that no interface has: refused by the resolver itself, without asking a network."""
    site.values["superlink"] = "[fe80::1%nosuch0]:9092"
    results = site.check()
    assert wrong(results) == ["server name"]
    assert "cannot be resolved" in results["server name"].message
    assert undecided(results) == ["server port", "server TLS", "clock"]


@pytest.mark.parametrize("written", ["https://127.0.0.1:9092", "127.0.0.1", "127.0.0.1:99999"])
def test_an_address_that_is_none(site: SiteToSpoil, written: str) -> None:
    site.values["superlink"] = written
    results = site.check()
    assert wrong(results) == ["server name"]
    assert "write host:port" in results["server name"].message
    assert undecided(results) == ["server port", "server TLS", "clock"]


def test_a_closed_port(site: SiteToSpoil) -> None:
    site.values["superlink"] = f"127.0.0.1:{free_port()}"
    results = site.check()
    assert wrong(results) == ["server port"]
    assert "nothing listens at" in results["server port"].message
    assert undecided(results) == ["server TLS", "clock"]


def test_a_port_that_never_answers(site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of one that is full: Linux drops further connections, as a firewall does."""
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    with socket.socket() as deaf, ExitStack() as queue:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        site.values["superlink"] = f"127.0.0.1:{deaf.getsockname()[1]}"
        results = site.check()
    assert wrong(results) == ["server port"]
    assert "within 0.5 s" in results["server port"].message
    assert "firewall" in results["server port"].message


@pytest.mark.parametrize(
    ("context", "says"),
    [
        (
            lambda site: server_context(site.root, authority()),
            "is not from the authority in",
        ),
        (
            lambda site: server_context(site.root, authority(name="another")),
            "is not from the authority in",
        ),
        (
            lambda site: server_context(site.root, site.authority, host="127.0.0.2"),
            "is for other names (127.0.0.2)",
        ),
        (
            lambda site: server_context(site.root, site.authority, -9 * DAY, -2 * DAY),
            "expired on",
        ),
        (
            lambda site: server_context(site.root, site.authority, 2 * DAY, 9 * DAY),
            "it is probably behind",
        ),
    ],
    ids=["namesake", "other authority", "other host", "expired", "not yet valid"],
)
def test_a_server_not_to_be_trusted(
    site: SiteToSpoil, context: Callable[[SiteToSpoil], ssl.SSLContext], says: str
) -> None:
    site.serve(context(site))
    results = site.check()
    assert wrong(results) == ["server TLS"]
    assert says in results["server TLS"].message
    assert results["clock"].ok


def test_a_server_without_tls_where_tls_is_configured(site: SiteToSpoil) -> None:
    site.serve(None)
    results = site.check()
    assert wrong(results) == ["server TLS"]
    assert "speaks no TLS" in results["server TLS"].message
    assert results["clock"].ok


def test_a_server_with_tls_where_none_is_configured(site: SiteToSpoil) -> None:
    site.good_server()
    del site.values["ca"]
    results = site.check()
    assert wrong(results) == ["server TLS"]
    assert "speaks TLS, but" in results["server TLS"].message


def test_no_tls_on_either_side(site: SiteToSpoil) -> None:
    site.serve(None)
    del site.values["ca"], site.values["key"]
    results = site.check()
    assert not wrong(results)
    assert "nothing is encrypted" in results["server TLS"].message


@pytest.mark.parametrize("tls", [True, False])
def test_a_port_of_something_else(
    site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """It accepts connections and says nothing."""
    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    if not tls:
        del site.values["ca"]
    with closing(socket.create_server(("127.0.0.1", 0), backlog=50)) as mute:
        site.values["superlink"] = f"127.0.0.1:{mute.getsockname()[1]}"
        results = site.check()
    assert wrong(results) == ["server TLS"]
    assert "is this the SuperLink's port?" in results["server TLS"].message
    assert undecided(results) == ["clock"]


@pytest.mark.parametrize(
    ("shift", "key", "ok"),
    [
        (-20, True, False),
        (-20, False, True),
        (200, True, True),
        (200, False, False),
        (400, True, False),
        (-5.5, True, None),
    ],
)
def test_clocks_apart(site: SiteToSpoil, shift: float, key: bool, ok: bool | None) -> None:
    """Flower takes a signature of up to 5 s from the future and 305 s from the past; without a
    key 60 s either way are fit. A server 20 s behind makes this clock 20 s ahead: refused with a
    key, though 200 s behind is not. Of 5.5 s a header with whole seconds cannot decide."""
    site.good_server(shift)
    if not key:
        del site.values["key"]
    results = site.check()
    assert results["clock"].ok is ok
    assert wrong(results) == (["clock"] if ok is False else [])
    assert ("ahead of" if shift < 0 else "behind") in results["clock"].message


def test_a_server_that_does_not_tell_its_time(site: SiteToSpoil) -> None:
    site.good_server(None)
    results = site.check()
    assert not wrong(results)
    assert undecided(results) == ["clock"]
