"""Comparisons whose runs go side by side: same numbers, failures, a late stop and the bar."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedloom as fl
from fedloom.launch import compare as compared
from fedloom.launch import forking, side_by_side
from fedloom.launch.progress import Bar, Line
from fedloom.runs.config import RunConfig
from helpers import fedloom

pytestmark = pytest.mark.xdist_group("side by side")  # they share the process that forks
SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "partition": "iid", "model": "mlp(hidden=[8])"}
FOUR = 4 if forking.AT_ONCE else 3
"""So many of four runs go side by side: else the first shows how long one takes."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs go side by side however short they are; how many, each time."""
    begun: list[int] = []

    class Counted(compared.SideBySide[Any]):
        def outcomes(self, configs: Any) -> Any:
            begun.append(len(configs))
            return super().outcomes(configs)

    monkeypatch.setattr(compared, "START_SECONDS", 0.0)
    monkeypatch.setattr(compared, "SideBySide", Counted)
    return begun


def digests(comparison: fl.Comparison) -> list[str | None]:
    """Of the states of every run."""
    return [s.state_sha256 for row in comparison.rows for s in row.summaries]


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "spawned"])
def test_runs_side_by_side_end_with_the_same_bytes(
    processes: list[int], monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    if forked and not forking.AT_ONCE:
        pytest.skip("nothing is forked on this system")
    monkeypatch.setattr(forking, "AT_ONCE", forked)
    alone = fl.compare(["fedavg", "fedrep"], seeds=[0, 1], **SMALL)
    assert processes == []
    beside = fl.compare(["fedavg", "fedrep"], seeds=[0, 1], workers=2, **SMALL)
    assert processes == [4 if forked else 3]
    assert digests(alone) == digests(beside)
    assert [row.label for row in beside.rows] == ["fedavg", "fedrep"]
    assert [s.seed for row in beside.rows for s in row.summaries] == [0, 1, 0, 1]


def test_what_other_processes_would_not_know_stays_in_this_one(processes: list[int]) -> None:
    heard: list[str] = []

    def watch(label: str, over: int) -> list[fl.Watcher]:
        heard.append(f"{label} {over}")
        return []

    fl.compare(["local", "fedavg"], seeds=[0, 1], workers=2, watch=watch, **SMALL)
    assert heard == ["local 0", "local 1", "fedavg 2", "fedavg 3"]
    fl.compare([fl.Ditto(lam=0.1)], seeds=[0, 1, 2], workers=2, **SMALL)
    fl.compare(["fedavg"], seeds=[0, 1, 2], workers=2, engine="pool", **SMALL)
    assert processes == []


def test_short_runs_are_not_worth_a_process(
    processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "AT_ONCE", False)
    monkeypatch.setattr(compared, "START_SECONDS", 3600.0)
    fl.compare(["local", "fedavg"], seeds=[0, 1], workers=2, **SMALL)
    assert processes == []


def test_runs_that_ended_before_are_read(processes: list[int], tmp_path: Path) -> None:
    """Three of four have ended: one is due, for which no process is started."""
    options = {**SMALL, "workers": 2, "out": str(tmp_path / "c")}
    whole = fl.compare(["fedavg", "fedrep"], seeds=[0, 1], **options)
    (tmp_path / "c" / "fedrep-seed1" / "summary.json").unlink()
    assert digests(fl.compare(["fedavg", "fedrep"], seeds=[0, 1], **options)) == digests(whole)
    assert processes == [FOUR]
    again = fl.compare(["fedavg", "fedrep"], seeds=[0, 1], overwrite=True, **options)
    assert processes == [FOUR, FOUR]
    assert digests(again) == digests(whole)


def test_a_run_that_breaks_down_ends_the_comparison_with_its_sentence(
    processes: list[int], tmp_path: Path
) -> None:
    with pytest.raises(fl.TrainingError, match=r"lr|finite|loss"):
        fl.compare(
            ["fedavg(lr=0.01)", "fedavg(lr=1e30)"],
            seeds=[0, 1],
            workers=2,
            out=str(tmp_path / "c"),
            **SMALL,
        )
    assert processes == [FOUR]
    assert list(tmp_path.glob("c/fedavg-lr-0.01-seed*/summary.json"))


def test_on_the_command_line_workers_count_runs(processes: list[int], tmp_path: Path) -> None:
    options = [f"{key}={value}" for key, value in SMALL.items() if key != "model"]
    out = str(tmp_path / "c")
    done = fedloom("compare", "local", "fedavg", *options, "--seeds", "2", "--out", out)
    assert processes == [FOUR]
    assert done.code == 0
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())["methods"]
    assert [row["method"] for row in rows] == ["local", "fedavg"]


