"""The ledger: what left which client in which round, by name, shape and bytes.

`ledger.jsonl` has a line for every set of things that is shared for the first time, with a number,
and a line for every step that says which clients shared which set; steps that were given up,
because too few answered, are marked. An answer that was refused or came too late is not in it: the
journal names its client as absent. Nor is what was on its way when the server was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedloom.core.message import Plan, Up
from fedloom.errors import RunFolderError
from fedloom.runs.journal import Journal

Tensors = tuple[tuple[str, tuple[int, ...], str, int], ...]
"""(slice/key, shape, type, bytes) of every tensor."""


@dataclass(frozen=True)
class Shared:
    """What one message brings to the server."""

    tensors: Tensors
    numbers: tuple[str, ...]
    """Names of the plain numbers beside them: rows, loss, scores."""

    @classmethod
    def of(cls, up: Up) -> Self:
        """Of an upload: its tensors, the number of training rows, and what was measured."""
        tensors = tuple(
            (f"{name}/{key}", tuple(v.shape), str(v.dtype)[6:], v.numel() * v.element_size())
            for name, tree in up.state.items()
            for key, v in tree.items()
        )
        return cls(tensors, ("rows", *sorted(up.metrics)))

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return sum(size for *_, size in self.tensors)

    def as_record(self, number: int) -> dict[str, Any]:
        """For JSON."""
        tensors = [
            {"name": name, "shape": shape, "type": kind, "bytes": size}
            for name, shape, kind, size in self.tensors
        ]
        return {"set": number, "bytes": self.nbytes, "numbers": self.numbers, "tensors": tensors}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """What `as_record` said."""
        tensors = tuple(
            (t["name"], tuple(t["shape"]), t["type"], t["bytes"]) for t in record["tensors"]
        )
        return cls(tensors, tuple(record["numbers"]))


class Ledger:
    """Written while a run goes on, cut back together with its journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        lines = Journal.read(journal.path)
        self._known = {Shared.from_record(r): r["set"] for r in lines if "set" in r}
        self._groups: dict[int, list[int]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, goes_on_at: int = 0) -> Iterator[Self]:
        """Open for appending, cut back to where a run goes on; but what was sent in rounds that
        were given up left the clients all the same, and stays."""
        with Journal.open(path) as journal:
            later = Journal.read(path, goes_on_at) if journal.position() > goes_on_at else []
            given_up = [line for line in later if line.get("counted") is False]
            sets = {group["set"] for line in given_up for group in line["shared"]}
            journal.truncate(goes_on_at)
            for line in later:
                if line in given_up or line.get("set") in sets:
                    journal.append(line)
            yield cls(journal)

    def enter(self, cid: int, up: Up) -> None:
        """One client's upload in the step under way."""
        shared = Shared.of(up)
        if shared not in self._known:
            self._known[shared] = len(self._known)
            self._journal.append(shared.as_record(self._known[shared]))
        self._groups.setdefault(self._known[shared], []).append(cid)

    def end_step(self, record: Mapping[str, Any]) -> None:
        """Close the step whose record in the journal this is."""
        step = {key: record[key] for key in ("step", "round", "kind", "owner")}
        scored = {at: list(map(int, found["clients"])) for at, found in record["scores"].items()}
        self._journal.append({**step, "shared": self._drain(), "scored": scored})

    def give_up(self, step: int, plan: Plan) -> None:
        """Close a step that too few answered: it does not count, but what came has left."""
        told = {"step": step, "round": plan.t, "kind": plan.kind, "owner": plan.owner}
        shared = self._drain()
        self._journal.append({**told, "counted": False, "shared": shared, "scored": {}})

    def _drain(self) -> list[dict[str, Any]]:
        groups, self._groups = self._groups, {}
        return [{"set": n, "clients": sorted(ids)} for n, ids in sorted(groups.items())]

    def sync(self) -> int:
        """Make it survive a power cut; returns where it goes on."""
        return self._journal.sync()


@dataclass
class Account:
    """The ledger read and added up."""

    sets: dict[int, Shared] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        """All complete lines, also of a run that goes on."""
        if not path.exists():
            raise RunFolderError(f"{path.parent} has no {path.name}; check the path of the run")
        account = cls()
        for line in Journal.read(path):
            if "set" in line:
                account.sets[line["set"]] = Shared.from_record(line)
            else:
                account.steps.append(line)
        return account

    def clients(self) -> dict[int, tuple[int, int]]:
        """Client -> (messages, bytes of tensors) that left it."""
        messages, sent = Counter[int](), Counter[int]()
        for step in self.steps:
            for group in step["shared"]:
                for cid in group["clients"]:
                    messages[cid] += 1
                    sent[cid] += self.sets[group["set"]].nbytes
        return {cid: (messages[cid], sent[cid]) for cid in sorted(messages)}

    def uses(self, number: int) -> tuple[set[int], list[dict[str, Any]]]:
        """Who ever shared a set, and the steps in which somebody did."""
        found = [(s, g) for s in self.steps for g in s["shared"] if g["set"] == number]
        return {cid for _, g in found for cid in g["clients"]}, [s for s, _ in found]

    def scored(self) -> dict[str, set[int]]:
        """By moment and split: whose scores were reported."""
        found: dict[str, set[int]] = {}
        for step in self.steps:
            for at, ids in step["scored"].items():
                found.setdefault(at, set()).update(ids)
        return found

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sets": [shared.as_record(number) for number, shared in self.sets.items()],
            "steps": self.steps,
            "clients": {cid: {"messages": m, "bytes": b} for cid, (m, b) in self.clients().items()},
        }
