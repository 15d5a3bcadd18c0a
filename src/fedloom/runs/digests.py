"""Digests of every message and state of a run, chained, so that anybody can check a part of it.

`digests.jsonl` has a line for every step. Nothing in it depends on the engine, the machine's speed
or the folder: the same run gives the same lines wherever it is repeated, and its last link is the
digest of the whole course (`Summary.digest`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from fedloom.core.digest import digest, digests
from fedloom.core.message import Up
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State, nbytes
from fedloom.record import ClientDigests, StepDigests
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.journal import line_of

NOTHING = digest({})
"""Of the state of a client that keeps nothing; written as an empty word."""
TIMES = ("seconds", "activities")
"""What a journal's line says of the time that a step took."""
MOST_WAITING = 4 * 2**20
"""Bytes of answers and kept states that may wait to be hashed."""
HASHED_TOGETHER = 32
"""Answers whose tensors are made bytes of by one call; more leave the processor's cache before they
are hashed."""
LINK_END = b'"}\n'
"""Behind the link, the last field of a line."""
DECIDING = (
    *("method", "model", "seed", "participation", "newcomers", "protocol", "eval_every"),
    *("split", "shift", "augment", "normalize", "image_size", "encoder"),
)
"""Keys of a run that its first link covers, beside the digests of data and partition."""


def first_link(experiment: Experiment) -> str:
    """A digest of the settings: stands before the first step."""
    partition = experiment.data.partition
    config = experiment.config
    settings = {key: getattr(config, key) for key in DECIDING}
    # Left out where they say nothing, so that runs from before these keys keep their links.
    chosen = {
        "task": config.task,
        "metrics": config.metrics,
        "secure_aggregation": config.secure_aggregation,
        "privacy": config.privacy,
        "compression": config.compression,
        "aggregation": config.aggregation,
        "hostile": config.hostile,
    }
    settings |= {k: v for k, v in chosen.items() if v != RunConfig.model_fields[k].default}
    return _sha256({**settings, "data": partition.source, "partition": partition.fingerprint})


def link_of(line: StepDigests) -> str:
    """The link that a line must have, from all else in it."""
    return sha256(line_of(replace(line, link=""))).hexdigest()


def record_digest(record: Mapping[str, Any]) -> str:
    """Of a line in the journal as a JSON object, without the time that the step took."""
    return _sha256({key: value for key, value in record.items() if key not in TIMES})


def answer_digest(up: Up, of_state: str | None = None) -> str:
    """Of all that the server computes with: tensors, rows and loss; `of_state` is the digest of the
    tensors, where it is known."""
    numbers = f"{up.n} {sorted(up.metrics.items())}"
    return sha256(f"{of_state or digest(up.state)} {numbers}".encode()).hexdigest()


def kept_digest(state: State, of_state: str | None = None) -> str:
    """Of what a client keeps, or of a receipt for it; empty where it keeps nothing."""
    sha = of_state or digest(state)
    return "" if sha == NOTHING else sha


def kept_after(lines: Iterable[StepDigests]) -> dict[int, str]:
    """What the clients keep after these lines; those that keep nothing are left out."""
    kept = {client.client: client.after for line in lines for client in line.clients}
    return {cid: sha for cid, sha in kept.items() if sha}


class DigestChain:
    """The digests of a run as it goes on. Every object is hashed once: what is there before a step
    is known from the step before it."""

    def __init__(self, server: str, link: str, kept: Mapping[int, str] | None = None) -> None:
        self.server, self.link = server, link
        self.kept = dict(kept or {})

    @classmethod
    def begun(cls, experiment: Experiment, server: State) -> DigestChain:
        """Before the first step."""
        return cls(digest(server), first_link(experiment))

    @classmethod
    def after(cls, lines: list[StepDigests]) -> DigestChain:
        """After these, of which there is at least one."""
        return cls(lines[-1].server_after, lines[-1].link, kept_after(lines))

    def step(self) -> StepDigester:
        """For the next step."""
        return StepDigester(self)

    def accept(self, line: StepDigests) -> None:
        """Take a step that counts."""
        self.server, self.link = line.server_after, line.link
        self.kept |= {client.client: client.after for client in line.clients}


