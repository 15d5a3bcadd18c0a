"""Checkpoints: what a run needs to go on, in files that tell when they were damaged.

`checkpoints/step-000012/` holds `server.safetensors`, one `client-000003.safetensors` for every
client with a state, and `manifest.json` with the size and sha256 of each and of itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from fedloom.core.tree import State, plain
from fedloom.core.wire import pack, unpack
from fedloom.errors import BadInput, CheckpointError
from fedloom.runs.folder import sync_folder

FORMAT = 1
_MANIFEST = "manifest.json"
_SERVER = "server.safetensors"
_CLIENT = re.compile(r"client-(\d+)\.safetensors")
_STEP = re.compile(r"step-(\d+)(?:-(\d+))?")
_WRITING, _REMOVING = ".writing-", ".removing-"

Records = dict[str, dict[str, Any]]
"""File name -> {"size": bytes, "sha256": digest}."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two plans."""

    step: int
    """Index of the next plan in the schedule."""
    server: State
    clients: dict[int, State]
    """What each client keeps, by id; loaded in id order."""
    journal_bytes: int
    """Where the journal goes on."""
    totals: dict[str, float]
    """Cumulative counts: bytes up and down, seconds."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything JSON can say; comes back as JSON reads it (lists for tuples, text keys)."""


class _Damage(Exception):
    """Why one checkpoint cannot be used; the next older one is tried."""


class Checkpoints:
    """The checkpoints of one run; the newest `keep` stay.

    A checkpoint is written under another name and renamed when it is whole and on the disk, so a
    kill at any instant leaves those before it as they were. One writer at a time: hold the
    `RunFolder`.

    Files of unchanged clients are hard links to the previous checkpoint's. They cost nothing,
    but damage to such a file on the disk damages every checkpoint that shares it.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise BadInput(f"at least one checkpoint has to be kept, not {keep}")
        self.folder = folder
        self.keep = keep
        self._previous: tuple[Path, Records] | None = None
        self._damaged: list[str] = []

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whole or damaged, newest first."""
        return [_rank(name)[0] for name in self._newest_first()]

    def save(self, snapshot: Snapshot, changed: set[int] | None = None) -> Path:
        """Write a checkpoint and remove the oldest beyond `keep`; returns its folder.

        `changed` names the clients whose state may differ from the checkpoint that this object
        saved or loaded last; None means any. Later steps than this one belong to a course that
        was given up, and are removed.
        """
        writing = self.folder / f"{_WRITING}{_name(snapshot.step)}"
        try:
            self._clean_up()
            writing.mkdir(parents=True)
            records = self._write(writing, snapshot, changed)
            place = self._place(snapshot.step)
            os.rename(writing, place)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(writing, ignore_errors=True)
            raise CheckpointError(
                f"cannot save step {snapshot.step} in {self.folder}: {error};"
                " the checkpoints before it are intact"
            ) from error
        self._previous = (place, records)
        self._prune(place.name)
        return place

    def load_latest(self) -> tuple[Snapshot, list[str]]:
        """The newest good checkpoint, and a sentence for every newer one that is damaged."""
        damaged: dict[str, str] = {}
        for name in self._newest_first():
            try:
                snapshot, records = _read(self.folder / name)
            except _Damage as damage:
                damaged[name] = f"checkpoint {name} is damaged ({damage})"
                continue
            self._previous = (self.folder / name, records)
            self._damaged = list(damaged)
            return snapshot, [f"{why}; going on from {name}" for why in damaged.values()]
        reasons = "; ".join(damaged.values()) or "it has no step-* folder"
        raise CheckpointError(
            f"there is no checkpoint to go on from in {self.folder}: {reasons};"
            " start the run again with --overwrite"
        )

    def _write(self, folder: Path, snapshot: Snapshot, changed: set[int] | None) -> Records:
        new = {_SERVER: _write_state(folder / _SERVER, snapshot.server, "the server")}
        linked: Records = {}
        for cid in sorted(snapshot.clients):
            name = _client_name(cid)
            record = None if changed is None or cid in changed else self._link(folder, name)
            if record is not None:
                linked[name] = record
            else:
                new[name] = _write_state(folder / name, snapshot.clients[cid], f"client {cid}")
        records = dict(sorted((new | linked).items()))
        (folder / _MANIFEST).write_text(_manifest(snapshot, records), encoding="utf-8")
        # All are written before the first is synced, so that the disk can take them together.
        for name in (*new, _MANIFEST):
            with open(folder / name, "r+b") as file:
                os.fsync(file.fileno())
        sync_folder(folder)
        return records

    def _link(self, folder: Path, name: str) -> dict[str, Any] | None:
        """The record of a file taken over from the previous checkpoint; None if it cannot be."""
        if self._previous is None:
            return None
        previous, records = self._previous
        record = records.get(name)
        # Not there, cut short, or a file system without links: the state is written anew.
        with suppress(OSError):
            if record and (previous / name).stat().st_size == record["size"]:
                os.link(previous / name, folder / name)
                return record
        return None

    def _place(self, step: int) -> Path:
        """`step-000012`, or `step-000012-1` beside it when that step is saved once more: a folder
        cannot be replaced by another in one instant."""
        same = [_rank(name)[1] for name in self._newest_first() if _rank(name)[0] == step]
        return self.folder / (f"{_name(step)}-{max(same) + 1}" if same else _name(step))

    def _newest_first(self) -> list[str]:
        return sorted(filter(_STEP.fullmatch, _names(self.folder)), key=_rank, reverse=True)

    def _clean_up(self) -> None:
        """Remove what interrupted writers left, and what `load_latest` found damaged."""
        for name in _names(self.folder):
            if name.startswith((_WRITING, _REMOVING)):
                shutil.rmtree(self.folder / name)
        self._remove(self._damaged)
        self._damaged = []

    def _prune(self, newest: str) -> None:
        names = self._newest_first()
        start = names.index(newest)
        self._remove([*names[:start], *names[start + self.keep :]])

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            # Renamed first: a kill half-way must not leave what looks like a damaged checkpoint.
            with suppress(OSError):
                gone = self.folder / f"{_REMOVING}{name}"
                os.rename(self.folder / name, gone)
                shutil.rmtree(gone)


