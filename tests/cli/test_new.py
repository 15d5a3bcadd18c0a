"""`fedloom new`: the files it writes run as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers import LIMIT, fedloom, finish, start_fedloom


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["method", "model", "data"])
def test_a_starting_file_passes_its_test_and_runs(folder: Path, kind: str) -> None:
    done = fedloom("new", kind, f"Tiny-{kind}", "--out=mine")
    assert done.code == 0, done.err
    file = Path("mine") / f"tiny_{kind}.py"
    assert f"fedloom run --import {file} --{kind} tiny_{kind}" in done.out
    assert f"my_{kind}" not in file.read_text()
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"]
    passed = subprocess.run(test, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert passed.returncode == 0, passed.stdout
    small = ["--rounds=1", "--clients=3", "--partition=iid", "--quiet", "--json"]
    run = finish(start_fedloom("run", f"--import={file}", f"--{kind}=tiny_{kind}", *small))
    assert run.code == 0, run.err
    assert run.record["rounds"] == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["methode", "mine"], "unknown kind of starting file 'methode'; did you mean 'method'?"),
        (["method", "2nd"], "'2nd' will not do; use letters, digits and '_', like my_method"),
        (["data", "class"], "'class' will not do"),
        (["method", "fedavg"], "there is a method 'fedavg' already; choose another name"),
        (["model", "cnn4"], "there is a model 'cnn4' already"),
        (["data", "digits"], "there is a data set 'digits' already"),
        (["model", "json"], "'json' is the name of a Python module; choose another one"),
        (["model", "there"], "there.py is there already; choose another name or --out"),
        (["model", "mine", "--out=there.py"], "cannot write in there.py"),
    ],
)
def test_what_cannot_be_written_is_said(
    folder: Path, args: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "there.py").write_text("")
    monkeypatch.syspath_prepend("")  # as with `python -m fedloom`: files here are modules
    done = fedloom("new", *args)
    assert done.code == 1
    assert message in " ".join(done.err.split())
    assert [path.name for path in folder.iterdir()] == ["there.py"]
