"""The server's side: a grid of nodes as an engine, with data and personal states at the nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Array, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedloom.core.data import Federation, data_of
from fedloom.core.digest import digest, receipt
from fedloom.core.evaluate import Ask, Score, evaluate
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.stopwatch import Stopwatch, timed
from fedloom.core.tree import State
from fedloom.engines import Absent, Engine, Job, JobOf
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order, Task
from fedloom.engines.flower.phantom import Phantom
from fedloom.errors import BadInput, FedloomError, TooFewClients

log = logging.getLogger("fedloom")

Admit = Callable[[dict[str, Any]], int]
"""From what a site says of itself to its client id; raises where it cannot take part."""

LEEWAY = 10.0
"""Seconds by which a message outlives the wait for its answer: that it is late is ours to say."""
LOOK = 5.0
"""Seconds between looks for nodes that were started anew."""


class Line:
    """Sends messages over a grid and collects the replies, within a deadline."""

    def __init__(self, grid: Grid, deadline: float = 3600.0, poll: float = 0.5) -> None:
        self.grid, self.deadline, self.poll = grid, deadline, poll

    def exchange(
        self, kind: str, contents: dict[int, RecordDict]
    ) -> Iterator[tuple[int, RecordDict | Absent]]:
        """Every node's reply to its own message, as they arrive."""
        nodes, ttl = list(contents), self.deadline + LEEWAY
        end = time.monotonic() + self.deadline
        messages = [Message(contents[n], dst_node_id=n, message_type=kind, ttl=ttl) for n in nodes]
        ids = list(self.grid.push_messages(messages))
        waiting = {i: n for i, n in zip(ids, nodes, strict=True) if i}
        yield from ((n, Absent("the node is gone")) for n in set(nodes) - set(waiting.values()))
        starts, look = self._starts(), time.monotonic() + LOOK
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
            yield node, Absent(f"no answer within {self.deadline:g} s")

    def _starts(self) -> dict[int, str]:
        """When every node was last started, where the grid knows."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _lost(self, waiting: Mapping[str, int], starts: Mapping[int, str]) -> list[str]:
        """Messages to nodes that were started since: whoever had them is gone.

        Flower itself tells only of nodes that it finds gone when asked. One may be back by then.
        """
        now = {**starts, **self._starts()}
        return [name for name, n in waiting.items() if n in starts and now[n] != starts[n]]


class Roster:
    """Which node serves which client: nodes come and go, clients are sites."""

    def __init__(self, line: Line, admit: Admit) -> None:
        self.line, self.admit = line, admit
        self._clients: dict[int, int | None] = {}
        """Node -> its client; None: refused."""

    def nodes(self) -> dict[int, int]:
        """Client -> node, of those that are there; a node that is new is asked who it is."""
        there = list(self.line.grid.get_node_ids())
        unknown = {n: RecordDict() for n in there if n not in self._clients}
        for node, said in self.line.exchange(MessageType.QUERY, unknown) if unknown else ():
            self._introduce(node, said)
        # A restarted node without a key has a new id while its old one lingers: the newest counts.
        seen = {n: c for n, c in self._clients.items() if n in there}
        return dict(sorted((c, n) for n, c in seen.items() if c is not None))

    def _introduce(self, node: int, said: RecordDict | Absent) -> None:
        if isinstance(said, Absent):
            log.warning("a node did not say who it is (%s)", said.why)
            return  # it is asked again
        try:
            if why := codec.read_error(said):
                raise BadInput(why)
            self._clients[node] = self.admit(dict(said.config_records["hello"]))
        except (FedloomError, KeyError, ValueError, TypeError) as e:
            self._clients[node] = None
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
        self._phantom = Phantom(program, data.classes, data.kind == "text")

    def present(self, clients: int) -> Sequence[int]:
        end = time.monotonic() + self.patience
        while len(nodes := self.roster.nodes()) < self.least:
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
            answer = said if isinstance(said, Absent) else self._accepted(made, said)
            if isinstance(answer, Absent):
                log.warning("client %d is absent: %s", made.cid, answer.why)
                yield made.cid, answer, {}
            else:
                yield made.cid, *answer

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, dict[str, Score]]]:
        for cid in (i for i in ids if i < 0):  # test sets that belong to nobody are the server's
            made = job(cid)
            visit = Visit(self._program, cid, data_of(self._data, cid), made.down, made.own)
            yield cid, evaluate(visit, ask)
        asked = [i for i in ids if i >= 0]
        for made, said in self._ask("evaluate", asked, job, ask):
            if isinstance(said, Absent) or codec.read_error(said):
                continue
            yield made.cid, codec.read_scores(said)

    def save(self, ids: Sequence[int], job: JobOf) -> dict[int, str]:
        """Have every client keep its personal model for use; returns who did not, and why."""
        failed = {}
        for made, said in self._ask("save", ids, job, None):
            why = said.why if isinstance(said, Absent) else codec.read_error(said)
            if why:
                failed[made.cid] = why
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

    def _accepted(self, job: Job, said: RecordDict) -> tuple[Up, State] | Absent:
        """The answer, if it is one that an honest client could give."""
        try:
            if why := codec.read_error(said):
                return Absent(why)
            reply = codec.read_reply(said)
            kept = receipt(reply.own) if reply.own else {}
        except (FedloomError, KeyError, ValueError, TypeError, EOFError) as e:
            return Absent(f"its reply was refused: {type(e).__name__}: {e}")
        if reply.cid != job.cid:
            return Absent(f"its reply was refused: it speaks for client {reply.cid}")
        if why := self._refusal(job, reply.up):
            return Absent(f"its reply was refused: {why}")
        return reply.up, kept

    def _refusal(self, job: Job, up: Up) -> str:
        if job.down.plan.kind == "adapt":
            return ""  # nothing goes up
        return self._phantom.refusal(job, up)


def _content(reply: Message) -> RecordDict | Absent:
    if reply.has_error():
        return Absent(f"Flower says: {reply.error.reason}")
    return reply.content


def _name(own: State | None) -> str | None:
    """The digest of what a client keeps; empty where that is nothing; None: it is new."""
    if own is None:
        return None
    return digest(own) if any(own.values()) else ""
