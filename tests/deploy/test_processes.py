"""Children end with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psutil")

import psutil
from watching import runs

from fedloom.deploy.processes.children import Child, ChildFailed, end_all, free_ports, listens
from helpers import LIMIT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and sessions")

FAMILY = """
import signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""
"""A parent with a child in another session that does not hear SIGTERM."""


def child(tmp_path: Path, program: str) -> Child:
    return Child("a trial", [sys.executable, "-c", program], os.environ, tmp_path / "log")


def test_the_end_reaches_a_stubborn_grandchild_in_another_session(tmp_path: Path) -> None:
    parent = child(tmp_path, FAMILY).start()
    try:
        parent.ready(lambda: "ready" in parent.output() and len(parent.processes()) == 2, LIMIT)
        family = parent.processes()
        assert parent.pid in [process.pid for process in family]
    finally:
        parent.end(grace=LIMIT)
    assert not any(map(runs, family))
    assert parent.processes() == []
    assert parent.code == -signal.SIGTERM
    parent.end()  # twice is fine


def test_a_crash_leaves_the_grandchild_and_the_end_still_finds_it(tmp_path: Path) -> None:
    parent = child(tmp_path, FAMILY).start()
    try:
        parent.ready(lambda: len(parent.processes()) == 2, LIMIT)
        (orphan,) = (process for process in parent.processes() if process.pid != parent.pid)
        parent.kill()
        assert parent.code == -signal.SIGKILL
        assert parent.processes() == [orphan]
    finally:
        parent.end(grace=LIMIT)
    assert not runs(orphan)


def test_one_child_s_end_is_not_another_s(tmp_path: Path) -> None:
    one, other = (child(tmp_path, "import time; time.sleep(600)").start() for _ in range(2))
    try:
        one.end()
        assert not one.alive
        assert other.alive
    finally:
        end_all([one, other])
    assert not other.alive


NESTED = """
import os, sys, time
from fedloom.deploy.processes.children import Child
Child("inner", [sys.executable, "-c", "import time; time.sleep(600)"], os.environ).start()
time.sleep(600)
"""


def test_a_supervisor_that_is_killed_does_not_save_what_it_supervised(tmp_path: Path) -> None:
    """The inner child has a mark of its own beside the outer one."""
    outer = child(tmp_path, NESTED).start()
    try:
        outer.ready(lambda: len(outer.processes()) == 2, LIMIT)
        family = outer.processes()
        outer.kill()
    finally:
        outer.end(grace=LIMIT)
    assert not any(map(runs, family))


ORPHAN = """
import threading
from fedloom.deploy.processes.children import end_with_parent
end_with_parent(grace=0.2)
print("ready", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ORPHAN!r}])
"""


def test_a_process_that_hangs_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Its main thread waits for a lock for ever, in which Python handles no signal either."""
    parent = child(tmp_path, PARENT).start()
    try:
        parent.ready(lambda: "ready" in parent.output(), LIMIT)
        (orphan,) = (process for process in parent.processes() if process.pid != parent.pid)
        parent.kill()
        psutil.wait_procs([orphan], timeout=LIMIT)
        assert not runs(orphan)
    finally:
        parent.end(grace=LIMIT)


def test_the_log_is_that_of_the_last_start(tmp_path: Path) -> None:
    echo = child(tmp_path, "import os; print('mine is', os.getpid())")
    echo.start().wait(LIMIT)
    first = echo.output()
    assert first == f"mine is {echo.pid}\n"
    echo.restart().wait(LIMIT)
    assert echo.output() == f"mine is {echo.pid}\n"
    assert (tmp_path / "log").read_text() == first + echo.output()


def test_a_child_that_breaks_down_is_told_with_its_last_words(tmp_path: Path) -> None:
    broken = child(tmp_path, "print('a' * 3); raise SystemExit('no data')").start()
    with pytest.raises(ChildFailed, match=r"a trial ended with code 1:\n(.|\n)*no data"):
        broken.ready(lambda: False, LIMIT)
    slow = child(tmp_path, "import time; time.sleep(600)").start()
    try:
        with pytest.raises(ChildFailed, match=r"not ready in 0.2 s"):
            slow.ready(lambda: False, 0.2)
    finally:
        slow.end()


def test_free_ports_are_free_and_differ() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert not any(listens("127.0.0.1", port) for port in ports)


def test_an_exception_does_not_save_a_child(tmp_path: Path) -> None:
    """`end` works in the middle of Ctrl-C: the handler that was there is there again."""
    before = signal.getsignal(signal.SIGINT)
    lasting = child(tmp_path, "import time; time.sleep(600)").start()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        lasting.end()
    assert not lasting.processes()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("fedloom.deploy.processes.federation, fedloom.deploy.site.config", {"torch", "numpy"}),
        ("fedloom.deploy.guard.serve", {"torch"}),  # Flower itself imports numpy
    ],
)
def test_what_stays_for_months_does_not_import_torch(modules: str, heavy: set[str]) -> None:
    """A supervisor beside every SuperNode, and the guard of the SuperLink."""
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