def state_sha256(server: State, clients: Mapping[int, State]) -> str:
    """One digest of a whole federation: slice, key, type, shape and bytes of every tensor.

    The order of dictionaries, strides and devices do not matter. An empty slice counts as absent,
    and so does a client that keeps nothing.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> one = state_sha256({"model": {"a": a, "b": b}}, {3: {}})
    >>> one == state_sha256({"dbe": {}, "model": {"b": b, "a": a}}, {})
    True
    """
    digest = sha256()
    owners = {"server": server} | {f"client {cid}": clients[cid] for cid in sorted(clients)}
    for owner, state in owners.items():
        for name, tree in sorted(state.items()):
            for key in sorted(tree):
                tensor = plain(tree[key])
                head = [owner, name, key, str(tensor.dtype), list(tensor.shape)]
                # The head says how many bytes follow, so no two states give the same stream.
                digest.update(json.dumps(head).encode() + b"\n")
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write_state(path: Path, state: State, owner: str) -> dict[str, Any]:
    """Write a state and return the record of its file."""
    data = _pack(state, owner)
    path.write_bytes(data)
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def _pack(state: State, owner: str) -> bytes:
    try:
        return pack(state)
    except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot save the state of {owner}: safetensors does not take it"
            f" ({type(error).__name__}: {error})"
        ) from error


def _manifest(snapshot: Snapshot, records: Records) -> str:
    try:
        text = json.dumps(
            {
                "format": FORMAT,
                "step": snapshot.step,
                "journal_bytes": snapshot.journal_bytes,
                "totals": snapshot.totals,
                "extra": snapshot.extra,
                "files": records,
            }
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot save step {snapshot.step}: totals or extra are not JSON ({error})"
        ) from error
    body = json.loads(text)
    return json.dumps({**body, "sha256": _body_sha256(body)}, indent=1) + "\n"


def _body_sha256(body: dict[str, Any]) -> str:
    # The same in every format to come, so that an altered manifest is told from a newer one.
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> tuple[Snapshot, Records]:
    body = _read_manifest(folder)
    server: State = {}
    clients: dict[int, State] = {}
    for name, record in body["files"].items():
        state = unpack(_read_whole(folder / name, record))
        client = _CLIENT.fullmatch(name)
        if client is None:
            server = state
        else:
            clients[int(client[1])] = state
    snapshot = Snapshot(
        step=body["step"],
        server=server,
        clients=dict(sorted(clients.items())),
        journal_bytes=body["journal_bytes"],
        totals=body["totals"],
        extra=body["extra"],
    )
    return snapshot, body["files"]


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        body = json.loads(_read_bytes(folder / _MANIFEST))
        stated = body.pop("sha256")
    except (ValueError, TypeError, AttributeError, KeyError):
        raise _Damage(f"{_MANIFEST}: truncated or altered") from None
    if stated != _body_sha256(body):
        raise _Damage(f"{_MANIFEST}: sha256 differs")
    if body["format"] != FORMAT:
        # Not damage: falling back would lose rounds, and the next save would remove it.
        raise CheckpointError(
            f"{folder} is in format {body['format']}, and this fedloom reads format {FORMAT};"
            " go on with the version that wrote it"
        )
    return dict(body)


def _read_whole(path: Path, record: Mapping[str, Any]) -> bytes:
    data = _read_bytes(path)
    if len(data) != record["size"]:
        raise _Damage(f"{path.name}: {len(data)} bytes instead of {record['size']}")
    if sha256(data).hexdigest() != record["sha256"]:
        raise _Damage(f"{path.name}: sha256 differs")
    return data


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _Damage(f"{path.name}: missing") from None
    except OSError as error:
        raise _Damage(f"{path.name}: {error}") from error


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _client_name(cid: int) -> str:
    if cid < 0:
        raise CheckpointError(f"cannot save the state of client {cid}: an id is 0 or more")
    return f"client-{cid:06d}.safetensors"


def _rank(name: str) -> tuple[int, int]:
    """What a folder's name says: the step, and how often it was saved before."""
    step, again = name.removeprefix("step-").partition("-")[::2]
    return int(step), int(again or 0)
