"""The journal: one JSON object per line, appended while a run goes on, cut back when it resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from fedloom.errors import BadInput, RunFolderError
from fedloom.files import (
    jsonable,
    naming_disk,
    open_to_append,
    parse_json,
    read_regular,
    sync_folder,
    write_json,
)
from fedloom.record import dump, load

Kept = TypeVar("Kept")
MOST_JOURNAL = 1 << 33
"""Bytes of the longest journal that is read."""


class Journal:
    """An open `metrics.jsonl`. A line is complete when it ends with a line break; a kill can tear
    only the last one, and a torn line is as good as not written.

    >>> from tempfile import TemporaryDirectory
    >>> from fedloom.record import SharedBy
    >>> with TemporaryDirectory() as scratch, Journal.open(Path(scratch) / "m.jsonl") as journal:
    ...     journal.append(SharedBy(number=0, clients=(3, 5)))
    ...     read_records(journal.path, SharedBy)
    [SharedBy(number=0, clients=(3, 5))]
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for appending, made if missing; a torn last line is cut off."""
        try:
            journal = cls(path, open_to_append(path))
        except OSError as error:
            raise RunFolderError(
                f"cannot write the journal {path} ({error.strerror or error}); a link is not"
                " followed: put the file itself there"
            ) from None
        journal._cut(_complete_bytes(path))
        sync_folder(path.parent)
        return journal

    def append(self, record: object) -> None:
        """Add a record as a line and hand it to the operating system."""
        self.append_line(line_of(record))

    def append_line(self, line: bytes) -> None:
        """`append` for a record that is a line already."""
        with naming_disk(self.path):
            self._file.write(line)
            self._file.flush()

    def position(self) -> int:
        """Bytes written so far: always the end of a line."""
        return self._file.tell()

    def sync(self) -> int:
        """Make all lines survive a power cut, as before a checkpoint; returns `position`."""
        with naming_disk(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self.position()

    def truncate(self, to_bytes: int) -> None:
        """Go back to a `position` taken earlier: the lines after it are dropped."""
        size = self.position()
        if to_bytes > size:
            raise BadInput(
                f"{self.path} holds {size} bytes of complete lines, fewer than the {to_bytes} that"
                " the checkpoint goes on from; restore the file, or start again with --overwrite"
            )
        if not _ends_line(self.path, to_bytes):
            raise BadInput(
                f"{self.path} was altered: byte {to_bytes}, where the checkpoint goes on, is not"
                " the end of a line; restore the file, or start again with --overwrite"
            )
        self._cut(to_bytes)

    def close(self) -> None:
        """Close the file; what was appended stays."""
        with suppress(OSError):  # of a line that was refused before, and is not tried again
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, to_bytes: int) -> None:
        self._file.truncate(to_bytes)
        self._file.seek(to_bytes)  # appending needs no seek, but `position` does


def line_of(record: object) -> bytes:
    """A record as a line of a journal; NaN and infinities become null."""
    return plain_line(plain_record(record))


def plain_record(record: object) -> dict[str, Any]:
    """A record as the JSON object that its line holds."""
    plain: dict[str, Any] = jsonable(dump(record))
    return plain


def plain_line(plain: Mapping[str, Any]) -> bytes:
    """The line of a `plain_record`."""
    return json.dumps(plain, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def read_lines(path: Path, start: int = 0) -> list[bytes]:
    """All complete lines from a `position` on, also of a journal that is being written; none where
    there is no file."""
    try:
        data = read_regular(path, MOST_JOURNAL)[start:]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read the journal {path}: {error}") from error
    return data.split(b"\n")[:-1]


def read_records(path: Path, kind: type[Kept], start: int = 0) -> list[Kept]:
    """The records of `read_lines`."""
    lines = enumerate(read_lines(path, start), start=1)
    return [_parsed(kind, line, f"{path}, line {i}") for i, line in lines]


def read_record(path: Path, kind: type[Kept]) -> Kept:
    """The one record of a file."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise RunFolderError(f"cannot read {path} ({error.strerror}); restore it") from None
    return _parsed(kind, data, str(path))


def write_record(path: Path, record: object) -> None:
    """A file of one record."""
    with naming_disk(path):
        write_json(path, dump(record))


def _parsed(kind: type[Kept], data: bytes, where: str) -> Kept:
    try:
        value: Any = parse_json(data)
    except ValueError as error:
        raise RunFolderError(f"{where} is not JSON ({error}); restore the file") from None
    return load(kind, value, where)


def _complete_bytes(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and with the last line break, found from the end: journals grow long."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            line_break = file.read(end - start).rfind(b"\n")
            if line_break >= 0:
                return start + line_break + 1
            end = start
    return 0


def _ends_line(path: Path, position: int) -> bool:
    if position == 0:
        return True
    with open(path, "rb") as file:
        file.seek(position - 1)
        return file.read(1) == b"\n"
