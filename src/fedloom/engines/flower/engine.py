"""The server's side: a grid of nodes as an engine, with data and personal states at the nodes."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Array, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

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
from fedloom.engines.content import content_bytes
from fedloom.engines.flower import codec
from fedloom.engines.flower.bounds import Bounds
from fedloom.engines.flower.codec import Order, Task
from fedloom.engines.flower.expected_upload import ExpectedUpload
from fedloom.engines.flower.reply_size import SMALL, held_bytes
from fedloom.engines.message_bundle import Made, bundled, opened
from fedloom.errors import BadInput, DiskError, FedloomError, TooFewClients
from fedloom.plain_text import plain
from fedloom.polling import Pauses
from fedloom.reply_limit import write_most_bytes

log = logging.getLogger("fedloom")

Admit = Callable[[dict[str, Any]], int]
"""From how a site introduces itself to its client id; raises where it cannot take part."""

SiteOf = Callable[[bytes], str | None]
"""From a node's public key to the site that it belongs to; None: it is not let in."""

TurnedAway = Callable[[str, str, bool], None]
"""Is told of a node that does not take part: its site if its key says so, why, and whether it was
heard and refused, by the server or by its own gate."""

LEEWAY = 10.0
"""Seconds by which a message is valid beyond the wait for its answer, so that a late answer is
reported here, as late, and not by Flower as an expired message."""
INTRODUCTION_SECONDS = 120.0
"""How long a node may take to introduce itself: the others wait meanwhile."""
NOT_ACCEPTED = Absent("Flower did not take the message: the node is gone, or it is too large")
DROPPED = Absent("its reply was too large or too late, and was dropped; see the SuperLink's log")
FLOWER_SAYS = "Flower says: "
"""Before an error in place of an answer; of a site's gate, why it lets nothing out."""
RESTARTED = "its node was started anew in the meantime"
RESTART_CHECK_SECONDS = 5.0
"""Between two looks for nodes that were restarted."""


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError)
"""What Flower raises at a reply whose parts do not fit together."""


