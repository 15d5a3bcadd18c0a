"""Kill, interrupt, damage, move: a resumed run is the undisturbed run, byte for byte."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.errors import BadInput
from fedloom.launch.start import run
from fedloom.record import RoundRecord, Summary
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.journal import Journal, read_record, read_records
from helpers import StopAt, fedloom, finish, start_fedloom, wait_until

ROUNDS = 40
# Personal heads and control variates: a state on the server and at every client.
SETTINGS: dict[str, Any] = {
    "method": "fedper + control_variates",
    "partition": "dirichlet(alpha=0.3) + scarce(size=60)",
    "clients": 6,
    "participation": 0.5,
    "model": "mlp(hidden=[16])",
    "rounds": ROUNDS,
    "epochs": 2,
    "checkpoint_every": 2,
    "seed": 3,
}
FLAGS = [f"{key}={value}" for key, value in SETTINGS.items()]

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds child processes in Linux's /proc"
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run."""
    out = tmp_path_factory.mktemp("straight") / "run"
    run(**SETTINGS, out=str(out))
    return out


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was interrupted after round 5, so with checkpoints of 4 and 5, and an earlier."""
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(**SETTINGS, out=str(out), watchers=[StopAt(5)])
    assert Checkpoints(out / "checkpoints").steps() == [5, 4, 2]
    return out


def rounds_done(out: Path) -> int:
    """Complete lines of a run's journal."""
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_round(process: subprocess.Popen[str], out: Path, number: int) -> None:
    """Until that many rounds are in the journal; a process that ends before fails the test."""

    def there() -> bool:
        if process.poll() is not None:
            pytest.fail(f"ended after {rounds_done(out)} rounds: {finish(process)}")
        return rounds_done(out) >= number

    wait_until(there)


def records(out: Path) -> list[RoundRecord]:
    """The journal without what a clock said."""
    steps = read_records(out / "metrics.jsonl", RoundRecord)
    return [replace(step, seconds=0.0, activities={}) for step in steps]


def assert_same_run(out: Path, straight: Path) -> None:
    """Same states, same journal, same summary, except for the clock and the folder's name."""
    assert records(out) == records(straight)
    one, other = (read_record(p / "summary.json", Summary) for p in (out, straight))
    assert replace(one, seconds=0.0, activities={}, run=None) == replace(
        other, seconds=0.0, activities={}, run=None
    )
    for name in ("ledger.jsonl", "digests.jsonl"):
        assert (out / name).read_bytes() == (straight / name).read_bytes()


def children(pid: int) -> dict[int, str]:
    """Child processes, by id, with their command lines."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def ended(pid: int, command: str) -> bool:
    """Is the process gone, or dead and only not yet buried by its new parent?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        now = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z" or now != command


@needs_proc
@pytest.mark.parametrize(
    ("engine", "between"),
    [("inline", [(1, 6), (8, 14), (16, 22), (24, 32)]), ("pool", [(1, 12), (16, 30)])],
)
def test_kills_at_random_moments_change_nothing(
    engine: str, between: list[tuple[int, int]], straight: Path, tmp_path: Path
) -> None:
    """kill -9 at random moments of one run, each later than the one before: in the middle of
    clients, merging, journal lines or checkpoints, whatever it hits. No worker outlives its run."""
    out, moment = tmp_path / "run", random.Random(f"kill {engine}")
    command: list[str | Path] = ["run", *FLAGS, f"engine={engine}", "--out", out, "-q"]
    for low, high in between:
        target = moment.randint(low, high)
        process = start_fedloom(*command)
        wait_for_round(process, out, target)
        time.sleep(moment.random() * 0.05)
        workers = children(process.pid)
        process.kill()
        assert finish(process).code == -signal.SIGKILL
        assert len([c for c in workers.values() if "spawn_main" in c]) == 2 * (engine == "pool")
        for pid, what in workers.items():
            wait_until(lambda pid=pid, what=what: ended(pid, what))
        assert not (out / "summary.json").exists()
        command = ["resume", out, "-q"]
    done = fedloom("resume", out, "--json")
    assert done.code == 0, done.err
    assert (
        done.record["state_sha256"]
        == json.loads((straight / "summary.json").read_text())["state_sha256"]
    )
    assert_same_run(out, straight)


