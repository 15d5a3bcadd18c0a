"""Checkpoints: what a run needs to go on, in files that tell when they were damaged.

`checkpoints/step-000012/` holds `server.safetensors`, segments with clients' states
(`clients-000003.states`, each a row of `store.record`), and `manifest.json` with the size and
sha256 of each and of itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.tree import State
from fedloom.core.wire import unpack
from fedloom.errors import BadInput, CheckpointError
from fedloom.files import parse_json, read_regular, sync_folder
from fedloom.runs.store import packed, record, records

FORMAT = 3
_MANIFEST = "manifest.json"
_SERVER = "server.safetensors"
_SEGMENT = re.compile(r"clients-(\d+)\.states")
_STEP = re.compile(r"step-(\d+)(?:-(\d+))?")
_WRITING, _REMOVING = ".writing-", ".removing-"


@dataclass(frozen=True)
class _File:
    """A file of a checkpoint, and the clients in it."""

    name: str
    size: int
    sha256: str
    ids: frozenset[int] = frozenset()

    @property
    def number(self) -> int:
        """Of a segment; a client's state is in the highest that has its id."""
        match = _SEGMENT.fullmatch(self.name)
        return int(match[1]) if match else -1


@dataclass(frozen=True)
class Snapshot:
    """A run between two plans."""

    step: int
    """Index of the next plan in the schedule."""
    server: State
    clients: Mapping[int, State]
    """What each client keeps, by id."""
    journal_bytes: int
    """Where the journal goes on."""
    totals: dict[str, float]
    """Cumulative counts: bytes up and down, seconds."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything JSON can say; comes back as JSON reads it (lists for tuples, text keys)."""


class _Damage(Exception):
    """Why one checkpoint cannot be used; the next older one is tried."""


MOST_EARLIER = 100
"""Earlier checkpoints at most: many small files are slow to copy and to remove."""


