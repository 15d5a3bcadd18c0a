"""Tuning from end to end: `fl.tune` and `fedloom tune`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.errors import BadInput, RunFolderError
from fedloom.record import RoundRecord
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_records
from fedloom.tuning import tune as tuning
from fedloom.tuning.store import Store
from fedloom.tuning.validation import without_tests
from helpers import fedloom

SMALL: dict[str, Any] = {
    "clients": 4,
    "partition": "dirichlet(alpha=0.3) + scarce(size=120)",
    "model": "mlp(hidden=[8])",
    "rounds": 3,
    "workers": 1,
}
FLAGS = [f"{key}={value}" for key, value in SMALL.items()]


def choices(result: fl.TuneResult) -> list[Any]:
    """All that was tried and chosen, without the time it took."""
    return [
        (tuned.expression, [(t.number, t.expression, t.scores, t.why) for t in tuned.trials])
        for tuned in result.methods
    ]


def test_the_best_third_goes_on_and_the_best_of_them_wins() -> None:
    result = fl.tune(["fedprox"], **SMALL, trials=6)
    (tuned,) = result.methods
    assert result.rungs == [1, 3]
    assert [trial.number for trial in tuned.trials] == list(range(6))
    first = {trial.number: trial.scores[1] for trial in tuned.trials}
    best = sorted(first, key=lambda number: (-first[number], number))[:2]
    assert {t.number for t in tuned.trials if t.rounds == 3} == {0, *best}
    assert tuned.score == max(t.scores[3] for t in tuned.trials if t.rounds == 3)
    assert tuned.default.expression == "fedavg(lr=0.05) + proximal"
    assert tuned.cpu_seconds > 0


def test_a_trial_that_went_on_is_an_undisturbed_run_scored_on_validation_rows() -> None:
    """FedRep is fine-tuned after its last round, and so at every rung: from the rung before the
    training goes on as if that had not been."""
    data = fl.federate("digits", SMALL["partition"], SMALL["clients"])
    settings = {"model": SMALL["model"], "rounds": 3}
    result = fl.tune(["fedrep"], data, **settings, workers=1, trials=3)
    seen, _ = without_tests(data, seed=0)
    for trial in result.methods[0].trials:
        if trial.rounds == 3:
            straight = fl.run(trial.expression, seen, **settings, protocol="fedloom(split=val)")
            assert trial.score == straight.accuracy


def test_test_rows_decide_nothing() -> None:
    """Every test row, the clients' and the shared ones, becomes noise with other labels."""
    data = fl.federate("digits", SMALL["partition"], SMALL["clients"])
    rows = np.concatenate([client.test for client in data.partition.clients])
    source = data.source
    x, y = np.array(source.x), np.array(source.y)
    x[rows] = np.random.default_rng(0).integers(0, 17, x[rows].shape).astype(x.dtype)
    y[rows] = (y[rows] + 1) % source.classes
    other = replace(data, source=replace(source, x=x, y=y))
    settings = {"model": SMALL["model"], "rounds": 3, "workers": 1, "trials": 4}
    methods = ["fedprox", "fedavg_ft"]
    before = fl.tune(methods, data, **settings)
    assert fl.run("fedavg", data, rounds=1).accuracy != fl.run("fedavg", other, rounds=1).accuracy
    assert choices(fl.tune(methods, other, **settings)) == choices(before)


def test_trials_have_no_test_scores(tmp_path: Path) -> None:
    fl.tune(["fedper"], **SMALL, trials=1, out=str(tmp_path))
    records = read_records(RunPaths(tmp_path / "fedper" / "trial-000").metrics, RoundRecord)
    assert {score.at.split for record in records for score in record.scores} == {"val"}


def test_a_trial_that_diverges_is_the_worst_and_no_end() -> None:
    result = fl.tune(["fedavg"], **SMALL, trials=4, lr_range=(0.01, 1e30))
    trials = result.methods[0].trials
    assert any("the loss is not finite" in trial.why for trial in trials)
    assert result.methods[0].best.why == ""


def test_a_method_that_always_diverges_keeps_its_defaults() -> None:
    result = fl.tune(["fedavg"], **SMALL, trials=2, lr_range=(1e29, 1e30), lr=1e30)
    (tuned,) = result.methods
    assert (tuned.best.number, tuned.score) == (0, None)
    assert "broke down" in repr(result)