def seen(*_: Any) -> dict[str, Any]:
    """In place of a run: what its process began with."""
    return {
        "imported": forking.PRELOADED in sys.modules,
        "left alone": gc.get_freeze_count(),
        "environment": dict(os.environ),
        "pid": os.getpid(),
    }


@pytest.mark.skipif(not forking.AT_ONCE, reason="nothing is forked on this system")
def test_a_process_begins_with_everything_imported_and_the_environment_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of when forking began is another one."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # that of other tests
    forking.begin()
    monkeypatch.setenv("FEDLOOM_DATA", "/a/folder/of/now")
    data = fl.run("local", **{**SMALL, "rounds": 1}).experiment.data
    configs = [RunConfig.checked({})] * 2
    with side_by_side.SideBySide(seen, data, None, 2) as processes:
        for _, what in processes.outcomes(configs):
            assert what["imported"]
            assert what["left alone"] > 100_000  # torch's, which no garbage is looked for in
            assert what["environment"] == dict(os.environ)
            assert what["pid"] != os.getpid()


def lost(*_: Any) -> None:
    """In place of a run: its process ends."""
    os._exit(1)


def test_a_lost_process_is_one_sentence_also_when_more_is_handed_over() -> None:
    data = fl.run("local", **{**SMALL, "rounds": 1}).experiment.data
    configs = [RunConfig.checked({})] * 2
    with side_by_side.SideBySide(lost, data, None, 2) as processes:
        for _ in range(2):
            with pytest.raises(fl.WorkerLost, match="a process that ran beside others ended"):
                list(processes.outcomes(configs))


COMPARING = (
    "import fedloom as fl\n"
    "print([s.state_sha256 for row in fl.compare(['fedavg'], 'digits', seeds=[0, 1], workers={},"
    " rounds=1, clients=4, model='mlp(hidden=[8])', progress=False).rows for s in row.summaries])"
)


@pytest.mark.skipif(not forking.AT_ONCE, reason="elsewhere every process reads the script for long")
def test_a_script_that_starts_processes_wherever_it_is_read_is_told_so(tmp_path: Path) -> None:
    """By one traceback, that of the script itself, and without a word of the other processes."""
    script = tmp_path / "unguarded.py"
    script.write_text(COMPARING.format(2), encoding="utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("Traceback") == 1
    assert "in a script keep the call under `if __name__ == '__main__':`" in ended.stderr


def test_a_program_from_standard_input_stays_in_one_process() -> None:
    by_workers = {}
    for workers in (1, 2):
        program = COMPARING.format(workers)
        run = [sys.executable, "-"]
        ended = subprocess.run(run, input=program, capture_output=True, text=True, check=True)
        by_workers[workers] = ended.stdout
        assert ("standard input; save it" in ended.stderr) == (workers == 2)
    assert by_workers[1] == by_workers[2]
    assert by_workers[1].count("'") == 4


def test_a_run_that_was_handed_over_before_a_stop_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = multiprocessing.Event()
    monkeypatch.setitem(side_by_side._held, "stop", stop)
    monkeypatch.setitem(side_by_side._held, "mouth", None)
    for key in ("data", "model"):
        monkeypatch.setitem(side_by_side._held, key, None)
    monkeypatch.setitem(side_by_side._held, "work", lambda *_: "it began")
    config = RunConfig.checked({})
    assert side_by_side._work(0, config) == "it began"
    stop.set()
    assert side_by_side._work(0, config) is None


def test_progress_that_cannot_be_shown_ends_no_run(
    processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no space left on the terminal")

    monkeypatch.setattr(Line, "reached", broken)
    found = fl.compare(["local"], seeds=[0, 1, 2], workers=2, progress=False, **SMALL)
    assert len(found.rows[0].summaries) == 3


def test_the_bar_adds_up_runs_that_go_on_together() -> None:
    """Of three runs one was over before, one is done to a half and one to a quarter; then the
    second ends, and news of it that come late are not shown."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Bar(console, runs=3) as bar:
        whole = bar._progress.tasks[0]
        before, second, third = (bar.line(name) for name in ("a", "b", "c"))
        before.over()
        second.reached(2, 4)
        third.reached(1, 4)
        assert whole.completed == 1.75
        second.over()
        second.reached(3, 4)
        assert whole.completed == 2.25
        assert [task.description for task in bar._progress.tasks] == ["all runs", "c"]