class Checkpoints:
    """The checkpoints of one run; the newest `keep` stay, and of the earlier ones as many as
    `history` bytes hold, spread over the run: from each the run can be computed again.

    A checkpoint is written under another name and renamed when it is whole and on the disk, so a
    kill at any instant leaves those before it as they were. One writer at a time: hold the
    `RunFolder`.

    The clients that changed are written to one new segment, the segments before it are hard links
    to the previous checkpoint's. They cost nothing, but damage to such a file on the disk damages
    every checkpoint that shares it. The new segment also takes over those that hold up to twice as
    many clients as itself. So each is more than twice the next, there are few of them, less than
    half of all that lies there is out of date, and a state is seldom written again.
    """

    def __init__(self, folder: Path, keep: int = 2, history: int = 0) -> None:
        if keep < 1:
            raise BadInput(f"at least one checkpoint has to be kept, not {keep}")
        self.folder = folder
        self.keep, self.history = keep, history
        self._previous: tuple[Path, list[_File]] | None = None
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
        self._refuse_link()
        writing = self.folder / f"{_WRITING}{_name(snapshot.step)}"
        try:
            self._clean_up()
            writing.mkdir(parents=True)
            segments = self._write(writing, snapshot, changed)
            place = self._place(snapshot.step)
            os.rename(writing, place)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(writing, ignore_errors=True)
            raise CheckpointError(
                f"cannot save step {snapshot.step} in {self.folder}: {error};"
                " the checkpoints before it are intact"
            ) from error
        self._previous = (place, segments)
        self._prune(place.name)
        return place

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps: the run takes another course from there."""
        self._refuse_link()
        self._remove([name for name in self._newest_first() if _rank(name)[0] > step])

    def load_latest(
        self, into: MutableMapping[int, State] | None = None
    ) -> tuple[Snapshot, list[str]]:
        """The newest good checkpoint, and a sentence for every newer one that is damaged.

        Clients' states are put one by one `into` an empty mapping, by default a dictionary.
        """
        self._refuse_link()
        clients = {} if into is None else into
        damaged: dict[str, str] = {}
        for name in self._newest_first():
            try:
                snapshot, segments = _read(self.folder / name, clients)
            except _Damage as damage:
                clients.clear()  # of what a checkpoint holds that was damaged after all
                damaged[name] = f"checkpoint {name} is damaged ({damage})"
                continue
            self._previous = (self.folder / name, segments)
            self._damaged = list(damaged)
            return snapshot, [f"{why}; going on from {name}" for why in damaged.values()]
        reasons = "; ".join(damaged.values()) or "it has no step-* folder"
        raise CheckpointError(
            f"there is no checkpoint to go on from in {self.folder}: {reasons};"
            " start the run again with --overwrite"
        )

    def load(self, step: int, into: MutableMapping[int, State]) -> Snapshot:
        """The checkpoint of one step, with the clients' states put `into` an empty mapping."""
        for name in self._newest_first():
            if _rank(name)[0] == step:
                try:
                    return _read(self.folder / name, into)[0]
                except _Damage as damage:
                    raise CheckpointError(
                        f"checkpoint {name} in {self.folder} is damaged ({damage}); restore it"
                    ) from None
        raise CheckpointError(f"there is no checkpoint of step {step} in {self.folder}")

    def newest_server(self) -> State:
        """The server's state of the newest checkpoint that has it undamaged."""
        for name in self._newest_first():
            with suppress(_Damage):
                return _read_server(self.folder / name)
        raise CheckpointError(f"there is no undamaged checkpoint in {self.folder}; check the path")

    def _refuse_link(self) -> None:
        """Through a link, old checkpoints would be removed in a folder that is not this run's."""
        if self.folder.is_symlink():
            raise CheckpointError(
                f"{self.folder} is a link to {os.readlink(self.folder)}, and nothing outside a run"
                " folder is written or deleted; put there what it points to"
            )

    def _write(self, folder: Path, snapshot: Snapshot, changed: set[int] | None) -> list[_File]:
        server = _write_file(folder / _SERVER, [packed(snapshot.server, "the server")])
        ids, linked = self._divide(folder, snapshot.clients, changed)
        new: list[_File] = []
        if ids:
            name = f"clients-{max((s.number for s in linked), default=-1) + 1:06d}.states"
            written = _write_file(folder / name, _records(snapshot.clients, ids))
            new = [replace(written, ids=frozenset(ids))]
        text = _manifest(snapshot, [server, *linked, *new])
        (folder / _MANIFEST).write_text(text, encoding="utf-8")
        # All are written before the first is synced, so that the disk can take them together.
        for name in (_SERVER, *(s.name for s in new), _MANIFEST):
            with open(folder / name, "r+b") as file:
                os.fsync(file.fileno())
        sync_folder(folder)
        return [*linked, *new]

    def _divide(
        self, folder: Path, clients: Mapping[int, State], changed: set[int] | None
    ) -> tuple[list[int], list[_File]]:
        """The clients to write, and the segments taken over from the previous checkpoint."""
        previous, old = self._previous or (folder, [])
        known = frozenset().union(*(s.ids for s in old))
        if changed is None or not known <= clients.keys():  # a segment cannot say who is gone
            return sorted(clients), []
        new = (clients.keys() - known) | (changed & clients.keys())
        linked: list[_File] = []
        for segment in reversed(old):
            if len(segment.ids) <= 2 * len(new) or not _link(previous, folder, segment):
                new |= segment.ids
            else:
                linked.insert(0, segment)
        return sorted(new), linked

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
                _delete(self.folder / name)
        self._remove(self._damaged)
        self._damaged = []

    def _prune(self, newest: str) -> None:
        names = self._newest_first()
        start = names.index(newest)
        earlier = names[start + self.keep :]
        kept = self._spread(earlier, names[start : start + self.keep])
        self._remove([*names[:start], *(name for name in earlier if name not in kept)])

    def _spread(self, earlier: list[str], newest: list[str]) -> list[str]:
        """The earlier checkpoints to keep. Where they take too much, the one goes first whose
        neighbours are nearest to each other, so that what stays is spread over the run."""
        if not self.history:
            return []
        end = min(_rank(name)[0] for name in newest)
        # Of a step that was saved more than once, the newest.
        names = {_rank(name)[0]: name for name in reversed(earlier) if _rank(name)[0] < end}
        files = {step: self._files(name) for step, name in names.items()}
        while not self._fit(files.values()):
            steps = sorted(files)
            gaps = zip(steps, [0, *steps], [*steps[1:], end], strict=False)
            _, goes = min((after - before, step) for step, before, after in gaps)
            del files[goes]
        return [names[step] for step in files]

    def _fit(self, checkpoints: Collection[dict[int, int]]) -> bool:
        """Whether these are within the bounds; a file that several share counts once."""
        sizes = {inode: size for files in checkpoints for inode, size in files.items()}
        return len(checkpoints) <= MOST_EARLIER and sum(sizes.values()) <= self.history

    def _files(self, name: str) -> dict[int, int]:
        """Inode -> bytes of a checkpoint's files."""
        with suppress(OSError):
            stats = [entry.stat() for entry in (self.folder / name).iterdir()]
            return {stat.st_ino: stat.st_size for stat in stats}
        return {}

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            # Renamed first: a kill half-way must not leave what looks like a damaged checkpoint.
            with suppress(OSError):
                gone = self.folder / f"{_REMOVING}{name}"
                os.rename(self.folder / name, gone)
                _delete(gone)


def _records(clients: Mapping[int, State], ids: list[int]) -> Iterator[bytes]:
    if ids[0] < 0:
        raise CheckpointError(f"cannot save the state of client {ids[0]}: an id is 0 or more")
    for cid in ids:
        yield record(cid, packed(clients[cid], f"client {cid}"))


def _write_file(path: Path, parts: Iterable[bytes]) -> _File:
    """Write parts one after another, never all in memory."""
    digest, size = sha256(), 0
    with open(path, "wb") as file:
        for part in parts:
            size += file.write(part)
            digest.update(part)
    return _File(path.name, size, digest.hexdigest())


def _link(previous: Path, folder: Path, file: _File) -> bool:
    """Take a file over. Not there, cut short, or a file system without links: it cannot be."""
    with suppress(OSError):
        if (previous / file.name).stat().st_size == file.size:
            os.link(previous / file.name, folder / file.name)
            return True
    return False


