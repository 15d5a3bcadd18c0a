"""A run folder has one owner, strangers' folders are left alone, and no file is ever torn."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedloom.errors import RunFolderError
from fedloom.files import write_atomic, write_json
from fedloom.runs.folder import RunFolder, RunPaths

PROCESSES = multiprocessing.get_context("forkserver")


def made(path: Path) -> Path:
    """A run that came to its end."""
    with RunFolder.create(path) as folder:
        write_json(folder.config, {"rounds": 3})
        folder.write_versions()
        folder.checkpoints.mkdir()
        (folder.checkpoints / "step-000001").mkdir()
        folder.metrics.write_text("{}\n")
    return path


def test_paths_and_files_of_a_run(tmp_path: Path) -> None:
    paths = RunPaths(made(tmp_path / "runs" / "one"))
    assert json.loads(paths.config.read_text()) == {"rounds": 3}
    assert set(json.loads(paths.versions.read_text())) == {
        "format",
        "fedloom",
        "python",
        "torch",
        "numpy",
        "platform",
        "cpu",
        "threads",
    }
    names = [paths.partition.name, paths.metrics.name, paths.checkpoints.name, paths.summary.name]
    assert names == ["partition.json", "metrics.jsonl", "checkpoints", "summary.json"]


def test_a_run_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    (path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"already holds a run: resume it, .*--out, .*--overw"):
        RunFolder.create(path)
    assert (path / "metrics.jsonl").exists()
    with RunFolder.create(path, overwrite=True):
        left = sorted(p.name for p in path.iterdir())
        assert left == ["fedloom.lock", "fedloom.pid", "notes.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_strangers_folder_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("someone else's")
    with pytest.raises(RunFolderError, match="not empty and not a run folder"):
        RunFolder.create(tmp_path, overwrite=overwrite)
    with pytest.raises(RunFolderError, match=r"no run in .*: it has no fedloom.pid"):
        RunFolder.open(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "config.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match=f"cannot make the run folder {path}"):
            RunFolder.create(path)


def test_opening_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"it has no config.json and no fedloom.pid"):
        RunFolder.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_start_that_was_killed_before_it_was_a_run(tmp_path: Path) -> None:
    """No configuration yet: nothing to resume, and a new run may begin, without old files."""
    path = made(tmp_path / "run")
    (path / "config.json").unlink()
    with pytest.raises(RunFolderError, match=r"it has no config.json;"):
        RunFolder.open(path)
    with RunFolder.create(path) as folder:
        assert not folder.checkpoints.exists()
    (path / "fedloom.pid").unlink()  # killed between taking the lock and saying who did
    RunFolder.create(path).close()


def test_a_run_is_reopened_after_it_was_closed(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    with RunFolder.open(path) as folder:
        assert folder.metrics.read_text() == "{}\n"
        folder.close()
        RunFolder.open(path).close()


def test_within_one_process_a_folder_has_one_owner_too(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    in_use = f"already in use by process {os.getpid()};"
    with RunFolder.open(path):
        with pytest.raises(RunFolderError, match=in_use):
            RunFolder.open(path)
        with pytest.raises(RunFolderError, match=in_use):
            RunFolder.create(path, overwrite=True)
        assert (path / "config.json").exists()


def test_the_lock_goes_when_the_body_fails(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), RunFolder.open(path):
        _ = 1 / 0
    RunFolder.open(path).close()


def hold(path: Path, told: Connection) -> None:
    with RunFolder.open(path):
        told.send("held")
        told.recv()


def test_a_second_process_is_told_who_holds_the_folder_until_kill_9(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=hold, args=(path, there), daemon=True)
    process.start()
    assert here.poll(600)
    with pytest.raises(RunFolderError, match=f"already in use by process {process.pid};"):
        RunFolder.open(path)
    process.kill()
    process.join(600)
    with RunFolder.open(path):
        assert (path / "fedloom.pid").read_text() == f"{os.getpid()}\n"


def test_writing_replaces_the_whole_file_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, "old")

    def fails(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, "new and longer")
    assert path.read_text() == "old"
    write_atomic(path, "new\n")
    assert path.read_bytes() == b"new\n"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_json_is_valid_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"best": math.nan, "path": tmp_path, "é": (1, 2)})
    value = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert value == {"best": None, "path": str(tmp_path), "é": [1, 2]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"best": object()})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == value


def test_a_folder_in_another_format_is_refused_by_name(tmp_path: Path) -> None:
    paths = RunPaths(made(tmp_path / "run"))
    paths.check_format()
    versions = json.loads(paths.versions.read_text())
    del versions["format"]
    paths.versions.write_text(json.dumps({**versions, "fedloom": "0.1.0"}))
    with pytest.raises(RunFolderError, match=r"is in format 1, of fedloom 0\.1\.0; this version"):
        paths.check_format()
    paths.versions.unlink()
    with pytest.raises(RunFolderError, match=r"versions\.json cannot be read"):
        paths.check_format()
