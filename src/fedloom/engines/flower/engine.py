"""The server's side: a grid of nodes as an engine, with data and personal states at the nodes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Array, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedloom.core.data import Federation, data_of
from fedloom.core.digest import digest, receipt
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.site import Visit
from fedloom.core.stopwatch import Stopwatch, timed
from fedloom.core.tree import State
from fedloom.engines import Absent, Engine, Job, JobOf
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order, Task
from fedloom.engines.flower.expected_upload import ExpectedUpload
from fedloom.errors import BadInput, FedloomError, TooFewClients

log = logging.getLogger("fedloom")

Admit = Callable[[dict[str, Any]], int]
"""From what a site says of itself to its client id; raises where it cannot take part."""

LEEWAY = 10.0
"""Seconds by which a message outlives the wait for its answer: that it is late is ours to say."""
HELLO = 120.0
"""Seconds a node has to say who it is: the others wait meanwhile."""
UNTAKEN = Absent("Flower did not take the message: the node is gone, or it is too large")
LOOK = 5.0
"""Seconds between looks for nodes that were started anew."""


class Line:
    """Sends messages over a grid and collects the replies, within a deadline."""

    def __init__(self, grid: Grid, deadline: float = 3600.0, poll: float = 0.5) -> None:
        self.grid, self.deadline, self.poll = grid, deadline, poll

    def exchange(
        self, kind: str, contents: dict[int, RecordDict], most: float = math.inf
    ) -> Iterator[tuple[int, RecordDict | Absent]]:
        """Every node's reply to its own message, as they arrive, within `most` seconds."""
        seconds = min(self.deadline, most)
        nodes, ttl = list(contents), seconds + LEEWAY
        end = time.monotonic() + seconds
        messages = [Message(contents[n], dst_node_id=n, message_type=kind, ttl=ttl) for n in nodes]
        # Flower gives no ids at all where a message is too large for it.
        ids = list(self.grid.push_messages(messages)) or [""] * len(nodes)
        waiting = {i: n for i, n in zip(ids, nodes, strict=True) if i}
        yield from ((n, UNTAKEN) for n in set(nodes) - set(waiting.values()))
        starts, look = self.starts(), time.monotonic() + LOOK
        while waiting and time.monotonic() < end:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                # A dead node's error is written by the link, so only the message tells whose.
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, _content(reply)
            if waiting and not replies:
                with timed("waiting"):
                    time.sleep(self.poll)
            if waiting and time.monotonic() > look:
                look = time.monotonic() + LOOK
                for name in self._lost(waiting, starts):
                    yield waiting.pop(name), Absent("its node was started anew in the meantime")
        for node in waiting.values():
            yield node, Absent(f"no answer within {seconds:g} s")

    def starts(self) -> dict[int, str]:
        """When every node was last started, where the grid knows."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _lost(self, waiting: Mapping[str, int], starts: Mapping[int, str]) -> list[str]:
        """Messages to nodes that were started since: whoever had them is gone.

        Flower itself tells only of nodes that it finds gone when asked. One may be back by then.
        """
        now = {**starts, **self.starts()}
        return [name for name, n in waiting.items() if n in starts and now[n] != starts[n]]


class Roster:
    """Which node serves which client: nodes come and go, clients are sites."""

    def __init__(self, line: Line, admit: Admit) -> None:
        self.line, self.admit = line, admit
        self._clients: dict[int, int] = {}
        """Node -> its client, in the order in which they introduced themselves."""
        self._refused: dict[int, str] = {}
        """Node -> when it was started; it is asked again when it was started anew."""

    def nodes(self) -> dict[int, int]:
        """Client -> node, of those that are there; a node that is new is asked who it is."""
        there, starts = list(self.line.grid.get_node_ids()), self.line.starts()
        unknown = {
            n: RecordDict()
            for n in there
            if n not in self._clients and not (n in self._refused and self._refused[n] == starts[n])
        }
        for node, said in self.line.exchange(MessageType.QUERY, unknown, HELLO) if unknown else ():
            self._introduce(node, said, starts[node])
        # A restarted node without a key has a new id while its old one lingers: the newest counts.
        newest = {c: n for n, c in self._clients.items() if n in there}
        return dict(sorted(newest.items()))

    def _introduce(self, node: int, said: RecordDict | Absent, started: str) -> None:
        hello = _understood(said, lambda records: dict(records.config_records["hello"]))
        if isinstance(hello, Absent) and said is hello:
            log.warning("a node did not say who it is (%s)", hello.why)
            return  # it is asked again
        try:
            if isinstance(hello, Absent):
                raise BadInput(hello.why)
            self._clients[node] = self.admit(hello)
        except FedloomError as e:
            self._refused[node] = started
            log.warning("a node is refused: %s", e)


class Flower(Engine):
    """Asks nodes; holds receipts for what they keep, and never sees it."""

    keeps_states = True

    def __init__(self, roster: Roster, least: int = 1, patience: float = 600.0) -> None:
        """`least` nodes are waited for, `patience` seconds at most."""
        self.roster, self.least, self.patience = roster, least, patience
        self.elsewhere = Stopwatch()
        self._nodes: dict[int, int] = {}

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        self._program, self._data = program, data
        self._phantom = ExpectedUpload(program, data.classes, data.kind == "text")

    def present(self, clients: int) -> Sequence[int]:
        end, told = time.monotonic() + self.patience, -1
        while len(nodes := self.roster.nodes()) < self.least:
            if len(nodes) != told:
                told = len(nodes)
                log.info("%d sites are connected; waiting for %d", told, self.least)
            if time.monotonic() > end:
                raise TooFewClients(
                    f"{len(nodes)} sites are connected, fewer than the {self.least} that a round"
                    f" needs, after {self.patience:g} s; start the others, then start again"
                )
            time.sleep(self.roster.line.poll)
        if gone := sorted(self._nodes.keys() - nodes.keys()):
            log.warning("no longer connected: clients %s", gone)
        self._nodes = nodes
        return [cid for cid in nodes if cid < clients]

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        self._phantom.begin()
        for made, said in self._ask("client", ids, job, ask):
            answer = _understood(said, partial(self._read, made, ask))
            if isinstance(answer, Absent):
                log.warning("client %d is absent: %s", made.cid, answer.why)
                yield made.cid, answer, {}
            else:
                yield made.cid, *answer

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for cid in (i for i in ids if i < 0):  # test sets that belong to nobody are the server's
            made = job(cid)
            visit = Visit(self._program, cid, data_of(self._data, cid), made.down, made.own)
            yield cid, evaluate(visit, ask)
        asked = [i for i in ids if i >= 0]
        for made, said in self._ask("evaluate", asked, job, ask):
            scores = _understood(said, lambda records: _checked(codec.read_scores(records), ask))
            if isinstance(scores, Absent):
                log.warning("client %d has no scores: %s", made.cid, scores.why)
                continue
            yield made.cid, scores

    def save(self, ids: Sequence[int], job: JobOf) -> dict[int, str]:
        """Have every client keep its personal model for use; returns who did not, and why."""
        failed = {}
        for made, said in self._ask("save", ids, job, None):
            done = _understood(said, codec.read_scores)
            if isinstance(done, Absent):
                failed[made.cid] = done.why
        return failed

    def close(self) -> None:
        pass

    def _ask(
        self, task: Task, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[Job, RecordDict | Absent]]:
        arrays: dict[int, Array] = {}
        jobs, contents = {}, {}
        with timed("transfer"):
            for made in map(job, ids):
                if (node := self._nodes.get(made.cid)) is None:
                    continue
                order = Order(made.cid, task, made.down, _name(made.own), ask)
                jobs[node], contents[node] = made, codec.write_order(order, arrays)
        for node, said in self.roster.line.exchange(MessageType.TRAIN, contents):
            yield jobs[node], said

    def _read(self, job: Job, ask: Ask | None, records: RecordDict) -> tuple[Up, State]:
        """The answer, if it is one that an honest client could give."""
        reply = codec.read_reply(records)
        if reply.cid != job.cid:
            raise BadInput(f"it speaks for client {reply.cid}")
        if why := self._phantom.refusal(job, reply.up):
            raise BadInput(why)
        _checked(reply.up.scores, ask)
        if strange := sorted(reply.up.metrics.keys() - {"loss"}):
            raise BadInput(f"nobody asked for the number {strange[0]!r}")
        if not math.isfinite(reply.up.metrics.get("loss", 0.0)):
            raise BadInput("its loss is not finite")
        if reply.anew:
            log.warning("client %d had lost its state and began anew", job.cid)
        return reply.up, receipt(reply.own) if reply.own else {}


Read = TypeVar("Read")


def _understood(said: RecordDict | Absent, read: Callable[[RecordDict], Read]) -> Read | Absent:
    """What a node says. Whatever is wrong with a reply costs its sender the round, not the run."""
    if isinstance(said, Absent):
        return said
    try:
        if why := codec.read_error(said):
            return Absent(why)
        return read(said)
    except FedloomError as e:
        return Absent(f"its reply was refused: {e}")
    except Exception as e:
        return Absent(f"its reply was refused: {type(e).__name__}: {e}")


def _checked(scores: tuple[ClientScore, ...], ask: Ask | None) -> tuple[ClientScore, ...]:
    """Scores of what was asked for, that can be averaged."""
    for score in scores:
        if ask is None or score.moment not in ask.moments or score.split not in ask.splits:
            raise BadInput(f"nobody asked for {score.moment!r} on {score.split!r}")
        accuracy = score.metrics.get("accuracy", math.nan)
        if not (0 <= accuracy <= 1 and score.rows >= 1):
            raise BadInput(f"a score of {accuracy} on {score.rows} rows cannot be")
    return scores


def _content(reply: Message) -> RecordDict | Absent:
    if reply.has_error():
        return Absent(f"Flower says: {reply.error.reason}")
    return reply.content


def _name(own: State | None) -> str | None:
    """The digest of what a client keeps; empty where that is nothing; None: it is new."""
    if own is None:
        return None
    return digest(own) if any(own.values()) else ""