def _manifest(snapshot: Snapshot, files: list[_File]) -> str:
    try:
        text = json.dumps(
            {
                "format": FORMAT,
                "step": snapshot.step,
                "journal_bytes": snapshot.journal_bytes,
                "totals": snapshot.totals,
                "extra": snapshot.extra,
                "files": {f.name: {"size": f.size, "sha256": f.sha256} for f in files},
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


def _read(folder: Path, clients: MutableMapping[int, State]) -> tuple[Snapshot, list[_File]]:
    manifest = _read_manifest(folder)
    for file in manifest.listed:  # all of them, before a state of any is used
        _check(folder / file.name, file)
    segments = sorted((f for f in manifest.listed if f.name != _SERVER), key=lambda f: f.number)
    newest_first = [_read_segment(folder, s, clients) for s in reversed(segments)]
    snapshot = Snapshot(
        step=manifest.step,
        server=_unpacked((folder / _SERVER).read_bytes(), _SERVER),
        clients=clients,
        journal_bytes=manifest.journal_bytes,
        totals=manifest.totals,
        extra=manifest.extra,
    )
    return snapshot, newest_first[::-1]


def _read_server(folder: Path) -> State:
    """The server's state alone, which may be much less than a checkpoint holds."""
    server = next(f for f in _read_manifest(folder).listed if f.name == _SERVER)
    _check(folder / _SERVER, server)
    return _unpacked((folder / _SERVER).read_bytes(), _SERVER)


def _read_segment(folder: Path, segment: _File, clients: MutableMapping[int, State]) -> _File:
    """Put the states that no newer segment had `into` the mapping; returns who is in it."""
    ids = set()
    with open(folder / segment.name, "rb") as file:
        try:
            for cid, data in records(file):
                ids.add(cid)
                if cid not in clients:
                    clients[cid] = _unpacked(data, f"client {cid} in {segment.name}")
        except ValueError as error:
            raise _Damage(f"{segment.name}: {error}") from None
    return replace(segment, ids=frozenset(ids))


def _unpacked(data: bytes, where: str) -> State:
    try:
        return unpack(data)
    except ValueError as error:
        raise _Damage(f"{where}: {error}") from None


class _Listed(BaseModel):
    """What a manifest says of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    size: int = Field(ge=0)
    sha256: str


class _Manifest(BaseModel):
    """`manifest.json`, as far as it can be checked without the files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    step: int = Field(ge=0, lt=10**9)
    journal_bytes: int = Field(ge=0)
    totals: dict[str, float]
    extra: dict[str, Any]
    # No other names: `../../x` would be read, and linked, outside the checkpoint.
    files: dict[Annotated[str, Field(pattern=rf"^({_SERVER}|{_SEGMENT.pattern})$")], _Listed]

    @property
    def listed(self) -> list[_File]:
        return [_File(name, file.size, file.sha256) for name, file in self.files.items()]


def _read_manifest(folder: Path) -> _Manifest:
    if folder.is_symlink():
        raise _Damage("it is a link, and a run's checkpoints lie in its folder")
    try:
        body = parse_json(_read_bytes(folder / _MANIFEST))
        stated = body.pop("sha256")
        format_written = body["format"]
    except (ValueError, TypeError, AttributeError, LookupError):
        raise _Damage(f"{_MANIFEST}: truncated or altered") from None
    if stated != _body_sha256(body):
        raise _Damage(f"{_MANIFEST}: sha256 differs")
    if format_written != FORMAT:
        # Not damage: falling back would lose rounds, and the next save would remove it.
        raise CheckpointError(
            f"{folder} is in format {format_written!r:.40}, and this fedloom reads format {FORMAT};"
            " go on with the version that wrote it"
        )
    try:
        manifest = _Manifest(**body)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise _Damage(f"{_MANIFEST}: {at}: {first['msg'].lower()}") from None
    if _SERVER not in manifest.files:
        raise _Damage(f"{_MANIFEST}: names no {_SERVER}")
    return manifest


def _check(path: Path, file: _File) -> None:
    """Is it the file that was written? Read in pieces: it may exceed the memory."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode):
            raise _Damage(f"{path.name}: a link, or no file at all")
        if about.st_size != file.size:
            raise _Damage(f"{path.name}: {about.st_size} bytes instead of {file.size}")
        with open(path, "rb") as opened:
            if file_digest(opened, "sha256").hexdigest() != file.sha256:
                raise _Damage(f"{path.name}: sha256 differs")
    except FileNotFoundError:
        raise _Damage(f"{path.name}: missing") from None
    except OSError as error:
        raise _Damage(f"{path.name}: {error}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise _Damage(f"{path.name}: missing") from None
    except OSError as error:
        raise _Damage(f"{path.name}: {error}") from error


def _delete(path: Path) -> None:
    """A folder, or a link to one: then the link alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _rank(name: str) -> tuple[int, int]:
    """What a folder's name says: the step, and how often it was saved before."""
    step, again = name.removeprefix("step-").partition("-")[::2]
    return int(step), int(again or 0)
