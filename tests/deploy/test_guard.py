"""The real SuperLink behind its guard, with TLS on loopback: who is let in, and with how much."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fastapi import HTTPException
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from hostile import write_key

from fedloom.audit import AuditLog, verify
from fedloom.deploy.guard.uploads import Uploads
from fedloom.deploy.processes.children import Child, flower_environment, free_ports
from fedloom.deploy.processes.federation import start_link, superlink
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.identity import add_site, renew_certificate, revoke_site, rotate_key
from fedloom.deploy.project.new import write_project
from fedloom.deploy.project.public_keys import PublicKeys, key_bytes
from fedloom.deploy.server.audit import AUDIT
from fedloom.errors import BadInput
from fedloom.reply_limit import write_most_bytes
from helpers import LIMIT, wait_until

pytestmark = [
    pytest.mark.xdist_group("guard"),  # one link for all
    pytest.mark.skipif(
        not sys.platform.startswith("linux"),
        reason="127.0.0.2 is this machine, /proc tells who asks",
    ),
]
A, B, C = "hospital-a", "hospital-b", "hospital-c"
ACTIVATE, PUSH, PART = (
    f"/v1/fleet/{name}" for name in ("activate-node", "push-messages", "push-object")
)
CONTROL = "/v1/control/list-runs"
PROTOBUF = {"Content-Type": PROTOBUF_MEDIA_TYPE, "Accept": PROTOBUF_MEDIA_TYPE}
LIMITS = """
most_body_mb = 1
body_seconds = 20
connections = 60
connections_per_address = 20
"""


class Link:
    """A SuperLink that runs, and requests to it."""

    def __init__(self, project: Project, child: Child) -> None:
        self.project, self.child = project, child
        self.port = project.link.port
        self.context = ssl.create_default_context(cafile=str(project.link.ca))

    def key(self, site: str) -> ec.EllipticCurvePrivateKey:
        content = (self.project.site(site).parent / "site.key").read_bytes()
        loaded = load_ssh_private_key(content, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        return loaded

    def signed(self, key: ec.EllipticCurvePrivateKey, seconds_ago: float = 0) -> dict[str, str]:
        """The headers by which a node shows who it is."""
        stamp = (now() - timedelta(seconds=seconds_ago)).isoformat()
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key_bytes(key.public_key())).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
            TIMESTAMP_HEADER: stamp,
            **PROTOBUF,
        }

    def ask(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        body: Any = b"",
        source: str = "127.0.0.1",
        port: int | None = None,
    ) -> tuple[int, bytes]:
        """Status and text of the answer."""
        link = http.client.HTTPSConnection(
            "127.0.0.1",
            port or self.port,
            timeout=LIMIT,
            source_address=(source, 0),
            context=self.context,
        )
        with closing(link):
            link.request("POST", path, body=body, headers=headers or {})
            answer = link.getresponse()
            return answer.status, answer.read()

    def activate(self, key: ec.EllipticCurvePrivateKey) -> int:
        """Status of a node's first request."""
        return self.activated(key)[0]

    def activated(
        self, key: ec.EllipticCurvePrivateKey, source: str = "127.0.0.1"
    ) -> tuple[int, bytes]:
        request = ActivateNodeRequest(
            public_key=key_bytes(key.public_key()), heartbeat_interval=30.0
        )
        return self.ask(ACTIVATE, self.signed(key), request.SerializeToString(), source)

    def is_let_in(self, site: str) -> bool:
        """Flower refuses a node that is active already, but not with the guard's status."""
        return self.activate(self.key(site)) != 401

    def raw(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.port), timeout=LIMIT, source_address=(source, 0)
        )


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    folder = tmp_path_factory.mktemp("guard")
    project = write_project(folder / "study", [A, B], port=free_ports(1)[0])
    with open(project.root / "server" / "link.toml", "a") as file:
        file.write(LIMITS)
    project = Project.read(project.root)
    child = superlink(project, folder / "link.log")
    try:
        start_link(child, project, LIMIT)
        yield Link(project, child)
    finally:
        child.end()


# ------------------------------------------------------------------ keys


