"""Real libraries: what they read back is what the run's records say, once each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from readers import Curves, Found, read

import fedloom as fl
from fedloom.errors import BadInput, UnknownName
from fedloom.loggers import LOGGERS, make_logger
from fedloom.loggers.base import numbers
from fedloom.record import RoundRecord
from fedloom.runs.journal import read_records
from helpers import LIMIT, StopAt, fedloom, finish, start_fedloom, wait_until

TOOLS = tuple(LOGGERS)
# A special round before and an adaptation after the three rounds: five plans.
SETTINGS: dict[str, Any] = {
    "method": "fedavg_ft(adapt_epochs=1) + dbe",
    "partition": "iid",
    "clients": 4,
    "model": "mlp(hidden=[8])",
    "rounds": 3,
}
SMALL: dict[str, Any] = {**SETTINGS, "method": "local", "rounds": 2}
COSTS = ("loss", "bytes_up", "bytes_down", "seconds")


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb's service leaves its own debug log in a cache."""
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fl.Result]:
    """A run with all loggers at once."""
    out = tmp_path_factory.mktemp("logged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_CACHE_DIR", str(out.parent))
        return out, fl.run(**SETTINGS, out=str(out), watchers=[make_logger(t) for t in TOOLS])


def curves_of(records: Sequence[RoundRecord], tool: str) -> Curves:
    """What should be there: TensorBoard keeps single precision."""
    stored = (lambda v: float(np.float32(v))) if tool == "tensorboard" else float
    curves: Curves = {}
    prefix = {"train": "", "special": "special/mean_regularization.mean/", "adapt": "adapt/"}
    for record in records:
        values = {prefix[record.kind] + key: getattr(record, key) for key in COSTS}
        values[prefix[record.kind] + "absent"] = 0
        for score in record.scores:
            for metric in ("accuracy", "nll"):
                for key in ("mean", "weighted", "worst_decile", "std"):
                    name = f"{score.at.moment}/test/{metric}/{key}"
                    values[name] = getattr(score.spread(metric), key)
        for name, value in values.items():
            if value is not None:
                curves.setdefault(name, []).append((record.round, stored(value)))
    return curves


def check_whole(found: Found, result: fl.Result, tool: str) -> None:
    """One run, one configuration, every number once, one summary."""
    assert len(found.runs) == 1
    assert found.curves == curves_of(result.records, tool)
    (config,) = found.configs
    written = result.experiment.config.model_dump(mode="json")
    assert config == {k: str(v) for k, v in written.items()}
    (summary,) = found.summaries
    for key in ("method", "state_sha256", "run"):
        assert summary[key] == str(getattr(result.summary, key))
    for key in ("accuracy", "worst_decile", "bytes_up"):
        assert float(summary[key]) == getattr(result.summary, key)
    assert summary["result/at/moment"] == result.summary.result.at.moment
    trained = result.summary.activities["main"]["local training"]
    assert float(summary["activities/main/local training"]) == trained