@pytest.mark.parametrize("damage", ["truncated", "altered", "manifest", "missing"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    damage: str, stopped: Path, straight: Path
) -> None:
    newest = stopped / "checkpoints" / "step-000005"
    server, manifest = newest / "server.safetensors", newest / "manifest.json"
    data = server.read_bytes()
    if damage == "truncated":
        server.write_bytes(data[:-10])
    elif damage == "altered":
        server.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "manifest":
        manifest.write_text(manifest.read_text().replace('"step": 5', '"step": 6'))
    else:
        server.unlink()
    done = fedloom("resume", stopped, "-q")
    assert done.code == 0, done.err
    assert "checkpoint step-000005 is damaged" in done.err
    assert "going on from step-000004" in done.err
    assert_same_run(stopped, straight)


def test_every_checkpoint_damaged_says_so_and_touches_nothing(stopped: Path) -> None:
    for file in (stopped / "checkpoints").glob("*/manifest.json"):
        file.write_text("{")
    before = snapshot(stopped)
    done = fedloom("resume", stopped, "-q")
    assert done.code == 1
    assert "there is no checkpoint to go on from" in done.err
    assert "step-000005" in done.err
    assert "step-000004" in done.err
    assert snapshot(stopped) == before


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files but those that say who holds the folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in ("fedloom.lock", "fedloom.pid")
    }


def test_a_run_that_stopped_before_its_first_checkpoint_begins_again(
    stopped: Path, straight: Path
) -> None:
    shutil.rmtree(stopped / "checkpoints")
    assert fedloom("resume", stopped, "-q").code == 0
    assert_same_run(stopped, straight)


def test_a_finished_run_stays_as_it_is(straight: Path) -> None:
    before = snapshot(straight)
    summary = json.loads(before["summary.json"])
    done = fedloom("resume", straight, "--json")
    assert done.code == 0
    assert done.record == summary
    assert snapshot(straight) == before


