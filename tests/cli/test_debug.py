"""An error of a user's own method: one sentence, and with --debug the traceback as well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedloom.core.method import Method
from fedloom.methods import register
from helpers import fedloom

SENTENCE = "fedloom: breaks.extend before the run: KeyError: 'no such stage'"
RUN = ("run", "-q", "rounds=1", "clients=3", "partition=iid")


@dataclass(frozen=True, kw_only=True)
class Breaks(Method):
    name: ClassVar[str] = "breaks"
    late: bool = False

    def extend(self, net: Any, clients: int) -> None:
        if not self.late:
            raise KeyError("no such stage")

    def loss(self, b: Any, s: Any) -> Any:
        return b.out["no such output"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "breaks" not in register
    monkeypatch.setitem(register._entries, "breaks", Breaks)
    monkeypatch.setitem(register._squashed, "breaks", "breaks")


def test_without_debug_it_is_one_sentence_that_says_how_to_see_more() -> None:
    done = fedloom(*RUN, "method=breaks")
    assert done.code == 1
    assert done.err.splitlines() == [f"{SENTENCE}; give --debug for the traceback"]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_with_debug_the_traceback_comes_first(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("FEDLOOM_DEBUG", "1")
    done = fedloom(*(["--debug"] if how == "option" else []), *RUN, "method=breaks")
    assert done.code == 1
    first, *_, last = done.err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert 'raise KeyError("no such stage")' in done.err
    assert last == SENTENCE


def test_an_error_in_a_worker_has_that_process_s_traceback() -> None:
    done = fedloom("--debug", *RUN, "method=breaks(late=true)", "engine=pool", "workers=1")
    assert done.code == 1
    assert 'return b.out["no such output"]' in done.err
    assert done.err.splitlines()[-1] == (
        "fedloom: breaks.loss at client 0, round 1 (phase 'local'): KeyError: 'no such output'"
    )


def test_other_errors_for_the_user_have_no_hint() -> None:
    done = fedloom("run", "--method", "fedavgg")
    assert "did you mean 'fedavg'?" in done.err
    assert "--debug" not in done.err
