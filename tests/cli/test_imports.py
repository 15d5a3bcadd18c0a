"""A method, networks, data and a partition from a file, by the command line and from Python."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from fedloom import extensions
from fedloom.data import augmentations, partitions, register_data
from fedloom.methods import register
from fedloom.models import models
from fedloom.registry import squash
from helpers import LIMIT, Done, finish, start_fedloom, wait_until
from helpers import fedloom as command

THINGS = Path(__file__).parent.parent / "own_code/own_things.py"
SMALL = ["--clients=4", "--partition=iid", "--rounds=2", "--quiet", "--json"]
REGISTRIES = (register, models, register_data, partitions, augmentations)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """What a test imports, the next one does not know."""
    path = [*sys.path]
    names = [set(registry) for registry in REGISTRIES]
    yield
    forget()
    sys.path[:] = path
    for registry, before in zip(REGISTRIES, names, strict=True):
        for name in set(registry) - before:
            del registry._entries[name], registry._squashed[squash(name)]


def forget() -> None:
    """As in a new process: nothing is imported yet. (Registering the same again does no harm.)"""
    extensions._imported.clear()
    extensions._modules.clear()
    sys.modules.pop("own_things", None)


def fedloom(*args: str | Path) -> Done:
    """A command that ends well."""
    forget()
    done = command(*args)
    assert done.code == 0, done.err
    return done


def refused(*args: str | Path) -> str:
    """What a command says that is refused."""
    forget()
    done = command(*args)
    assert done.code == 1, done.out
    return " ".join(done.err.split())


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the file in the working folder, which a test may change."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(THINGS, tmp_path / "own_things.py"))


def config(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text())
    return found


# ------------------------------------------------------------------ runs


def test_every_engine_finds_what_a_file_brings(things: Path) -> None:
    """The method is trained, the network rebuilt and the images darkened in the workers, too."""
    own = ["--import=own_things.py", "--method=small_heads(mu=0.1)", "--augment=darken(by=0.25)"]
    own += ["--model=own_things.py:Net(width=5)", *SMALL]
    digests = {
        engine: fedloom("run", *own, f"--engine={engine}", f"--out=run-{engine}").record[
            "state_sha256"
        ]
        for engine in ("inline", "pool", "vectorized", "flower")
    }
    assert len(set(digests.values())) == 1, digests
    written = config(Path("run-pool"))
    assert written["method"].startswith("small_heads(")
    assert written["model"] == "own_things:Net(width=5)"
    (spec,) = written["imports"]
    assert spec.startswith(f"{things.resolve()}#sha256=")


def test_a_run_that_stopped_goes_on_wherever_it_is_called_from(
    things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["--import=own_things.py", "--method=small_heads", "--model=own_things.py:Net"]
    own += ["--clients=4", "--partition=iid", "--rounds=40", "--checkpoint-every=2", "--quiet"]
    straight = fedloom("run", *own, "--out=straight", "--json").record["state_sha256"]
    process = start_fedloom("run", *own, "--out=stopped", "--engine=pool", "--workers=1")
    journal = tmp_path / "stopped/metrics.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 3)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = finish(start_fedloom("resume", tmp_path / "stopped", "--quiet", "--json"))
    assert resumed.record["state_sha256"] == straight


@pytest.fixture
def ended(things: Path) -> Path:
    """A run that ended."""
    fedloom("run", "--import=own_things.py", "--method=small_heads", *SMALL, "--out=run")
    return Path("run")


def test_a_file_that_changed_is_refused_until_it_is_named(
    things: Path, ended: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever goes on with other code than the run began with should know; the folder says so."""
    before = config(ended)["imports"]
    things.write_text(things.read_text().replace("2026", "2027"))
    for verb in ("resume", "diagnose"):
        said = refused(verb, ended)
        assert "own_things.py is not what the run began with (sha256 " in said
        assert "restore it, or accept it as it is now: --import" in said
    with caplog.at_level(logging.WARNING, "fedloom"):
        fedloom("resume", ended, "--import", things, "--quiet")
    assert "the run began with another" in caplog.text
    assert config(ended)["imports"] != before
    caplog.clear()
    fedloom("resume", ended, "--quiet")
    assert not caplog.records