def services() -> list[str]:
    """Command lines of this process's children that are wandb's."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found.append(" ".join(child.cmdline()))
    return [line for line in found if "wandb-core" in line]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_number_is_read_back(logged: tuple[Path, fl.Result], tool: str) -> None:
    out, result = logged
    kinds = [(r.kind, r.round) for r in result.records]
    assert kinds == [("special", 0), ("train", 1), ("train", 2), ("train", 3), ("adapt", 4)]
    assert {"received/test", "final/test"} <= {str(s.at) for r in result.records for s in r.scores}
    check_whole(read(tool, out / tool), result, tool)


def test_a_stopped_run_is_readable_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    loggers = [make_logger(tool) for tool in TOOLS]
    with pytest.raises(KeyboardInterrupt):
        fl.run(**SETTINGS, out=str(out), watchers=[*loggers, StopAt(2)])
    assert services() == []
    for tool in TOOLS:
        wait_until(lambda tool=tool: "loss" in read(tool, out / tool).curves)
        assert [x for x, _ in read(tool, out / tool).curves["loss"]] == [1]
    result = fl.resume(out, watchers=[make_logger(tool) for tool in TOOLS])
    assert services() == []
    for tool in TOOLS:
        check_whole(read(tool, out / tool), result, tool)


def test_after_a_kill_no_step_is_written_twice(tmp_path: Path) -> None:
    """Killed when at least step 8 of 30 is logged, of which the checkpoint has 7."""
    out, log = tmp_path / "run", f"--log={','.join(TOOLS)}"
    flags = [f"{k}={v}" for k, v in {**SMALL, "rounds": 30, "checkpoint_every": 7}.items()]
    process = start_fedloom("run", *flags, "--out", out, log, "--quiet")
    marks = out / TOOLS[-1] / "logged.jsonl"
    try:
        wait_until(lambda: marks.exists() and marks.read_text().count('"log": null') >= 8)
    finally:
        process.send_signal(signal.SIGKILL)
        finish(process)
    assert not (out / "summary.json").exists()
    resumed = finish(start_fedloom("resume", out, log, "--json", "--quiet"))
    assert resumed.code == 0, resumed.err
    for tool in TOOLS:
        found = read(tool, out / tool)
        said = curves_of(read_records(out / "metrics.jsonl", RoundRecord), tool)
        assert [x for x, _ in found.curves.pop("seconds")] == list(range(1, 31))
        del said["seconds"]  # what was computed twice took twice
        assert found.curves == said
        assert len(found.runs) == len(found.configs) == len(found.summaries) == 1


def test_a_logger_that_comes_late_has_what_was_before(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fl.run(**SETTINGS, out=str(tmp_path / "run"), watchers=[StopAt(3)])
    result = fl.resume(tmp_path / "run", watchers=[make_logger(tool) for tool in TOOLS])
    for tool in TOOLS:
        check_whole(read(tool, tmp_path / "run" / tool), result, tool)


def test_overwriting_a_run_overwrites_its_logs(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    fl.run(**SMALL, out=out, watchers=[make_logger(tool) for tool in TOOLS])
    again = {**SMALL, "seed": 1, "out": out, "overwrite": True}
    result = fl.run(**again, watchers=[make_logger(tool) for tool in TOOLS])
    for tool in TOOLS:
        check_whole(read(tool, tmp_path / "run" / tool), result, tool)
    fl.run(**again)
    assert not {path.name for path in (tmp_path / "run").iterdir()} & set(TOOLS)


def test_a_second_run_in_the_users_folder_stands_alone(tmp_path: Path) -> None:
    """Runs in memory: TensorBoard shows the last one, MLflow both."""
    folder = {tool: tmp_path / tool for tool in ("tensorboard", "mlflow")}
    for seed in (0, 1):
        watchers = [make_logger(tool, path) for tool, path in folder.items()]
        result = fl.run(**SMALL, seed=seed, watchers=watchers)
    check_whole(read("tensorboard", folder["tensorboard"]), result, "tensorboard")
    found = read("mlflow", folder["mlflow"])
    assert len(found.runs) == 2
    assert {config["seed"] for config in found.configs} == {"0", "1"}
    assert {summary["run"] for summary in found.summaries} == {"None"}


def test_resuming_a_run_that_ended_adds_nothing(logged: tuple[Path, fl.Result]) -> None:
    out, _ = logged
    again = fl.resume(out, watchers=[make_logger(tool) for tool in TOOLS])
    for tool in TOOLS:
        check_whole(read(tool, out / tool), again, tool)


def test_a_run_of_the_users_own_survives(tmp_path: Path) -> None:
    import wandb

    quiet = wandb.Settings(silent=True, console="off")
    with wandb.init(dir=str(tmp_path), mode="offline", settings=quiet) as mine:
        fl.run(**SMALL, watchers=[fl.loggers.WandB(tmp_path / "log")])
        assert wandb.run is mine
        mine.log({"still": 1})
    wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"still" in file.read_bytes()
    assert services() == []


def test_comparing_from_the_command_line(tmp_path: Path) -> None:
    settings = [f"{k}={v}" for k, v in SMALL.items() if k != "method"]
    done = fedloom(
        *("compare", "local", "fedavg", *settings, "--seeds", "1", "--quiet"),
        *("--out", tmp_path / "c", "--log", "tensorboard, mlflow"),
    )
    assert done.code == 0, done.err
    for method in ("local", "fedavg"):
        out = tmp_path / "c" / f"{method}-seed0"
        for tool in ("tensorboard", "mlflow"):
            found = read(tool, out / tool)
            assert [x for x, _ in found.curves["loss"]] == [1, 2]
            assert found.summaries[0]["method"] == method
        assert not (out / "wandb").exists()


def test_unknown_names_are_refused_before_anything_happens(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'tensorboard'"):
        make_logger("tensorbord")
    done = fedloom("run", "rounds=1", "--out", tmp_path / "run", "--log", "mlflow,csv")
    assert done.code == 1
    assert "unknown logger 'csv'; there are: mlflow, tensorboard, wandb" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_missing_library_is_named_with_its_extra(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == tool]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    with pytest.raises(
        BadInput, match=rf"\({tool}.* is missing\); pip install 'fedloom\[{tool}\]'"
    ):
        make_logger(tool)


def test_a_run_in_memory_needs_a_folder() -> None:
    with pytest.raises(BadInput, match="a run in memory has no folder for its tensorboard log"):
        fl.run(**SMALL, watchers=[fl.loggers.TensorBoard()])


def test_absent_clients_are_counted() -> None:
    record = RoundRecord(0, 1, "train", "model", (0,), None, 8, 16, 0.5, {}, ())
    here = {"bytes_up": 8.0, "bytes_down": 16.0, "seconds": 0.5, "absent": 0.0}
    assert numbers(record) == here
    gone = replace(record, absent={1: "timed out", 3: "gone"})
    assert numbers(gone) == {**here, "absent": 2.0}


def test_libraries_load_when_a_logger_is_made_and_call_nobody() -> None:
    """Outside pytest, which MLflow recognises and is silent in."""
    code = (
        "import sys, threading, fedloom as fl\n"
        "fl.loggers.LOGGERS\n"
        "assert not {'tensorboard', 'wandb', 'mlflow'} & set(sys.modules)\n"
        "for name in fl.loggers.LOGGERS: fl.loggers.make_logger(name, 'unused')\n"
        "from mlflow.telemetry import get_telemetry_client\n"
        "assert get_telemetry_client() is None\n"
        "print(*(thread.name for thread in threading.enumerate()))"
    )
    leave_out = re.compile("PYTEST|CI$|GITHUB|MLFLOW|WANDB|DO_NOT_TRACK")
    env = {k: v for k, v in os.environ.items() if not leave_out.match(k)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=LIMIT,
        check=True,
    )
    assert done.stdout == "MainThread\n"
