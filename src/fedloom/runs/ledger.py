"""The ledger: what left which client in which round, by name, shape and bytes.

`ledger.jsonl` has a line for every set of things that is shared for the first time, with a number,
and a line for every step that says which clients shared which set; steps that were given up,
because too few answered, are marked. An answer that was refused or came too late is not in it: the
journal names its client as absent. Nor is what was on its way when the server was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from fedloom.core.message import Plan, Up
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.errors import RunFolderError
from fedloom.record import (
    At,
    LedgerLine,
    LedgerStep,
    Reported,
    RoundRecord,
    SharedBy,
    SharedSet,
    SharedTensor,
    dump,
)
from fedloom.runs.journal import Journal, read_records

UNNUMBERED = -1


def shared_in(up: Up) -> SharedSet:
    """What an upload shares: its tensors, the number of training rows, and what was measured."""
    tensors = tuple(
        SharedTensor(
            f"{name}/{key}", tuple(v.shape), str(v.dtype)[6:], v.numel() * v.element_size()
        )
        for name, tree in up.state.items()
        for key, v in tree.items()
    )
    measured = {
        f"{At(score.moment, score.split, score.model)}: {metric}"
        for score in up.scores
        for metric in ("rows", *score.metrics)
    }
    rows = () if up.n == ROWS_UNTOLD else ("rows",)
    return SharedSet(UNNUMBERED, tensors, (*rows, *sorted(up.metrics), *sorted(measured)))


def _read(path: Path, start: int = 0) -> list[LedgerLine]:
    lines: list[LedgerLine] = read_records(path, cast(Any, LedgerLine), start)
    return lines


class Ledger:
    """Written while a run goes on, cut back together with its journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        lines = _read(journal.path)
        sets = [line for line in lines if isinstance(line, SharedSet)]
        self._numbers = {replace(line, number=UNNUMBERED): line.number for line in sets}
        self._clients_of: dict[int, list[int]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, goes_on_at: int = 0) -> Iterator[Self]:
        """Open for appending, cut back to where a run goes on; but what was sent in rounds that
        were given up left the clients all the same, and stays."""
        with Journal.open(path) as journal:
            behind = journal.position() > goes_on_at
            later = _read(path, goes_on_at) if behind else []
            given_up = [x for x in later if isinstance(x, LedgerStep) and not x.counted]
            numbers = {group.number for step in given_up for group in step.shared}
            journal.truncate(goes_on_at)
            for line in later:
                stays = line.number in numbers if isinstance(line, SharedSet) else not line.counted
                if stays:
                    journal.append(line)
            yield cls(journal)

    def enter(self, cid: int, up: Up) -> None:
        """One client's upload in the step under way."""
        shared = shared_in(up)
        if shared not in self._numbers:
            # Not their count: sets of rounds that were cut away leave gaps.
            self._numbers[shared] = number = max(self._numbers.values(), default=-1) + 1
            self._journal.append(replace(shared, number=number))
        self._clients_of.setdefault(self._numbers[shared], []).append(cid)

    def end_step(self, record: RoundRecord) -> None:
        """Close the step whose record in the journal this is."""
        scored = tuple(
            Reported(s.at, s.clients) for s in record.scores if s.at.group != "shared tests"
        )
        step = LedgerStep(
            record.step, record.round, record.kind, record.owner, self._drain(), scored, record.rows
        )
        self._journal.append(step)

    def give_up(self, step: int, plan: Plan) -> None:
        """Close a step that too few answered: it does not count, but what came has left."""
        shared = self._drain()
        self._journal.append(LedgerStep(step, plan.t, plan.kind, plan.owner, shared, counted=False))

    def _drain(self) -> tuple[SharedBy, ...]:
        clients_of, self._clients_of = self._clients_of, {}
        return tuple(
            SharedBy(number, tuple(sorted(ids))) for number, ids in sorted(clients_of.items())
        )

    def sync(self) -> int:
        """Make it survive a power cut; returns where it goes on."""
        return self._journal.sync()


@dataclass
class Account:
    """The ledger read and added up."""

    sets: dict[int, SharedSet] = field(default_factory=dict)
    steps: list[LedgerStep] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        """All complete lines, also of a run that goes on."""
        if not path.exists():
            raise RunFolderError(f"{path.parent} has no {path.name}; check the path of the run")
        account = cls()
        for line in _read(path):
            if isinstance(line, SharedSet):
                account.sets[line.number] = line
            else:
                account.steps.append(line)
        for step in account.steps:
            for group in step.shared:
                if group.number not in account.sets:
                    raise RunFolderError(
                        f"{path} tells in step {step.step} of set {group.number}, which it does not"
                        " describe; restore the file"
                    )
        return account

    def clients(self) -> dict[int, tuple[int, int]]:
        """Client -> (messages, bytes of tensors) that left it."""
        messages, sent = Counter[int](), Counter[int]()
        for step in self.steps:
            for group in step.shared:
                for cid in group.clients:
                    messages[cid] += 1
                    sent[cid] += self.sets[group.number].nbytes
        return {cid: (messages[cid], sent[cid]) for cid in sorted(messages)}

    def uses(self, number: int) -> tuple[set[int], list[LedgerStep]]:
        """Who ever shared a set, and the steps in which somebody did."""
        clients: set[int] = set()
        steps = []
        for step in self.steps:
            for group in step.shared:
                if group.number == number:
                    clients.update(group.clients)
                    steps.append(step)
        return clients, steps

    def scored(self) -> dict[At, set[int]]:
        """By moment and split: whose scores were reported."""
        clients: dict[At, set[int]] = {}
        for step in self.steps:
            for reported in step.scored:
                clients.setdefault(reported.at, set()).update(reported.clients)
        return clients

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "sets": [{**dump(shared), "nbytes": shared.nbytes} for shared in self.sets.values()],
            "steps": [dump(step) for step in self.steps],
            "clients": {cid: {"messages": m, "bytes": b} for cid, (m, b) in self.clients().items()},
        }