class Line:
    """Sends messages over a grid and collects the replies, within a deadline."""

    def __init__(self, grid: Grid, deadline: float = 3600.0, poll: float = 0.5) -> None:
        """`poll`: most seconds between two looks for replies."""
        self.grid, self.deadline, self.poll = grid, deadline, poll

    def exchange(
        self,
        kind: str,
        contents: dict[int, RecordDict],
        most: float = math.inf,
        sizes: Mapping[int, int] | None = None,
        arrived: Callable[[int, RecordDict], None] = lambda node, bundle: None,
    ) -> Iterator[tuple[int, RecordDict | Absent]]:
        """Every node's reply to its own message, as they arrive, within `most` seconds; `sizes` has
        the bytes that a node's reply may have, `SMALL` where it has none. `contents` are bundles;
        what is yielded was opened, `arrived` gets it as it came."""
        seconds = min(self.deadline, most)
        nodes, ttl = list(contents), seconds + LEEWAY
        end = time.monotonic() + seconds
        limits = {n: (sizes or {}).get(n, SMALL) for n in nodes}
        messages = [
            Message(
                contents[n],
                dst_node_id=n,
                message_type=kind,
                ttl=ttl,
                group_id=write_most_bytes(limits[n]),
            )
            for n in nodes
        ]
        # Flower returns no ids at all where a message is too large for it.
        ids = list(self.grid.push_messages(messages)) or [""] * len(nodes)
        waiting = {i: n for i, n in zip(ids, nodes, strict=True) if i}
        yield from ((n, NOT_ACCEPTED) for n in set(nodes) - set(waiting.values()))
        starts, next_check = self.starts(), time.monotonic() + RESTART_CHECK_SECONDS
        pauses = Pauses(least=0.05, most=self.poll)
        while waiting and time.monotonic() < end:
            before = len(waiting)
            for message_id in list(waiting):
                if (reply := self._pulled(message_id)) is not None:
                    node = waiting.pop(message_id)
                    if isinstance(reply, Absent):
                        yield node, reply
                        continue
                    if not reply.has_error():
                        arrived(node, reply.content)
                    yield node, _content(reply, limits[node])
            if waiting and len(waiting) == before:
                with timed("waiting"):
                    pauses.pause()
            if waiting and time.monotonic() > next_check:
                next_check = time.monotonic() + RESTART_CHECK_SECONDS
                for message_id in self._lost(waiting, starts):
                    yield waiting.pop(message_id), Absent(RESTARTED)
        for node in waiting.values():
            yield node, Absent(f"no answer within {seconds:g} s")

    def _pulled(self, message_id: str) -> Message | Absent | None:
        """The reply to a message, if it is there; for a node that is gone the link writes an error.
        Each is asked for by itself: one that Flower cannot put together raises, and would take with
        it all that came in the same answer."""
        try:
            return next(iter(self.grid.pull_messages([message_id])), None)
        except UNREADABLE as e:
            return _refused(f"Flower cannot read it ({type(e).__name__}: {e})")

    def starts(self) -> dict[int, str]:
        """When every node was last started, where the grid knows."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _lost(self, waiting: Mapping[str, int], starts: Mapping[int, str]) -> list[str]:
        """Ids of messages to nodes that were restarted since, and so have lost them.

        Flower reports a node only while it is gone; by the time it is asked, the node may be back.
        """
        now = {**starts, **self.starts()}
        return [i for i, n in waiting.items() if n in starts and now[n] != starts[n]]


class Roster:
    """Which node serves which client: nodes come and go, clients are sites."""

    def __init__(
        self,
        line: Line,
        admit: Admit,
        site_of: SiteOf | None = None,
        turned_away: TurnedAway = lambda site, why, refused: None,
    ) -> None:
        """`site_of` binds a site's name to its key; None: nodes have no keys, and are believed."""
        self.line, self.admit, self.site_of = line, admit, site_of
        self.turned_away = turned_away
        self._keys: dict[int, bytes] = {}
        """Node -> its public key, which never changes."""
        self._sites: dict[int, str] = {}
        """Node -> the site whose key it had when it introduced itself."""
        self._clients: dict[int, int] = {}
        """Node -> its client, in the order in which they introduced themselves."""
        self._refused: dict[int, str] = {}
        """Node -> when it was started; after a restart it is asked again."""
        self._reasons: dict[int, str] = {}
        """Node -> why it does not take part, as the log has it."""

    def nodes(self) -> dict[int, int]:
        """Client -> node, of all that are connected; a new node is asked to introduce itself."""
        listed = list(self.line.grid.get_nodes())
        connected = [node.node_id for node in listed]
        starts = {node.node_id: node.last_activated_at for node in listed}
        self._keys |= {node.node_id: bytes(node.public_key) for node in listed}
        for node in [n for n in self._clients if n in connected and self.objection_to(n)]:
            log.warning("a node no longer takes part: %s", self.objection_to(node))
            del self._clients[node]
        unknown = {n: RecordDict() for n in connected if self._is_unknown(n, starts)}
        if unknown:
            replies = self.line.exchange(MessageType.QUERY, unknown, INTRODUCTION_SECONDS)
            for node, reply in replies:
                self._introduce(node, reply, starts[node])
        # A restarted node without a key gets a new id while its old one is still listed: the one
        # that introduced itself last counts.
        newest = {c: n for n, c in self._clients.items() if n in connected}
        return dict(sorted(newest.items()))

    def reasons(self) -> list[str]:
        """Of every node that is connected and does not take part: who it is, and why."""
        connected = set(self.line.grid.get_node_ids())
        return [f"{self._named(n)}: {why}" for n, why in self._reasons.items() if n in connected]

    def objection_to(self, node: int) -> str:
        """Why what a node says does not count any more; empty if it does."""
        if self.site_of is None:
            return ""
        site, before = self.site_of(self._keys.get(node, b"")), self._sites.get(node)
        if site is None:
            return f"the key of {before or 'a node'} is not let in"
        return "" if site == before else f"its key is now that of {site}, not of {before}"

    def _check_identity(self, node: int, hello: Mapping[str, Any]) -> None:
        if self.site_of is None:
            return
        site = self.site_of(self._keys.get(node, b""))
        if site is None:
            raise BadInput("its key is not let in")
        if hello.get("site") != site:
            raise BadInput(f"the key of {site} introduces itself as {hello.get('site')!r}")
        self._sites[node] = site

    def _named(self, node: int) -> str:
        """The site to which a node's key belongs, for the log."""
        site = None if self.site_of is None else self.site_of(self._keys.get(node, b""))
        return "a node" if site is None else f"the node of {site}"

    def _is_unknown(self, node: int, starts: Mapping[int, str]) -> bool:
        refused = node in self._refused and self._refused[node] == starts[node]
        return node not in self._clients and not refused

    def _introduce(self, node: int, reply: RecordDict | Absent, started: str) -> None:
        hello = _read_or_absent(reply, lambda records: dict(records.config_records["hello"]))
        if isinstance(hello, Absent) and reply is hello:
            why = plain(hello.why)
            if self._reasons.get(node) != why:  # it is asked again, and again
                self._turn_away(node, why, refused=why.startswith(FLOWER_SAYS))
                log.warning("%s does not take part yet: %s", self._named(node), why)
            return
        try:
            if isinstance(hello, Absent):
                raise BadInput(hello.why)
            self._check_identity(node, hello)
            client = self.admit(hello)
        except DiskError:
            raise  # the server's own trouble, and no site's
        except FedloomError as e:
            self._refused[node] = started
            self._turn_away(node, plain(e), refused=True)
            log.warning("%s is refused: %s", self._named(node), plain(e))
            return
        self._reasons.pop(node, None)
        if client in self._clients.values():
            log.warning("client %d is served by another node from now on", client)
        self._clients[node] = client

    def _turn_away(self, node: int, why: str, refused: bool) -> None:
        self._reasons[node] = why
        site = None if self.site_of is None else self.site_of(self._keys.get(node, b""))
        self.turned_away(site or "", why, refused)


