"""Random damage to everything a stranger may hand over: a result or one sentence, in time, and
nothing is executed, written or removed elsewhere.

`FEDLOOM_FUZZ=100` tries a hundred times as many; `benchmarks/fuzz.py` counts them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fuzzing import CANARY, TARGETS, Forbidden, FromBytes, Hangs, attempt, workshop

from fedloom.errors import BadInput

TIMES = int(os.environ.get("FEDLOOM_FUZZ", "1"))
INPUTS = {"expressions": 300, "configurations": 150, "messages": 150, "run folders": 60}
"""In CI, of each target; of the others 50."""


@pytest.mark.parametrize("name", TARGETS)
def test_random_damage(name: str, tmp_path: Path) -> None:
    if name == "messages":
        pytest.importorskip("flwr")
    rng = random.Random(name)
    refused = 0
    with workshop(tmp_path) as folder:
        make = TARGETS[name][0](folder)
        for _ in range(INPUTS.get(name, 50) * TIMES):
            call, shown = make(rng)
            refused += not attempt(call, shown, folder)
    assert refused


@pytest.mark.parametrize("data", [b"", b"\0\1\2", bytes(range(256)), b"\xff" * 400])
def test_an_input_follows_from_bytes_alone(data: bytes, tmp_path: Path) -> None:
    """As `benchmarks/fuzz_guided.py` makes them."""
    with workshop(tmp_path) as folder:
        make = TARGETS["expressions"][0](folder)
        (call, shown), (_, again) = make(FromBytes(data)), make(FromBytes(data))
        assert shown == again
        attempt(call, shown, folder)
    assert 3 <= FromBytes(data).randint(3, 7) <= 7
    assert 0 <= FromBytes(data).random() < 1


# ---------------------------------------------------------------------- does the watch notice?


def _write_outside() -> None:
    Path("../../outside/new.txt").write_text("x")


def _remove_outside() -> None:
    os.remove("../../outside/thesis.txt")


def _link_outside() -> None:
    os.symlink("x", "../../outside/link")


def _through_a_link() -> None:
    os.symlink("../../outside", "here")
    Path("here/new.txt").write_text("x")


def _execute() -> None:
    eval(CANARY)


def _start() -> None:
    os.system("true")


def _traceback() -> None:
    raise LookupError("deep inside")


def _wait() -> None:
    raise Hangs


@pytest.mark.parametrize(
    "harm",
    [
        _write_outside,
        _remove_outside,
        _link_outside,
        _through_a_link,
        _execute,
        _start,
        _traceback,
        _wait,
    ],
)
def test_harm_is_noticed(harm: object, tmp_path: Path) -> None:
    assert callable(harm)
    with workshop(tmp_path) as folder, pytest.raises(AssertionError, match="for 'input'"):
        attempt(harm, "input", folder)


def test_what_is_allowed(tmp_path: Path) -> None:
    def refuse() -> None:
        raise BadInput("a sentence")

    with workshop(tmp_path) as folder:
        assert attempt(lambda: Path("inside.txt").write_text("x"), "input", folder)
        assert not attempt(refuse, "input", folder)
    assert issubclass(Forbidden, BaseException)
    assert not issubclass(Forbidden, Exception)  # no `except Exception` swallows it
