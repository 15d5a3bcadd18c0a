"""The journal: one JSON object per line, appended while a run goes on, cut back when it resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Self

from fedloom.errors import BadInput
from fedloom.files import jsonable, sync_folder


class Journal:
    """An open `metrics.jsonl`. A line is complete when it ends with a line break; a kill can tear
    only the last one, and a torn line is as good as not written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch, Journal.open(Path(scratch) / "m.jsonl") as journal:
    ...     journal.append({"round": 1, "loss": float("inf")})
    ...     journal.read(journal.path)
    [{'round': 1, 'loss': None}]
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for appending, made if missing; a torn last line is cut off."""
        journal = cls(path, open(path, "ab"))  # noqa: SIM115 (kept open, closed by `close`)
        journal._cut(_complete_bytes(path))
        sync_folder(path.parent)
        return journal

    def append(self, record: dict[str, Any]) -> None:
        """Add a line and hand it to the operating system; NaN and infinities become null."""
        line = json.dumps(jsonable(record), allow_nan=False, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Bytes written so far: always the end of a line."""
        return self._file.tell()

    def sync(self) -> int:
        """Make all lines survive a power cut, as before a checkpoint; returns `position`."""
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
        self._file.close()

    @staticmethod
    def read(path: Path, start: int = 0) -> list[dict[str, Any]]:
        """All complete lines from a `position` on, also of a journal that is being written."""
        try:
            data = path.read_bytes()[start:]
        except OSError as error:
            raise BadInput(f"cannot read the journal {path}: {error}") from error
        return [_record(path, i, line) for i, line in enumerate(data.split(b"\n")[:-1], start=1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, to_bytes: int) -> None:
        self._file.truncate(to_bytes)
        self._file.seek(to_bytes)  # appending needs no seek, but `position` does


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{path}, line {number} is not JSON ({error}); restore the file") from None
    if not isinstance(record, dict):
        raise BadInput(f"{path}, line {number} is not a JSON object; restore the file")
    return record


def _complete_bytes(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and with the last line break, found from the end: journals grow long."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _ends_line(path: Path, position: int) -> bool:
    if position == 0:
        return True
    with open(path, "rb") as file:
        file.seek(position - 1)
        return file.read(1) == b"\n"