def test_a_file_that_was_moved_is_asked_for(things: Path, ended: Path) -> None:
    Path("moved").mkdir()
    things.rename("moved/own_things.py")
    assert "which is not there; say where it is now: --import own_things.py" in refused(
        "resume", ended
    )
    fedloom("resume", ended, "--import=moved/own_things.py", "--quiet")


def test_a_run_is_diagnosed_and_reported_without_a_word(ended: Path) -> None:
    fedloom("diagnose", ended, "--only=separation", "--rows=60", "--clients=2", "--quiet")
    fedloom("report", ended, "--out=page.html")
    page = Path("page.html").read_text()
    assert "small_heads" in page
    assert f"--import={Path('own_things.py').resolve()}#sha256=" in page
    Path("own_things.py").unlink()
    fedloom("report", ended, "--out=page.html")


def test_compare_reads_imports_from_a_configuration(things: Path) -> None:
    Path("run.toml").write_text('imports = ["own_things.py"]\nrounds = 1\nclients = 3\n')
    flags = ["--config=run.toml", "--partition=every_nth", "--seeds=1", "--out=compared", "--json"]
    done = fedloom("compare", "local", "small_heads", "small_heads + proximal", *flags, "--quiet")
    labels = [row["method"] for row in done.record["methods"]]
    assert labels == ["local", "small_heads", "small_heads + proximal"]
    assert len(config(Path("compared/local-seed0"))["imports"]) == 1


@pytest.mark.parametrize(
    ("flags", "clients"),
    [
        (["--data=two_lines(sites=2)", "--partition=by_user"], 2),
        (["--data=divided_lines(sites=5)"], 5),
    ],
)
def test_data_of_ones_own_by_name(things: Path, flags: list[str], clients: int) -> None:
    own = ["--import=own_things.py", "--rounds=1", "--quiet", "--json"]
    assert fedloom("run", *own, *flags).record["clients"] == clients


# ------------------------------------------------------------------ looking things up


def test_list_and_show_know_what_a_file_brings(things: Path) -> None:
    own = "--import=own_things.py"
    methods = fedloom("list", own, "--json").record["methods"]
    (mine,) = [entry for entry in methods if entry["name"] == "small_heads"]
    assert mine["what it does"].startswith("FedPer whose personal heads are kept small")
    assert mine["travels up"] == "body"
    assert "mu=0.01" in fedloom("show", "small_heads", own).out
    assert "wide" in fedloom("list", "models", own).out
    data = {entry["name"] for entry in fedloom("list", "data", own, "--json").record["data"]}
    assert {"two_lines", "divided_lines", "digits"} <= data
    done = fedloom("partition", own, "--data=two_lines", "--partition=every_nth", "--clients=3")
    assert "fingerprint" in done.out


def test_without_the_file_a_name_is_unknown() -> None:
    assert "unknown method 'small_heads'" in refused("run", "--method=small_heads", *SMALL)


# ------------------------------------------------------------------ from Python


def test_a_script_names_a_file_or_itself(things: Path) -> None:
    """`imports` loads a file once; a script that is the file itself is not run twice."""
    Path("script.py").write_text(
        dedent(
            """
            from dataclasses import dataclass
            from typing import ClassVar

            import fedloom as fl

            @fl.register
            @dataclass(frozen=True, kw_only=True)
            class Mine(fl.Method):
                '''Mine.'''

                name: ClassVar[str] = "mine"
                shared: str = "body.*"

            small = {"rounds": 1, "clients": 3, "partition": "iid", "workers": 1}
            if __name__ == "__main__":
                own = {"imports": ["own_things.py"], "engine": "pool", **small}
                first = fl.run("small_heads", model="own_things.py:Net", **own)
                import own_things
                second = fl.run(own_things.SmallHeads(), model=own_things.Net, **own)
                assert first.summary.state_sha256 == second.summary.state_sha256
                fl.run("mine", imports=[__file__], engine="pool", out="run", **small)
                print(fl.resume("run").summary.method)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mine\n"
    assert fedloom("resume", "run", "--quiet", "--json").record["method"] == "mine"