class StepDigester:
    """Takes the digests of one step while it is under way.

    Small answers wait until there are some of them: right after a client's training none of the
    code for a digest is in the processor's caches, and hashing one answer takes twice as long.
    """

    def __init__(self, chain: DigestChain) -> None:
        self._chain = chain
        self._messages: dict[int, str] = {}
        self._clients: list[ClientDigests] = []
        self._last: tuple[State, str] = ({}, NOTHING)
        self._waiting: list[tuple[int, Up, State]] = []
        self._waiting_bytes = 0

    def sent(self, cid: int, message: State) -> None:
        """What goes to a client; the same tensors for many clients are hashed once."""
        with timed("digests"):
            if not _same_tensors(message, self._last[0]):
                self._last = (message, digest(message))
            self._messages[cid] = self._last[1]

    def answered(self, cid: int, up: Up, kept: State) -> None:
        """What came back from a client, and what it keeps."""
        self._waiting.append((cid, up, kept))
        self._waiting_bytes += nbytes(up.state) + nbytes(kept)
        if self._waiting_bytes >= MOST_WAITING:
            self.hash_waiting()

    @property
    def clients(self) -> list[ClientDigests]:
        """Those that have answered, in the order of their ids."""
        self.hash_waiting()
        return sorted(self._clients, key=lambda entry: entry.client)

    def ended(self, step: int, server: State | None, record: Mapping[str, Any]) -> LinkedLine:
        """The step's line; `server` is None where the server's state stayed as it was, `record` the
        step's line in the journal."""
        with timed("digests"):
            line = StepDigests(
                step=step,
                server_before=self._chain.server,
                server_after=self._chain.server if server is None else digest(server),
                clients=tuple(self.clients),
                record=record_digest(record),
                previous=self._chain.link,
                link="",
            )
            return LinkedLine.of(line)

    def hash_waiting(self) -> None:
        """Hash the answers that wait, as when all have come."""
        with timed("digests"):
            for start in range(0, len(self._waiting), HASHED_TOGETHER):
                self._hash(self._waiting[start : start + HASHED_TOGETHER])
        self._waiting, self._waiting_bytes = [], 0

    def _hash(self, answers: Sequence[tuple[int, Up, State]]) -> None:
        kept_before = self._chain.kept
        sent = digests([up.state for _, up, _ in answers])
        stays = digests([kept for _, _, kept in answers])
        for (cid, up, kept), of_sent, of_kept in zip(answers, sent, stays, strict=True):
            self._clients.append(
                ClientDigests(
                    client=cid,
                    message=self._messages[cid],
                    before=kept_before.get(cid, ""),
                    answer=answer_digest(up, of_sent),
                    after=kept_digest(kept, of_kept),
                )
            )


@dataclass(frozen=True)
class LinkedLine:
    """A step's digests with their link, and the same as a line of `digests.jsonl`."""

    digests: StepDigests
    line: bytes

    @classmethod
    def of(cls, unlinked: StepDigests) -> LinkedLine:
        """Of digests whose link is empty. They are written once, for the link and for the file."""
        line = line_of(unlinked)
        link = sha256(line).hexdigest()
        before, end = line[: -len(LINK_END)], line[-len(LINK_END) :]
        return cls(replace(unlinked, link=link), before + link.encode() + end)


def _same_tensors(a: State, b: State) -> bool:
    """Whether two messages consist of the same objects; `b` is alive, so none is a later one."""
    return a.keys() == b.keys() and all(
        tree.keys() == b[name].keys() and all(v is b[name][k] for k, v in tree.items())
        for name, tree in a.items()
    )


def _sha256(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