def test_a_key_in_the_folder_is_let_in_without_another_registration(link: Link) -> None:
    assert link.activate(link.key(A)) == 200


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("unsigned", b"not signed by a site"),
        ("unknown key", b"this key is not let in"),
        ("old", b"compare the clocks"),
        ("of tomorrow", b"compare the clocks"),
        ("another's signature", b"the signature is not by this key"),
        ("garbage", b"not signed by a site"),
        ("twice", b"not signed by a site"),
    ],
)
def test_who_is_not_let_in_is_refused_before_the_body_is_read(
    spoil: str, why: bytes, link: Link
) -> None:
    """600 MB are announced and not a byte of them is sent: the answer comes all the same."""
    mine = link.key(A)
    headers = {
        "unsigned": lambda: dict(PROTOBUF),
        "unknown key": lambda: link.signed(ec.generate_private_key(ec.SECP384R1())),
        "old": lambda: link.signed(mine, 3600),
        "of tomorrow": lambda: link.signed(mine, -86400),
        "another's signature": lambda: {
            **link.signed(mine),
            FLEET_HTTP_SIGNATURE_HEADER: link.signed(link.key(B))[FLEET_HTTP_SIGNATURE_HEADER],
        },
        "garbage": lambda: {**link.signed(mine), FLEET_HTTP_PUBLIC_KEY_HEADER: "%%%"},
        "twice": lambda: {**link.signed(mine), FLEET_HTTP_PUBLIC_KEY_HEADER.upper(): "AAAA"},
    }[spoil]()
    before = psutil.Process(link.child.pid).memory_info().rss
    status, text = link.ask(PUSH, {**headers, "Content-Length": str(600 * 10**6)})
    assert (status, why in text) == (401, True)
    assert psutil.Process(link.child.pid).memory_info().rss - before < 50 * 10**6


def test_revoking_takes_effect_at_once_for_one_site_alone(link: Link) -> None:
    add_site(link.project, C)
    assert link.is_let_in(C)
    assert C in Project.read(link.project.root).settings().sites
    public = (link.project.keys_folder / f"{C}.pub").read_bytes()
    revoke_site(link.project, C)
    assert not link.is_let_in(C)
    assert link.is_let_in(B)
    (link.project.root / "mine.pub").write_bytes(public)
    with pytest.raises(BadInput, match="was revoked; have the site make another one"):
        add_site(link.project, C, link.project.root / "mine.pub")
    add_site(link.project, C)
    assert link.is_let_in(C)


def test_rotating_refuses_the_old_key_and_takes_the_new_one(link: Link) -> None:
    before = link.key(B)
    rotate_key(link.project, B)
    assert link.activate(before) == 401
    assert link.is_let_in(B)
    with pytest.raises(BadInput, match="no key of a site 'hospital-x' is let in"):
        rotate_key(link.project, "hospital-x")
    events = [line["event"] for line in AuditLog(link.project.root / AUDIT).lines()]
    assert "key rotated" in events
    assert verify(link.project.root / AUDIT).lines == len(events)


def test_a_renewed_certificate_is_used_at_once(link: Link) -> None:
    def serial() -> int:
        with link.raw() as raw, link.context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            shown = tls.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number

    before = serial()
    assert "127.0.0.1" in renew_certificate(link.project)
    assert serial() != before
    assert link.is_let_in(A)


# ------------------------------------------------------------------ names and users


def test_another_host_name_is_refused(link: Link) -> None:
    for host, status in (("evil.example", 421), ("evil.example:443", 421), ("LOCALHOST:1", 401)):
        assert link.ask(ACTIVATE, {"Host": host})[0] == status


REQUEST = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
link = http.client.HTTPSConnection("127.0.0.1", int(sys.argv[1]), context=context)
link.request("POST", sys.argv[3], body=b"")
answer = link.getresponse()
print(answer.status, answer.read())
"""


def requested(link: Link, port: int, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", REQUEST, str(port), str(link.project.link.ca), CONTROL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_only_the_project_s_own_commands_submit_runs(link: Link) -> None:
    """Every local user and every program of this machine could do so before."""
    ours = flower_environment(link.project.home)
    assert not requested(link, link.port, ours).startswith("403")
    others = {key: value for key, value in ours.items() if key != "FLWR_HOME"}
    assert "only commands of `fedloom deploy`" in requested(link, link.port, others)
    for path in (CONTROL, "/v1/runtime/acquire-task", "/docs", "/v1/fleet/../control/list-runs"):
        assert link.ask(path, source="127.0.0.2")[0] in (401, 403)


@pytest.mark.skipif(os.getuid() != 0, reason="to become another user one has to be root")
def test_another_user_of_this_machine_is_refused(link: Link) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os.write(writing, repr(link.ask(CONTROL)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        assert b"only the user who runs the SuperLink may do this" in answer.read()
    os.waitpid(child, 0)


def test_a_proxy_on_this_machine_does_not_speak_for_others(link: Link) -> None:
    """A layer-4 proxy: the connection that the SuperLink sees comes from loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=forward, args=(listener, link.port), daemon=True).start()
        port = listener.getsockname()[1]
        answer = requested(link, port, flower_environment(link.project.home))
        assert answer.startswith("403")