@dataclass
class Traffic:
    """Bytes of orders, and of replies as they arrived, by client, since somebody asked."""

    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)

    def taken(self) -> tuple[Counter[int], Counter[int]]:
        """Those that went down and up; then it counts from nothing."""
        taken = self.down, self.up
        self.down, self.up = Counter(), Counter()
        return taken


class Flower(Engine):
    """Sends orders to nodes; holds receipts for what they keep, and never sees it."""

    keeps_states = True

    def __init__(
        self,
        roster: Roster,
        least: int = 1,
        patience: float = 600.0,
        bounds: Bounds | None = None,
        checkpoints_kept: int = Engine.checkpoints_kept,
        traffic: Traffic | None = None,
    ) -> None:
        """`least` nodes are waited for, `patience` seconds at most; None: no `bounds` but those of
        the form of a reply. What travels is counted in `traffic`, if there is one."""
        self.roster, self.least, self.patience = roster, least, patience
        self.bounds, self.checkpoints_kept, self.traffic = bounds, checkpoints_kept, traffic
        self.elsewhere = Stopwatch()
        self._nodes: dict[int, int] = {}

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        self._program, self._data = program, data
        self._expected = ExpectedUpload(program, data.classes, data.kind == "text")
        if program.secure is not None and self.bounds is not None:
            log.info("uploads are masked, so their rows and lengths are not compared")
            self.bounds = None

    def present(self, clients: int) -> Sequence[int]:
        end, last_logged = time.monotonic() + self.patience, -1
        while len(nodes := self.roster.nodes()) < self.least:
            if len(nodes) != last_logged:
                last_logged = len(nodes)
                log.info("%d sites take part; waiting for %d", len(nodes), self.least)
            if time.monotonic() > end:
                raise TooFewClients(self._too_few(len(nodes)))
            time.sleep(self.roster.line.poll)
        if gone := sorted(self._nodes.keys() - nodes.keys()):
            log.warning("no longer connected: clients %s", gone)
        self._nodes = nodes
        return [cid for cid in nodes if cid < clients]

    def _too_few(self, taking_part: int) -> str:
        """Why nothing begins, with the reasons of those that are there and do not take part."""
        told = (
            f"{taking_part} sites take part, fewer than the {self.least} that a round needs, after"
            f" {self.patience:g} s"
        )
        if reasons := self.roster.reasons():
            return f"{told}; {'; '.join(reasons)}; see to that, then start again"
        return f"{told}; start the others, then start again"

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        self._expected.begin_round()
        bounds = self.bounds
        answers: dict[int, tuple[Job, Up, State]] = {}
        for sent, reply in self._ask("client", map(job, ids), ask):
            answer = _read_or_absent(reply, partial(self._read_upload, sent, ask))
            if isinstance(answer, Absent):
                yield self._absent(sent.cid, answer)
            elif bounds is None:
                yield sent.cid, *answer
            else:
                answers[sent.cid] = (sent, *answer)
        if bounds is None:
            return
        # Replies are compared with each other, so none counts before all have come.
        restored = self._program.compression.restored
        replies = {
            cid: (sent, up.carrying(restored(up.state, sent.down.state)))
            for cid, (sent, up, _) in answers.items()
        }
        objections = bounds.objections(replies)
        for cid, (_, up, own) in answers.items():
            if cid in objections:
                yield self._absent(cid, _refused(objections[cid]))
            else:
                yield cid, up, own

    def _absent(self, cid: int, answer: Absent) -> tuple[int, Absent, State]:
        log.warning("client %d is absent: %s", cid, answer.why)
        return cid, answer, {}

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for shared_test in (job(i) for i in ids if i < 0):  # these rows are at the server
            cid, data = shared_test.cid, data_of(self._data, shared_test.cid)
            visit = Visit(self._program, cid, data, shared_test.down, shared_test.own)
            yield cid, evaluate(visit, ask)
        at_sites = (job(i) for i in ids if i >= 0)
        for sent, reply in self._ask("evaluate", at_sites, ask):
            scores = _read_or_absent(reply, partial(self._read_scores, ask))
            if isinstance(scores, Absent):
                log.warning("client %d has no scores: %s", sent.cid, scores.why)
                continue
            yield sent.cid, scores

    def save(self, ids: Sequence[int], job: JobOf) -> dict[int, str]:
        """Have every client save its personal model for use; returns who did not, and why."""
        failed = {}
        for sent, reply in self._ask("save", map(job, ids), None):
            done = _read_or_absent(reply, codec.read_scores)
            if isinstance(done, Absent):
                failed[sent.cid] = done.why
        return failed

    def close(self) -> None:
        pass

    def _ask(
        self, task: Task, jobs: Iterable[Job], ask: Ask | None
    ) -> Iterator[tuple[Job, RecordDict | Absent]]:
        """Every connected client's reply, with the job it was asked to do."""
        arrays: dict[int, Array] = {}
        made: Made = {}
        jobs_of, contents, sizes = {}, {}, {}
        with timed("transfer"):
            for job in jobs:
                if (node := self._nodes.get(job.cid)) is None:
                    continue
                order = Order(job.cid, task, job.down, _name(job.own), ask)
                jobs_of[node] = job
                contents[node] = bundled(codec.write_order(order, arrays), made)
                sizes[node] = self._expected.most_bytes(job) if task == "client" else SMALL
                if self.traffic is not None:
                    self.traffic.down[job.cid] += content_bytes(contents[node])

        def arrived(node: int, bundle: RecordDict) -> None:
            if self.traffic is not None:
                with suppress(Exception):  # a dishonest reply can make anything fail
                    self.traffic.up[jobs_of[node].cid] += content_bytes(bundle)

        line = self.roster.line
        for node, reply in line.exchange(MessageType.TRAIN, contents, sizes=sizes, arrived=arrived):
            why = self.roster.objection_to(node)
            yield jobs_of[node], _refused(why) if why else reply

    def _read_upload(self, job: Job, ask: Ask | None, records: RecordDict) -> tuple[Up, State]:
        """The answer, if it is one that an honest client could give."""
        reply = codec.read_reply(records)
        if reply.cid != job.cid:
            raise BadInput(f"it speaks for client {reply.cid}")
        up = reply.up
        if objection := self._expected.objection_to(job, up):
            raise BadInput(objection)
        self._check_scores(up.scores, ask)
        if unknown := sorted(up.metrics.keys() - {"loss"}):
            raise BadInput(f"nobody asked for the number {unknown[0]!r}")
        if not math.isfinite(up.metrics.get("loss", 0.0)):
            raise BadInput("its loss is not finite")
        if reply.anew:
            log.warning("client %d had lost its state and began anew", job.cid)
        return up, receipt(reply.own) if reply.own else {}

    def _read_scores(self, ask: Ask, records: RecordDict) -> tuple[ClientScore, ...]:
        scores = codec.read_scores(records)
        self._check_scores(scores, ask)
        return scores

    def _check_scores(self, scores: Sequence[ClientScore], ask: Ask | None) -> None:
        objection = self._expected.objection_to_scores(scores, ask)
        if self.bounds is not None:
            objection = objection or self.bounds.objection_to_scores(scores)
        if objection:
            raise BadInput(objection)