def test_all_that_is_found_is_in_a_file(tmp_path: Path) -> None:
    result = fl.tune(["fedprox", "local"], **SMALL, trials=3, out=str(tmp_path))
    saved = json.loads((tmp_path / "tune.json").read_text())
    assert saved == json.loads(json.dumps(result.as_json()))
    assert [method["method"] for method in saved["methods"]] == ["fedprox", "local"]
    assert not list(tmp_path.rglob("checkpoints"))  # they take space, and are of no more use


def test_a_tuning_that_ended_is_read_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fl.tune(["fedprox"], **SMALL, trials=3, out=str(tmp_path))

    def never(*_: Any) -> None:
        raise AssertionError("a finished trial was run again")

    monkeypatch.setattr(tuning, "advance", never)
    assert fl.tune(["fedprox"], **SMALL, trials=3, out=str(tmp_path)).as_json() == before.as_json()


def test_further_seeds_confirm_the_last_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are whole runs like the first one, may be asked for later, and are not repeated."""
    data = fl.federate("digits", SMALL["partition"], SMALL["clients"])
    settings = {"model": SMALL["model"], "rounds": 3, "workers": 1, "trials": 4}
    advance, calls = tuning.advance, []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return advance(*given)

    monkeypatch.setattr(tuning, "advance", counted)
    plain = fl.tune(["fedprox"], data, **settings, out=str(tmp_path)).methods[0]
    calls.clear()
    (tuned,) = fl.tune(["fedprox"], data, **settings, out=str(tmp_path), confirm=2).methods
    last = [trial for trial in tuned.trials if trial.rounds == 3]
    assert len(last) > 1
    assert len(calls) == 2 * len(last)
    seen, _ = without_tests(data, seed=0)
    for trial in last:
        by_seed = {
            seed: fl.run(
                trial.expression,
                seen,
                model=SMALL["model"],
                rounds=3,
                seed=seed,
                protocol="fedloom(split=val)",
            ).accuracy
            for seed in (0, 1, 2)
        }
        assert {0: trial.scores[3], **trial.confirmed} == by_seed
        assert trial.score == pytest.approx(sum(by_seed.values()) / 3)
    assert tuned.score == max(trial.score for trial in last if trial.score is not None)
    assert tuned.cpu_seconds > plain.cpu_seconds
    assert not list(tmp_path.rglob("checkpoints"))
    # A kill between the journal's line and the end of the states leaves them.
    next(tmp_path.rglob("trial-*-seed-1")).joinpath("checkpoints").mkdir()
    calls.clear()
    again = fl.tune(["fedprox"], data, **settings, out=str(tmp_path), confirm=2)
    assert again.methods[0].as_json() == tuned.as_json()
    assert not list(tmp_path.rglob("checkpoints"))
    without = fl.tune(["fedprox"], data, **settings, out=str(tmp_path)).methods[0]
    assert (without.expression, without.score) == (plain.expression, plain.score)
    assert not calls


def test_a_stop_in_the_middle_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = fl.tune(["fedprox"], **SMALL, trials=4)
    advance, calls = tuning.advance, []

    def stops_at_the_third(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(*given)

    monkeypatch.setattr(tuning, "advance", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        fl.tune(["fedprox"], **SMALL, trials=4, out=str(tmp_path))
    with open(tmp_path / "trials.jsonl", "a", encoding="utf-8") as journal:
        journal.write('{"op_code":')  # as a kill leaves it
    resumed = fl.tune(["fedprox"], **SMALL, trials=4, out=str(tmp_path))
    assert choices(resumed) == choices(straight)
    went_on = sum(trial.rounds == 3 for trial in straight.methods[0].trials)
    assert len(calls) == 3 + 2 + went_on  # the third is run again, the first two are not


def test_a_folder_belongs_to_one_tuning(tmp_path: Path) -> None:
    fl.tune(["fedprox"], **SMALL, trials=2, out=str(tmp_path))
    with pytest.raises(BadInput, match=r"holds a tuning of 'fedprox' with epochs = None, not 2"):
        fl.tune(["fedprox"], **SMALL, trials=2, epochs=2, out=str(tmp_path))
    with pytest.raises(BadInput, match=r"with trials = 2, not 3; pick another --out"):
        fl.tune(["fedprox"], **SMALL, trials=3, out=str(tmp_path))
    with Store(tmp_path), pytest.raises(RunFolderError, match="another process is tuning in"):
        fl.tune(["fedprox"], **SMALL, trials=2, out=str(tmp_path))


def test_a_budget_chooses_the_number_of_trials_once(tmp_path: Path) -> None:
    notes: list[str] = []
    result = fl.tune(["fedprox"], **SMALL, budget=2, out=str(tmp_path), note=notes.append)
    assert f"so {result.trials} trials of each fit into 2.0 s" in notes[0]
    assert result.trials > 1
    again = fl.tune(["fedprox"], **SMALL, budget=2, out=str(tmp_path))
    assert again.trials == result.trials


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing() -> None:
    alone = fl.tune(["fedprox", "fedrep"], **SMALL, trials=4)
    beside = fl.tune(["fedprox", "fedrep"], **{**SMALL, "workers": 2}, trials=4)
    assert choices(beside) == choices(alone)


# ------------------------------------------------------------------ the command line


def test_the_command_ends_with_the_command_to_train_with(tmp_path: Path) -> None:
    done = fedloom("tune", "fedprox", *FLAGS, "--trials", "3", "--out", tmp_path / "tune", "--json")
    assert done.code == 0, done.err
    (method,) = done.record["methods"]
    program, *words = shlex.split(method["command"])
    trained = fedloom(*words, "--out", tmp_path / "run", "--json", "--quiet")
    assert (program, trained.code) == ("fedloom", 0), trained.err
    assert trained.record["method"] == method["best"]["method"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {key: config[key] for key in ("partition", "rounds", "model")} == {
        key: SMALL[key] for key in ("partition", "rounds", "model")
    }


def test_the_table_shows_every_trial(tmp_path: Path) -> None:
    flags = ["--trials", "3", "--confirm", "1", "--out", tmp_path]
    done = fedloom("tune", "fedavg", *FLAGS, *flags)
    assert done.code == 0, done.err
    assert "Trials of fedavg" in done.out
    assert "seed 1" in done.out
    assert "Best of 3 trials each, on validation rows" in done.out
    assert "fedloom run --method 'fedavg(lr=" in done.out
    assert "trials hold 20% of every client's training rows out" in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["fedavg", "fedavg"], "'fedavg' is compared with itself"),
        (["fedavg", "--trials", "2", "--budget", "1m"], "give one of them"),
        (["fedavg", "--budget", "soon"], "budget = 'soon' is no time"),
        (["fedavg", "--confirm", "-1"], "-1 is not in the range x>=0"),
        (["fedavg", "--budget", "0.01s"], "a budget of 0.0 s is too short"),
        (["fedavg", "--lr-range", "1"], "lr_range = '1' is no range"),
        (["fedavg", "--lr-range", "1..0.1"], "a log range goes from"),
        (
            ["fedavg", "--engine", "pool"],
            "engine = 'pool' will not do, choose inline or vectorized",
        ),
        (["--rounds", "2"], "Missing argument"),
        (["rounds=2"], "name at least one method to tune"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = fedloom(
        "tune", *arguments, *(FLAGS if arguments[0] != "--rounds" else []), "--out", tmp_path
    )
    assert done.code != 0
    assert sentence in done.err
    assert "Traceback" not in done.err


def test_without_optuna_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedloom.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = fedloom("tune", "fedavg")
    assert done.code == 1
    assert "optuna is missing" in done.err
    assert "pip install 'fedloom[tune]'" in done.err


def test_data_and_model_given_as_objects_come_back_as_a_call_in_python() -> None:
    data = fl.federate("digits", "iid", 4)
    result = fl.tune(["fedavg"], data, trials=1, rounds=1, workers=1, model="mlp(hidden=[8])")
    assert result.methods[0].command == (
        "fl.run('fedavg(lr=0.05)', data, model='mlp(hidden=[8])', rounds=1, seed=0)"
    )