def forward(listener: socket.socket, port: int) -> None:
    """Pass one connection on, both ways."""
    outside, _ = listener.accept()
    inside = socket.create_connection(("127.0.0.1", port))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(ConnectionError):  # the guard hung up
            while data := source.recv(65536):
                target.sendall(data)

    threading.Thread(target=copy, args=(inside, outside), daemon=True).start()
    copy(outside, inside)


# ------------------------------------------------------------------ size, time, connections


def test_a_body_that_is_too_large_is_refused_by_its_head(link: Link) -> None:
    headers = {**link.signed(link.key(A)), "Content-Length": str(2 * 10**6)}
    assert link.ask(PUSH, headers)[0] == 413


def test_who_sends_too_much_can_read_why(link: Link) -> None:
    """Like a SuperNode, which sends the whole body before it looks for an answer: if the guard hung
    up on the 20 MB that it does not want, the sender would see a broken connection, and try again
    for ever."""
    status, text = link.ask(PUSH, link.signed(link.key(A)), body=bytes(20 * 10**6))
    assert (status, text) == (413, b"a body of 20000000 bytes is more than 1000000\n")


def test_a_body_of_unstated_length_is_counted_while_it_arrives(link: Link) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(3000):
            yield b"0" * 1000

    status, text = link.ask(PUSH, link.signed(link.key(A)), body=endless())
    assert (status, text) == (413, b"a body of more than 1000000 bytes\n")


FLOODING = [f"127.0.0.{number}" for number in range(2, 10)]


class Flood:
    """Strangers at several addresses who open connections as fast as they can and keep them.

    Some say nothing, some begin a handshake, some end it and send a request without a signature
    whose body never ends. Each address has a thread of its own.
    """

    def __init__(self, link: Link) -> None:
        self.link, self.opened = link, 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._pour, args=(f,)) for f in FLOODING]

    def _pour(self, source: str) -> None:
        held: list[socket.socket] = []
        while not self._stop.is_set():
            try:
                held.append(self._connection(source, len(held) % 4))
                self.opened += 1
            except OSError:  # hung up already
                self._stop.wait(0.001)
            while len(held) > 100:
                held.pop(0).close()
        for one in held:
            one.close()

    def _connection(self, source: str, kind: int) -> socket.socket:
        raw = self.link.raw(source)
        try:
            return self._used(raw, kind)
        except OSError:
            raw.close()
            raise

    def _used(self, raw: socket.socket, kind: int) -> socket.socket:
        if kind == 3:
            tls = self.link.context.wrap_socket(raw, server_hostname="127.0.0.1")
            tls.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            tls.sendall(b"Content-Length: 1000000\r\n\r\n" + b"0" * 100_000)
            return tls
        if kind:
            raw.sendall(b"\x16\x03\x01" * kind)
        return raw

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_site_gets_through_while_strangers_flood_from_many_addresses(link: Link) -> None:
    """Eight addresses with 20 connections each for 60 places, as fast as they can. The site has an
    address of its own, then one that floods too. Like a SuperNode it tries again: until its key is
    seen it is a stranger, who may be slow on a busy machine or share the fate of its address."""

    def gets_through(source: str) -> bool:
        with suppress(OSError):
            status, text = link.activated(link.key(A), source)
            assert status != 401, text
            return True
        return False

    with Flood(link) as flood:
        wait_until(lambda: flood.opened > 200, pause=0.1)
        for source in ("127.0.0.1", "127.0.0.1", "127.0.0.1", FLOODING[0]):
            before = flood.opened
            wait_until(lambda source=source: gets_through(source))
            wait_until(lambda before=before: flood.opened > before + 60, pause=0.1)
    assert link.is_let_in(A)


def test_a_site_s_connection_outlasts_strangers_from_its_own_address(link: Link) -> None:
    """They may have 20 of this address, and open 25; the site's is the oldest. More than one
    attempt, because the link also closes a connection on which nothing came for five seconds."""
    assert any(outlasts_strangers(link) for _ in range(5))


