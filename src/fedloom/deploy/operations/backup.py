"""A server's project or a site's folder in one file, and back: what a federation needs to go on.

The file is a tar archive with the sha256 of every file in `backup.json`. It holds private keys and
models, so that only its owner may read it; a site's data is not in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.files import parse_json
from fedloom.policy.quantities import size_text
from fedloom.version import __version__

FORMAT = 1
_LIST = "backup.json"
_LEFT_OUT = {"__pycache__", ".flower", ".venv"}
_LOGS = "logs"
AUDIT = "audit.jsonl"
_UNFINISHED = ("-wal", "-shm", ".tmp")
_DATABASE = ".db"
_MOST_LIST = 1 << 28


def back_up(what: Path, file: Path) -> int:
    """Write a backup of a project's folder, or of the site whose site.toml this is; returns how
    many files it has. Both may run meanwhile."""
    root, paths = _site(what) if what.suffix == ".toml" else _project(what)
    listed: dict[str, str] = {}
    handle = _new(file)
    with open(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in paths:
            try:
                data = _content(path)
                mode = path.stat().st_mode & 0o700
            except FileNotFoundError:  # an old checkpoint or state, removed since it was listed
                continue
            name = path.relative_to(root).as_posix()
            listed[name] = hashlib.sha256(data).hexdigest()
            _add(archive, name, data, mode)
        about = {
            "format": FORMAT,
            "fedloom": __version__,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": listed,
        }
        _add(archive, _LIST, json.dumps(about, indent=1).encode(), 0o600)
    return len(listed)


def restore(file: Path, folder: Path) -> int:
    """Unpack a backup in a new or empty folder, once every file is what it was; returns how many
    there are."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise BadInput(f"{folder} is not empty; restore into a new folder, nothing was written")
    try:
        with tarfile.open(file, "r:gz") as archive:
            listed = _listed(archive, file)
            members = [member for member in archive if member.name != _LIST]
            _check_room(members, folder, file)
            for member in members:  # all of them, before anything is written
                _check(archive, member, listed, file)
            if missing := listed.keys() - {member.name for member in members}:
                raise BadInput(f"{file} lacks {min(missing)!r}; take another backup")
            for name in listed:
                _put(archive, archive.getmember(name), folder / name)
    except (OSError, tarfile.TarError, EOFError, KeyError) as e:
        raise BadInput(f"cannot restore {file} ({e}); take another backup") from None
    return len(listed)


def _project(root: Path) -> tuple[Path, list[Path]]:
    from fedloom.deploy.project.folder import Project

    root = Project.read(root).root
    logs = root / _LOGS
    return root, [path for path in _files(root) if not path.is_relative_to(logs)]


def _site(file: Path) -> tuple[Path, list[Path]]:
    """`site.toml`, schema, certificate, key and state, which must lie in one folder."""
    config = SiteConfig.read(file)
    root = file.absolute().parent
    beside = (config.schema_file, config.ca, config.key)
    wanted = [file.absolute(), *(path for path in beside if path is not None)]
    for path in (*wanted, config.state):
        if not path.is_relative_to(root):
            raise BadInput(f"{path} lies outside of {root}, so back it up by other means")
    return root, [*wanted, *_files(config.state)]


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below a folder. Checkpoints come before journals: a journal that is longer than
    its checkpoint knows is cut back, one that is shorter cannot be gone on with. The audit log is
    last, for it may know more than counters and approvals, and never less."""
    names = os.listdir(folder) if folder.is_dir() else []
    for name in sorted(names, key=lambda name: (name != "checkpoints", name == AUDIT, name)):
        path = folder / name
        if path.is_symlink() or name in _LEFT_OUT:
            continue
        if path.is_dir():  # of an experiment, it may have nearly any name
            yield from _files(path)
        elif path.is_file() and not name.endswith(_UNFINISHED):
            yield path


def _content(path: Path) -> bytes:
    """Of a file; of a database, which may be written to meanwhile, as of one instant."""
    if path.suffix != _DATABASE:
        return path.read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return copy.read_bytes()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))


def _new(file: Path) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as e:
        raise BadInput(f"cannot write the backup {file} ({e.strerror}); name a new file") from None


def _listed(archive: tarfile.TarFile, file: Path) -> dict[str, str]:
    member = archive.getmember(_LIST)
    content = archive.extractfile(member) if member.size <= _MOST_LIST else None
    try:
        about: Any = parse_json(content.read() if content else b"")
        if about["format"] != FORMAT:
            raise BadInput(f"{file} is a backup in format {about['format']}, not {FORMAT}")
        return {str(name): str(sha256) for name, sha256 in about["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadInput(f"{file} is no backup of fedloom; take another one") from None


def _check_room(members: list[tarfile.TarInfo], folder: Path, file: Path) -> None:
    """A small archive may unpack to more than the disk holds."""
    size = sum(member.size for member in members)
    place = next(place for place in folder.absolute().parents if place.exists())
    if size > shutil.disk_usage(place).free:
        raise BadInput(f"{file} unpacks to {size_text(size)}, more than {place} has room for")


def _check(
    archive: tarfile.TarFile, member: tarfile.TarInfo, listed: dict[str, str], file: Path
) -> None:
    """Only regular files, inside, and with the bytes that were backed up."""
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise BadInput(f"{file} holds {member.name!r}, which no backup of fedloom has; discard it")
    content = archive.extractfile(member)
    assert content is not None
    if hashlib.file_digest(content, "sha256").hexdigest() != listed.get(member.name):  # type: ignore[arg-type]
        raise BadInput(f"{member.name} in {file} is not what was backed up; take another backup")


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(path, flags, member.mode & 0o700 | 0o600), "wb") as out:
        while block := content.read(1 << 20):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
