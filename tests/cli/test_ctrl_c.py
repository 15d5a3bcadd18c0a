"""Ctrl-C before a run begins and after it has ended: one sentence, whatever is imported or read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedloom import cli
from fedloom.launch import compare
from helpers import LIMIT, Done, fedloom

NOTHING = "fedloom: stopped; nothing was done yet; run the same command again"
SMALL = ["rounds=1", "clients=4", "partition=iid", "model=mlp(hidden=[4])"]
# A real signal, at a place that does not depend on how busy the machine is. Tests that run in the
# background ignore Ctrl-C, which a child would inherit.
PRESS_AT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
module = sys.argv.pop(1)

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
from fedloom.__main__ import main
main()
"""
TABLE = """
title = "Two methods"
source = "nowhere"
seeds = [0]
settings = { data = "digits", clients = 4, rounds = 1 }
columns.four = {}
rows.fedavg.method = "fedavg"
"""
COMMANDS = {
    "run": ["run", "--out=out"],
    "compare": ["compare", "local", "fedavg", "--out=out"],
    "reproduce": ["reproduce", "table.toml", "--out=out"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table, and a module whose import is one of the places."""
    monkeypatch.chdir(tmp_path)
    Path("table.toml").write_text(TABLE, encoding="utf-8")
    Path("own.py").touch()
    return tmp_path


def stopped(module: str, *words: str) -> Done:
    """The command, stopped when this module is first looked for."""
    done = subprocess.run(
        [sys.executable, "-c", PRESS_AT, module, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("module", ["typer", "numpy", "own"])
def test_ctrl_c_before_the_run_is_one_sentence(name: str, module: str) -> None:
    """While the command line is imported; while torch is, which swallows a KeyboardInterrupt that
    breaks its import of numpy; while the data and a user's own files are read."""
    own = ["--import=own.py"] if module == "own" else []
    done = stopped(module, *COMMANDS[name], *own)
    assert (done.code, done.out, done.err.splitlines()) == (130, "", [NOTHING])
    assert not Path("out").exists()


def test_a_run_that_is_there_already_is_not_the_one_that_was_stopped() -> None:
    """`fedloom resume` would go on with the old one."""
    assert fedloom("run", *SMALL, "--out=out", "-q").code == 0
    done = stopped("own", "run", *SMALL, "--out=out", "--overwrite", "--import=own.py", "-q")
    assert (done.code, done.err.splitlines()) == (130, [NOTHING])


def press(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def test_ctrl_c_after_the_run_does_not_say_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "_show", press)
    done = fedloom("run", *SMALL, "--out=out")
    assert done.code == 130
    assert done.err.splitlines()[-1] == "fedloom: stopped; what is done is saved"


def test_a_command_without_runs_says_that_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_show", press)
    done = fedloom("list")
    assert (done.code, done.out, done.err) == (130, "", "fedloom: stopped\n")


def test_a_comparison_that_chose_its_folder_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command alone would begin in another one."""

    def begun(*_: Any, out: str, **__: Any) -> NoReturn:
        Path(out).mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "compare", begun)
    done = fedloom("compare", "local", *SMALL)
    (folder,) = Path("runs").iterdir()
    assert done.err.splitlines()[-1].endswith(f"go on with: the same command with --out {folder}")