def outlasts_strangers(link: Link) -> bool:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", link.port, timeout=LIMIT, context=link.context
    )
    with closing(connection), ExitStack() as stack:
        connection.connect()
        own = connection.sock
        with suppress(ConnectionError):
            for _ in range(2):
                connection.request("POST", ACTIVATE, headers=link.signed(link.key(A)))
                assert connection.getresponse().read() != b""
                if connection.sock is not own:
                    return False
                for _ in range(25):
                    stack.enter_context(closing(link.raw()))
            return True
    return False


@pytest.fixture(scope="module")
def given_up(link: Link) -> dict[str, bytes | tuple[int, bytes]]:
    """What the link answers to who is too slow for it; all at once, for each takes its time."""

    def nothing() -> bytes:
        with link.raw("127.0.0.2") as raw:
            return last_words(raw)

    def a_handshake_begun() -> bytes:
        with link.raw("127.0.0.2") as raw:
            raw.sendall(b"\x16\x03\x01")
            return last_words(raw)

    def a_head_begun() -> bytes:
        with link.raw() as raw, link.context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            tls.sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            return last_words(tls)

    def a_body_begun() -> tuple[int, bytes]:
        headers = {**link.signed(link.key(A)), "Content-Length": "1000"}
        return link.ask(PUSH, headers, body=b"0" * 10)

    with ThreadPoolExecutor() as pool:
        slow = (nothing, a_handshake_begun, a_head_begun, a_body_begun)
        answers = {sender.__name__: pool.submit(sender) for sender in slow}
    return {name: answer.result() for name, answer in answers.items()}


def last_words(connection: socket.socket) -> bytes:
    """Nothing, where the other end hangs up."""
    with suppress(ConnectionError):
        return connection.recv(100)
    return b""


def test_a_body_that_does_not_arrive_is_given_up(given_up: dict[str, tuple[int, bytes]]) -> None:
    assert given_up["a_body_begun"] == (408, b"the body did not arrive within 20 s\n")


def test_connections_on_which_nothing_comes_are_closed(given_up: dict[str, bytes]) -> None:
    assert given_up["nothing"] == b""
    assert given_up["a_handshake_begun"] == b""


def test_a_head_that_never_ends_is_cut_off(given_up: dict[str, bytes]) -> None:
    assert given_up["a_head_begun"] == b""


# ------------------------------------------------------------------ replies


def test_a_site_speaks_for_itself_only_and_sends_what_it_announced(link: Link) -> None:
    add_site(link.project, "hospital-d")
    key = link.key("hospital-d")
    status, body = link.activated(key)
    assert status == 200
    node = Node(node_id=ActivateNodeResponse.FromString(body).node_id)
    metadata = Metadata(src_node_id=node.node_id + 1, reply_to_message_id="x")
    forged = PushMessagesRequest(
        node=node,
        messages_list=[ProtoMessage(metadata=metadata)],
        message_object_trees=[ObjectTree()],
    )
    status, text = link.ask(PUSH, link.signed(key), forged.SerializeToString())
    assert (status, b"speaks for itself only" in text) == (403, True)
    part = PushObjectRequest(node=node, run_id=1, object_id="a", object_content=b"0" * 10**5)
    status, text = link.ask(PART, link.signed(key), part.SerializeToString())
    assert (status, b"no reply of this site is under way" in text) == (409, True)


class State:
    """Of Flower's database, what `Uploads` asks."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.deleted: set[str] = set()

    def get_valid_message_ins(self, name: str) -> dict[str, str]:
        return {"group_id": self.group}

    def delete_messages(self, names: set[str]) -> None:
        self.deleted |= names


class Flower(Uploads):
    """With Flower's own handlers replaced by ones that store everything."""

    def __init__(self) -> None:
        super().__init__(None, most_reply=10**9)
        self.stored = 0
        self._push_messages = lambda request, state: PushMessagesResponse(
            objects_to_push=["a", "b"], session_id="s"
        )
        self._push_object = self.store
        self._pull_messages = lambda request, state, task: list(request.message_ids)

    def store(self, request: Any, state: Any) -> Any:
        self.stored += len(request.object_content)
        return PushObjectResponse(stored=True)

    def announce(self, state: State) -> None:
        metadata = Metadata(src_node_id=7, reply_to_message_id="order")
        message = ProtoMessage(metadata=metadata)
        request = PushMessagesRequest(
            node=Node(node_id=7), messages_list=[message], message_object_trees=[ObjectTree()]
        )
        self.push_messages(request, state)

    def part(self, name: str, size: int, node: int = 7) -> Any:
        return PushObjectRequest(
            node=Node(node_id=node), session_id="s", object_id=name, object_content=b"0" * size
        )

    def shown(self, state: State) -> Any:
        """The server app asks for this reply and another one."""
        return self.pull_messages(PullAppMessagesRequest(message_ids=["order", "o"]), state, None)


