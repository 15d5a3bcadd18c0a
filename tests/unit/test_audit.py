"""A log whose lines are chained: what is changed, removed or inserted is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloom.audit import FIRST, AuditError, AuditLog, verify
from fedloom.errors import DiskError


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(tmp_path / "state" / "audit.jsonl")
    for number in range(5):
        log.append("sent", round=number, text="für \x1b[2J\n")
    return log


def test_an_untouched_log_is_whole(log: AuditLog) -> None:
    done = verify(log.path)
    assert done.lines == 5
    first, *_, last = log.path.read_bytes().splitlines()
    assert FIRST.encode() in first
    assert done.last not in last.decode()
    assert [line["round"] for line in log.lines()] == list(range(5))
    assert all(line["at"].endswith("+00:00") for line in log.lines())


def test_a_line_that_a_full_disk_cuts_off_is_taken_back(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr("fedloom.audit.os.write", lambda to, data: write(to, data[:10]))
        with pytest.raises(DiskError, match=r"cannot write .*audit.jsonl \(.*no room"):
            log.append("sent", round=5)
    assert verify(log.path).lines == 5


def without_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def twice(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[2], *lines[3:]]


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"round": 2', b'"round": 9'), *lines[3:]]


@pytest.mark.parametrize(
    ("change", "line"), [(without_line, 3), (swapped, 2), (twice, 4), (changed, 4)]
)
def test_the_first_line_that_does_not_follow_is_named(
    change: Callable[[list[bytes]], list[bytes]], line: int, log: AuditLog
) -> None:
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(change(lines)))
    with pytest.raises(AuditError, match=f"line {line}: it does not follow"):
        verify(log.path)


@pytest.mark.parametrize(
    ("tail", "why"),
    [(b'{"at": "', "incomplete"), (b"nonsense\n", "no JSON"), (b"[1]\n", "lacks one of")],
)
def test_what_is_no_line_is_named(tail: bytes, why: str, log: AuditLog) -> None:
    with open(log.path, "ab") as file:
        file.write(tail)
    with pytest.raises(AuditError, match=f"line 6: .*{why}"):
        verify(log.path)


def test_a_line_after_a_torn_one_stands_alone(log: AuditLog) -> None:
    """The torn line is what a power cut leaves; it is told, and does not spoil the next."""
    with open(log.path, "ab") as file:
        file.write(b'{"at": "')
    log.append("sent", round=6)
    assert log.path.read_bytes().count(b"\n") == 7
    with pytest.raises(AuditError, match="line 6: it is no JSON"):
        verify(log.path)


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    code = (
        "import sys; from pathlib import Path; from fedloom.audit import AuditLog\n"
        "for i in range(40): AuditLog(Path(sys.argv[1])).append('sent', number=i)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(2)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert verify(file).lines == 80


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="symbolic links"):
        AuditLog(tmp_path / "audit.jsonl").append("sent")
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_own_fields_cannot_be_forged(log: AuditLog) -> None:
    with pytest.raises(ValueError, match="previous is set by the log itself"):
        log.append("sent", previous="0")
