"""`fedloom advise`, from end to end on small partitions whose best kind of method is known."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.advice import advise as advising
from fedloom.advice.shortlist import ALONE, FINE_TUNED, ONE_MODEL
from fedloom.errors import BadInput
from fedloom.files import file_name
from fedloom.record import RoundRecord
from fedloom.runs.journal import read_records
from helpers import fedloom

SMALL: dict[str, Any] = {
    "clients": 4,
    "partition": "iid + scarce(size=120)",
    "model": "mlp(hidden=[8])",
    "rounds": 2,
    "workers": 1,
    "seeds": 2,
    "trials": 1,
}
QUICK: dict[str, Any] = {
    "model": "mlp(hidden=[16])",
    "rounds": 15,
    "workers": 1,
    "seeds": 3,
    "trials": 1,
}


def alike(gen: np.random.Generator) -> list[Any]:
    """One problem for all: four classes, too few rows of each."""
    means = gen.standard_normal((4, 16))
    labels = [gen.integers(0, 4, 32) for _ in range(8)]
    return [(means[y] + 1.5 * gen.standard_normal((32, 16)), y) for y in labels]


def strangers(gen: np.random.Generator) -> list[Any]:
    """A teacher of its own for every client, and enough rows to learn it."""
    inputs = [gen.standard_normal((80, 4)) for _ in range(5)]
    return [(x, (x @ gen.standard_normal((4, 2))).argmax(axis=1)) for x in inputs]


def own_levels(gen: np.random.Generator) -> list[Any]:
    """One function for all, and a level of each client's own."""
    slope = gen.standard_normal(8)
    sites = []
    for _ in range(8):
        x = gen.standard_normal((32, 8))
        level = 3 * gen.standard_normal()
        sites.append((x, 2 * np.tanh(x @ slope) + level + 0.1 * gen.standard_normal(32)))
    return sites


@pytest.mark.parametrize(
    ("make", "methods", "lr", "kind"),
    [
        (alike, (), 0.2, ONE_MODEL),
        (strangers, ("hypcluster",), 0.2, ALONE),
        (own_levels, ("fedper",), 0.05, FINE_TUNED),
    ],
)
def test_the_kind_of_method_that_the_partition_was_made_for(
    make: Any, methods: tuple[str, ...], lr: float, kind: str
) -> None:
    data = fl.FederatedData.from_clients(make(np.random.default_rng(0)))
    advice = fl.advise(data, methods=methods, lr=lr, **QUICK)
    assert advice.kind == kind, advice.evidence
    assert advice.command.startswith(f"fl.run({advice.expression!r}, data, ")


def test_test_rows_are_opened_only_after_the_choice_and_only_for_a_few(tmp_path: Path) -> None:
    advice = fl.advise("digits", **SMALL, methods=["fedper", "fedrep"], out=str(tmp_path))
    scored: dict[str, set[str]] = {"tuning": set(), "validation": set(), "test": set()}
    for journal in tmp_path.rglob("metrics.jsonl"):
        stage = journal.relative_to(tmp_path).parts[0]
        records = read_records(journal, RoundRecord)
        scored[stage] |= {score.at.split for record in records for score in record.scores}
    assert scored == {"tuning": {"val"}, "validation": {"val"}, "test": {"test"}}
    tested = {folder.name.rpartition("-seed")[0] for folder in (tmp_path / "test").iterdir()}
    assert len(advice.evidence.standings) == 5
    assert tested == {file_name(one.method) for one in advice.tested}
    assert {advice.method, "local", "fedavg"} <= {one.method for one in advice.tested}
    assert len(tested) == 4
    written = json.loads((tmp_path / "advice.json").read_text())
    assert written["advised"]["method"] == advice.method
    assert written["validation"]["best"] == advice.evidence.best


def test_an_advice_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three trials, three methods with two seeds each, three tested methods with two seeds."""
    straight = fl.advise("digits", **SMALL, out=str(tmp_path / "straight"))
    calls, advance = [], advising.advance

    def stops_at_the_eighth(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return advance(*given)

    monkeypatch.setattr(advising, "advance", stops_at_the_eighth)
    with pytest.raises(KeyboardInterrupt):
        fl.advise("digits", **SMALL, out=str(tmp_path / "stopped"))
    begun = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("stopped/**/summary.json")}
    resumed = fl.advise("digits", **SMALL, out=str(tmp_path / "stopped"))
    assert {path: path.stat().st_mtime_ns for path in begun} == begun  # not run again
    assert resumed.evidence == straight.evidence
    assert resumed.tested == straight.tested


def test_who_loses_by_taking_part_is_named() -> None:
    from fedloom.advice.advice import Tested, losers
    from fedloom.core.metrics import metric

    rows = {0: 100, 1: 100, 2: 10}
    alone = Tested("local", "local", (0.8,), {0: 0.9, 1: 0.6, 2: 0.9}, rows)
    together = Tested("fedavg", "fedavg", (0.8,), {0: 0.5, 1: 0.9, 2: 0.8}, rows)
    lost = losers([together, alone], "fedavg", ["Berlin", "Lyon", "Turin"], metric("accuracy"))
    assert [(one.client, one.clear) for one in lost] == [("Berlin", True), ("Turin", False)]
    assert losers([alone, together], "local", ["Berlin", "Lyon", "Turin"], metric("accuracy")) == []


@pytest.mark.parametrize(
    ("best", "said"),
    [("local", "nothing that was tried is better"), ("fedavg", "More than 2 seeds (--seeds) may")],
)
def test_an_advice_to_train_alone_claims_no_more_than_was_shown(best: str, said: str) -> None:
    from fedloom.advice.terminal import _on_losers

    evidence = SimpleNamespace(best=best, seeds=2)
    (sentence,) = _on_losers(
        SimpleNamespace(method="local", metric="accuracy", evidence=evidence)  # type: ignore[arg-type]
    )
    assert said in sentence


def test_the_command_says_what_and_why_and_how_to_train(tmp_path: Path) -> None:
    flags = [f"{key}={value}" for key, value in SMALL.items() if key not in ("seeds", "trials")]
    how = ("--seeds", "2", "--trials", "1", "--out", tmp_path / "out")
    done = fedloom("advise", "digits", *flags, *how)
    assert done.code == 0, done.err
    assert "local is on the list: what a client reaches by itself" in done.err
    assert "Advice: " in done.out
    (command,) = [line for line in done.out.splitlines() if line.startswith("fedloom run")]
    again = fedloom("advise", "digits", *flags, *how, "--json", "--quiet")
    assert command == again.record["advised"]["command"]
    program, *words = shlex.split(command)
    trained = fedloom(*words, "--out", tmp_path / "run", "--json", "--quiet")
    assert (program, trained.code) == ("fedloom", 0), trained.err


def test_a_budget_bounds_the_trials() -> None:
    settings = {key: value for key, value in SMALL.items() if key != "trials"}
    with pytest.raises(BadInput, match="too short"):
        fl.advise("digits", **settings, budget="0.01s")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.csv"], "a training would fail: there is no file or folder nowhere"),
        (["digits", "--method", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["digits", "--seeds", "1"], "--seeds"),
        (["digits", "--budget", "soon"], "budget = 'soon' is no time"),
    ],
)
def test_what_cannot_be_advised_on_is_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = fedloom("advise", *arguments, "--out", tmp_path)
    assert done.code != 0
    assert sentence in done.err
    assert "Traceback" not in done.err