def test_a_reply_is_shown_when_it_is_whole() -> None:
    """The server app would wait for the parts, and every other site with it."""
    uploads, state = Flower(), State(write_most_bytes(100))
    uploads.announce(state)
    assert uploads.shown(state) == ["o"]
    uploads.push_object(uploads.part("a", 50), state)
    assert uploads.shown(state) == ["o"]
    with pytest.raises(HTTPException, match="no reply of this site"):
        uploads.push_object(uploads.part("b", 1, node=8), state)
    uploads.push_object(uploads.part("b", 50), state)
    assert uploads.shown(state) == ["order", "o"]
    assert uploads.stored == 100


def test_a_reply_is_not_shown_while_it_is_announced() -> None:
    """The server app asks when Flower knows of the reply, and the guard not yet of its parts: with
    many parts that takes long, and whoever takes the reply then waits for them in vain."""
    uploads, state = Flower(), State(write_most_bytes(100))
    answer, asked = uploads._push_messages, []

    def interrupted(request: Any, state: Any) -> Any:
        asked.append(uploads.shown(state))
        return answer(request, state)

    uploads._push_messages = interrupted
    uploads.announce(state)
    assert asked == [["o"]]
    assert uploads.shown(state) == ["o"]


def test_no_reply_is_announced_while_the_server_app_is_told_which_there_are() -> None:
    uploads, state = Flower(), State(write_most_bytes(100))
    announcing = threading.Thread(target=uploads.announce, args=(state,))
    arrived: list[bool] = []

    def told(request: Any, state: Any, task: Any) -> Any:
        announcing.start()
        announcing.join(0.5)
        arrived.append(bool(uploads._arriving))
        return list(request.message_ids)

    uploads._pull_messages = told
    assert uploads.shown(state) == ["order", "o"]  # before it was announced: Flower has none
    announcing.join()
    assert (arrived, bool(uploads._arriving)) == ([False], True)


def test_a_reply_that_flower_refuses_does_not_hide_the_next_one() -> None:
    uploads, state = Flower(), State(write_most_bytes(100))

    def refused(request: Any, state: Any) -> Any:
        raise HTTPException(403, "the run is over")

    uploads._push_messages = refused
    with pytest.raises(HTTPException, match="the run is over"):
        uploads.announce(state)
    assert uploads.shown(state) == ["order", "o"]


def test_a_reply_that_exceeds_what_the_order_says_is_dropped_before_it_is_stored() -> None:
    uploads, state = Flower(), State(write_most_bytes(100))
    uploads.announce(state)
    uploads.push_object(uploads.part("a", 60), state)
    with pytest.raises(HTTPException, match="at most 100 bytes"):
        uploads.push_object(uploads.part("b", 60), state)
    assert (uploads.stored, state.deleted) == (60, {"order"})
    assert uploads.shown(state) == ["order", "o"]  # of which Flower says that it is gone
    with pytest.raises(HTTPException, match="no reply of this site"):
        uploads.push_object(uploads.part("b", 1), state)


def test_a_revoked_site_is_gone_for_the_server_app_at_once(tmp_path: Path) -> None:
    """Otherwise every round would wait for it until its heartbeat has lapsed, about a minute."""
    mine, other = (ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(2))
    write_key(tmp_path / "a.pub", mine)
    write_key(tmp_path / "b.pub", other)
    listed = [NodeInfo(node_id=i, public_key=key_bytes(k)) for i, k in ((1, mine), (2, other))]
    gone: list[int] = []
    state = SimpleNamespace(get_node_info=lambda statuses: listed, deactivate_node=gone.append)
    uploads = Uploads(PublicKeys(tmp_path), 1)
    uploads._get_nodes = lambda request, state, task: None
    uploads.get_nodes(None, state, None)
    assert gone == []
    (tmp_path / "b.pub").unlink()
    uploads.get_nodes(None, state, None)
    assert gone == [2]


def test_all_this_did_not_end_the_link(link: Link) -> None:
    assert link.child.alive
    assert link.is_let_in(A)