Read = TypeVar("Read")


def _read_or_absent(
    reply: RecordDict | Absent, read: Callable[[RecordDict], Read]
) -> Read | Absent:
    """A node's reply. Whatever is wrong with it costs its sender the round, not the run."""
    if isinstance(reply, Absent):
        return reply
    try:
        if error := codec.read_error(reply):
            return Absent(plain(error))
        return read(reply)
    except FedloomError as e:
        return _refused(e)
    except Exception as e:  # a dishonest reply can make anything fail that reads it
        return _refused(f"{type(e).__name__}: {e}")


def _refused(why: object) -> Absent:
    return Absent(f"its reply was refused: {plain(why)}")


def _content(reply: Message, most: int) -> RecordDict | Absent:
    """What a reply holds."""
    if reply.has_error():
        if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:
            return DROPPED
        return Absent(f"{FLOWER_SAYS}{plain(reply.error.reason)}")
    return _opened(reply.content, most)


def _opened(bundle: RecordDict, most: int) -> RecordDict | Absent:
    """The records of a reply, unless it is larger than any honest one."""
    try:
        _check_size(bundle, most)
        records = opened(bundle)
        _check_size(records, most)
    except FedloomError as e:
        return _refused(e)
    except Exception as e:  # as above
        return _refused(f"{type(e).__name__}: {e}")
    return records


def _check_size(records: RecordDict, most: int) -> None:
    if (size := held_bytes(records)) > most:
        raise BadInput(f"it has {size} bytes, and a reply to this order has at most {most}")


def _name(own: State | None) -> str | None:
    """The digest of what a client keeps; empty where that is nothing; None: it is new."""
    if own is None:
        return None
    return digest(own) if any(own.values()) else ""