def test_a_moved_folder_is_resumed_where_it_is(
    stopped: Path, straight: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(stopped, moved)
    done = fedloom("resume", moved, "--json")
    assert done.code == 0, done.err
    assert done.record["run"] == str(moved)
    assert not stopped.exists()
    assert_same_run(moved, straight)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_fedloom("run", *FLAGS, "rounds=100000", "--out", out, "-q")
    try:
        wait_for_round(process, out, 2)
        tries = [
            fedloom("resume", out),
            fedloom("run", *FLAGS, "--out", out),
            fedloom("run", *FLAGS, "--out", out, "--overwrite"),
        ]
        assert process.poll() is None
    finally:
        process.kill()
        finish(process)
    for done in tries:
        assert done.code == 1
        assert f"{out} is already in use by process {process.pid}" in done.err
    assert fedloom("run", *FLAGS, "rounds=1", "--out", out, "--overwrite").code == 0  # now free


@pytest.mark.parametrize(("stop", "engine"), [(signal.SIGINT, "pool"), (signal.SIGTERM, "inline")])
def test_ctrl_c_saves_what_is_done_and_says_how_to_go_on(
    stop: signal.Signals, engine: str, straight: Path, tmp_path: Path
) -> None:
    """As a terminal does, SIGINT goes to the whole process group, workers too; checkpoints are far
    apart, so what is saved was saved because of the signal."""
    out = tmp_path / "run"
    flags = [*FLAGS, "checkpoint_every=1000", f"engine={engine}"]
    process = start_fedloom("run", *flags, "--out", out, "-q")
    wait_for_round(process, out, 3)
    os.killpg(process.pid, stop) if stop == signal.SIGINT else process.send_signal(stop)
    done = finish(process)
    assert done.code == 130
    assert done.out == ""
    assert done.err.splitlines() == [
        f"fedloom: stopped; what is done is saved; go on with: fedloom resume {out}"
    ]
    steps = Checkpoints(out / "checkpoints").steps()
    assert steps == [rounds_done(out)]
    assert 3 <= steps[0] < ROUNDS
    if engine == "inline":
        assert fedloom("resume", out, "-q").code == 0
        assert_same_run(out, straight)


@needs_proc
def test_ctrl_c_while_workers_start_is_one_sentence_too(tmp_path: Path) -> None:
    """They import for seconds, and would each print where the signal hit them."""
    out = tmp_path / "run"
    process = start_fedloom("run", *FLAGS, "engine=pool", "--out", out, "-q")

    def starting() -> bool:
        return len([c for c in children(process.pid).values() if "spawn_main" in c]) == 2

    wait_until(starting)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert done.err.splitlines() == [
        f"fedloom: stopped; no round was done yet; begin again with: fedloom resume {out}"
    ]


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_loss_that_is_not_finite_names_client_and_round(engine: str, tmp_path: Path) -> None:
    """The learning rate is 0.05 in round 1 and 1e30 times as much in round 2."""
    out = tmp_path / "run"
    flags = ["partition=iid", "clients=3", "rounds=4", "decay=1e30", f"engine={engine}"]
    done = fedloom("run", *flags, "--out", out, "-q")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert done.err.startswith("fedloom: client ")
    assert "round 2" in done.err
    assert "the loss is not finite" in done.err
    assert rounds_done(out) == 1  # round 1 stays
    assert Checkpoints(out / "checkpoints").steps() == [1]
    if engine == "pool":
        return
    assert done.err.startswith("fedloom: client 0, round 2, phase 'local', epoch 1: ")
    before = snapshot(out)
    again = fedloom("resume", out, "-q")
    assert again.code == 1
    assert "round 2" in again.err
    assert "the loss is not finite" in again.err
    assert snapshot(out) == before


@needs_proc
def test_a_worker_killed_in_mid_round_loses_nothing(straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_fedloom("run", *FLAGS, "engine=pool", "--out", out, "-q")
    wait_for_round(process, out, 5)
    everyone = children(process.pid)
    worker = next(pid for pid, what in everyone.items() if "spawn_main" in what)
    os.kill(worker, signal.SIGKILL)
    done = finish(process)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "a worker process ended (exit code -9)" in done.err
    assert f"fedloom resume {out}" in done.err
    for pid, what in everyone.items():
        wait_until(lambda pid=pid, what=what: ended(pid, what))
    assert Checkpoints(out / "checkpoints").steps()[0] == rounds_done(out) >= 5
    assert fedloom("resume", out, "-q").code == 0
    assert_same_run(out, straight)


@pytest.mark.parametrize("file", ["metrics.jsonl", "digests.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_round_torn_while_it_is_written_down_is_done_again(
    error: type[BaseException],
    file: str,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt or a full disk between a round's state and its journal line: were the state
    saved all the same, the resumed journal would lack the round."""
    out, append, lines = tmp_path / "run", Journal.append_line, []

    def torn(journal: Journal, line: bytes) -> None:
        lines.extend([line] if journal.path.name == file and b'"step"' in line else [])
        if len(lines) == 4:
            raise error
        append(journal, line)

    monkeypatch.setattr(Journal, "append_line", torn)
    with pytest.raises(error):
        run(**SETTINGS, out=str(out))
    monkeypatch.undo()
    assert Checkpoints(out / "checkpoints").steps() == [2]
    assert fedloom("resume", out, "-q").code == 0
    assert_same_run(out, straight)


@pytest.mark.skipif(os.name != "posix", reason="files are limited by RLIMIT_FSIZE")
def test_a_disk_that_takes_no_more_is_one_sentence_and_nothing_is_lost(
    straight: Path, tmp_path: Path
) -> None:
    """No file may grow beyond 40 KB, which a journal reaches after some rounds: the system refuses
    the rest of the line, as it does where a disk is full."""
    import resource

    out, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        done = fedloom("run", *FLAGS, "--out", out, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert "Traceback" not in done.err
    (said,) = done.err.splitlines()
    assert said.startswith(f"fedloom: cannot write {out}")
    assert "(File too large); what was saved before is intact" in said
    assert said.endswith(f"to go on: fedloom resume {out}")
    assert 0 < rounds_done(out) < ROUNDS
    assert fedloom("resume", out, "-q").code == 0
    assert_same_run(out, straight)


def test_changed_data_are_not_gone_on_with(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    rows = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(60)]
    table.write_text("\n".join(["one,two,label", *rows]))
    out = tmp_path / "run"
    flags = ["partition=iid", "clients=3", "rounds=3", f"data={table}"]
    assert fedloom("run", *flags, "--out", out, "-q").code == 0
    table.write_text("\n".join(["one,two,label", *rows[::-1]]))
    done = fedloom("resume", out, "-q")
    assert done.code == 1
    assert f"the data of the run in {out} changed" in done.err


def test_clients_that_hold_other_rows_are_not_gone_on_with(tmp_path: Path) -> None:
    """The same data, divided by another seed."""
    from fedloom import federate, resume

    ours, other = (federate("digits", "iid", clients=3, seed=seed) for seed in (0, 1))
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", ours, rounds=3, out=str(out), watchers=[StopAt(1)])
    with pytest.raises(BadInput, match=f"the partition of the run in {out} changed"):
        resume(out, data=other)


def test_objects_must_be_given_again(tmp_path: Path) -> None:
    import numpy as np

    from fedloom import resume

    out, rng = tmp_path / "run", np.random.default_rng(0)
    data = (rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3)
    settings: dict[str, Any] = {"partition": "iid", "clients": 3, "rounds": 4}
    whole = run("fedper", data, **settings)
    with pytest.raises(KeyboardInterrupt):
        run("fedper", data, **settings, out=str(out), watchers=[StopAt(2)])
    done = fedloom("resume", out, "-q")
    assert done.code == 1
    assert f"fedloom.resume({str(out)!r}, data=...)" in done.err
    again = resume(out, data=data)
    assert again.summary.state_sha256 == whole.summary.state_sha256
