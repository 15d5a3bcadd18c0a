"""A run can be stopped by a watcher and be given more rounds; its bytes are those of one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedloom as fl
from fedloom.core.score import ClientScore
from fedloom.errors import BadInput
from fedloom.record import At, Group, Headline, RoundRecord, Score
from fedloom.runs.early_stop import EarlyStop
from fedloom.runs.journal import read_records
from fedloom.runs.watcher import RunView, Stop, Watcher
from helpers import StopAt, fedloom, outcome

SETTINGS: dict[str, Any] = {
    "partition": "iid",
    "clients": 4,
    "model": "mlp(hidden=[12])",
    "checkpoint_every": 2,
}
METHODS = ["fedavg", "fedavg_ft(adapt_epochs=1)", "spherefed", "fedavg + dbe"]
"""Nothing after training; an adaptation; a special round after training; one before it."""


class StopIn(Watcher):
    """Ends the training after one round."""

    def __init__(self, t: int, finish: bool = True) -> None:
        self.t, self.finish = t, finish

    def step(self, run: RunView, record: RoundRecord) -> Stop | None:
        if record.kind == "train" and record.round == self.t:
            return Stop(f"round {self.t} is enough", self.finish)
        return None


# ------------------------------------------------------------------ more rounds


@pytest.mark.parametrize("method", METHODS)
def test_an_ended_run_with_more_rounds_is_the_longer_run(method: str, tmp_path: Path) -> None:
    straight = fl.run(method, rounds=5, **SETTINGS, out=str(tmp_path / "straight"))
    out = tmp_path / "run"
    fl.run(method, rounds=3, **SETTINGS, out=str(out))
    longer = fl.resume(out, rounds=5)
    assert outcome(longer) == outcome(straight)
    assert [r.kind for r in longer.records].count("adapt") == [
        r.kind for r in straight.records
    ].count("adapt")
    assert json.loads((out / "config.json").read_text())["rounds"] == 5


def test_the_end_of_training_is_saved_however_seldom_the_run_is(tmp_path: Path) -> None:
    """From there more rounds are added; a checkpoint from after the adaptation is of no use."""
    settings = {**SETTINGS, "checkpoint_every": 10}
    straight = fl.run("fedavg_ft", rounds=4, **settings)
    fl.run("fedavg_ft", rounds=2, **settings, out=str(tmp_path / "run"))
    longer = fl.resume(tmp_path / "run", rounds=4)
    assert longer.summary.state_sha256 == straight.summary.state_sha256


def test_a_run_that_stopped_half_way_can_be_given_more(tmp_path: Path) -> None:
    straight = fl.run("fedavg_ft", rounds=6, **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg_ft", rounds=4, **SETTINGS, out=str(tmp_path / "run"), watchers=[StopAt(3)])
    longer = fl.resume(tmp_path / "run", rounds=6)
    assert longer.summary.state_sha256 == straight.summary.state_sha256


def test_killed_while_it_is_extended_it_goes_on_with_the_new_rounds(tmp_path: Path) -> None:
    straight = fl.run("fedavg_ft", rounds=6, **SETTINGS)
    fl.run("fedavg_ft", rounds=3, **SETTINGS, out=str(tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        fl.resume(tmp_path / "run", rounds=6, watchers=[StopAt(1)])
    assert not (tmp_path / "run" / "summary.json").exists()
    again = fl.resume(tmp_path / "run")
    assert again.summary.state_sha256 == straight.summary.state_sha256


def test_only_more_rounds_can_be_given(tmp_path: Path) -> None:
    fl.run("fedavg", rounds=3, **SETTINGS, out=str(tmp_path / "run"))
    with pytest.raises(BadInput, match=r"has 3 rounds, more than 2; only further rounds"):
        fl.resume(tmp_path / "run", rounds=2)
    assert fedloom("resume", tmp_path / "run", "--rounds", "4", "-q").code == 0
    assert len(read_records(tmp_path / "run" / "metrics.jsonl", RoundRecord)) == 4


def test_a_last_round_in_which_everybody_took_part_cannot_be_taken_back(tmp_path: Path) -> None:
    settings = {**SETTINGS, "protocol": "fedpac", "participation": 0.5}
    fl.run("fedavg", rounds=2, **settings, out=str(tmp_path / "run"))
    with pytest.raises(BadInput, match="everybody takes part in the last round"):
        fl.resume(tmp_path / "run", rounds=3)


# ------------------------------------------------------------------ stopping


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_early_is_a_run_of_so_many_rounds(method: str, tmp_path: Path) -> None:
    """Special rounds and the adaptation come after the round at which it was stopped."""
    short = fl.run(method, rounds=2, **SETTINGS)
    out = tmp_path / "run"
    stopped = fl.run(method, rounds=6, **SETTINGS, out=str(out), watchers=[StopIn(2)])
    assert stopped.summary.state_sha256 == short.summary.state_sha256
    assert stopped.accuracy == short.accuracy
    assert (stopped.summary.rounds, stopped.summary.stopped) == (2, "round 2 is enough")
    assert json.loads((out / "summary.json").read_text())["stopped"] == "round 2 is enough"


def test_early_stop_ends_a_training_that_no_longer_improves(tmp_path: Path) -> None:
    """Ends two evaluations after the best one, and is then a run of so many rounds."""
    settings = {**SETTINGS, "eval_every": 1, "lr": 1e-12}  # every round is as good as the first
    stopped = fl.run("fedavg", rounds=9, early_stop=2, **settings, out=str(tmp_path / "run"))
    assert stopped.summary.rounds == 3
    assert stopped.summary.stopped.startswith("no evaluation after round 1 was better")
    assert stopped.accuracy == fl.run("fedavg", rounds=3, **settings).accuracy
    improving = {**SETTINGS, "eval_every": 1, "lr": 0.05}
    assert fl.run("fedavg", rounds=4, early_stop=2, **improving).summary.rounds == 4


@pytest.mark.parametrize("group", ["clients", "shared tests"])
@pytest.mark.parametrize(("average", "best"), [("uniform", 1), ("samples", 2)])
def test_early_stop_looks_at_validation_rows_where_they_are_scored(
    group: Group, average: Any, best: int
) -> None:
    """Test accuracy rises from round to round. On validation rows the clients' means are 0.9, 0.6
    and 0.5; the second client has nine times the rows of the first, so by samples they are 0.9,
    0.92 and 0.5. Shared test sets have no validation rows of their own."""
    at = At("received", "test", "personal", group)
    validation = {1: (0.9, 0.9), 2: (0.2, 1.0), 3: (0.5, 0.5)}

    def record(t: int) -> RoundRecord:
        scores = (_score(at, t / 10), _score(At("received", "val"), *validation[t]))
        return replace(template, round=t, scores=scores, headline=Headline(at, "accuracy", t / 10))

    template = fl.run("fedavg", rounds=1, **SETTINGS).records[-1]
    protocol = fl.Protocol(moment="received", average=average)
    run = SimpleNamespace(
        records=[record(t) for t in (1, 2, 3)], experiment=SimpleNamespace(protocol=protocol)
    )
    assert EarlyStop(4 - best).step(run, run.records[-1]) is None
    assert f"round {best} " in EarlyStop(3 - best).step(run, run.records[-1]).reason


def _score(at: At, *accuracies: float) -> Score:
    """Of clients with 10, 90 ... rows."""
    scored = {
        cid: ClientScore(at.moment, at.split, 10 + 80 * cid, {"accuracy": accuracy}, at.model)
        for cid, accuracy in enumerate(accuracies)
    }
    return Score.gathered(at.group, scored)


def test_an_early_stop_is_decided_before_another_watcher_can_break_off(tmp_path: Path) -> None:
    """Ctrl-C comes in the very round after which the training ends."""
    settings = {**SETTINGS, "eval_every": 1, "lr": 1e-12, "rounds": 9, "early_stop": 2}
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", **settings, out=str(out), watchers=[StopAt(3)])
    assert outcome(fl.resume(out)) == outcome(fl.run("fedavg", **settings))


def test_a_stop_survives_a_kill_and_more_rounds_undo_it(tmp_path: Path) -> None:
    """Ctrl-C comes right after the stop, before the adaptation."""
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg_ft", rounds=6, **SETTINGS, out=str(out), watchers=[StopIn(2), StopAt(2)])
    again = fl.resume(out)
    assert (again.summary.rounds, again.summary.stopped) == (2, "round 2 is enough")
    longer = fl.resume(out, rounds=7)
    straight = fl.run("fedavg_ft", rounds=7, **SETTINGS)
    assert longer.summary.state_sha256 == straight.summary.state_sha256
    assert longer.summary.stopped is None


@pytest.mark.parametrize(
    "settings",
    [{"eval_every": 5}, {"newcomers": 1}, {"protocol": "fedpac", "participation": 0.5}],
)
def test_a_stop_after_a_round_that_cannot_be_the_last_takes_one_more(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Round 2 was not scored, met no newcomers, was not for everybody: round 3 is the last."""
    short = fl.run("fedavg", rounds=3, **SETTINGS, **settings)
    out = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", rounds=6, **SETTINGS, **settings, out=out, watchers=[StopIn(2), StopAt(2)])
    stopped = fl.resume(out)
    assert stopped.summary.state_sha256 == short.summary.state_sha256
    assert stopped.summary.result == short.summary.result
    assert stopped.summary.newcomers == short.summary.newcomers
    assert (stopped.summary.rounds, stopped.summary.stopped) == (3, "round 2 is enough")


def test_a_run_pruned_before_its_first_score_has_a_number_all_the_same() -> None:
    watchers = [StopIn(1, finish=False)]
    pruned = fl.run("fedavg_ft", rounds=9, **SETTINGS, eval_every=5, watchers=watchers)
    assert pruned.summary.result.rounds == (2,)


def test_a_pruned_run_ends_at_once_and_is_judged_by_its_curve() -> None:
    pruned = fl.run("fedavg_ft", rounds=6, **SETTINGS, watchers=[StopIn(2, finish=False)])
    assert [r.kind for r in pruned.records] == ["train", "train"]
    assert pruned.summary.result.at.moment == "received"
    assert pruned.summary.stopped == "round 2 is enough"


def test_a_watcher_sees_scores_and_the_servers_state() -> None:
    class Looker(Watcher):
        def __init__(self) -> None:
            self.weights: list[float] = []

        def step(self, run: RunView, record: RoundRecord) -> None:
            assert record is run.records[-1]
            assert run.done == len(run.records)
            assert record.headline is not None
            self.weights.append(float(run.server["model"]["head.weight"].square().sum()))

    looker = Looker()
    result = fl.run("fedavg", rounds=2, **SETTINGS, watchers=[looker])
    assert len(set(looker.weights)) == 2
    assert looker.weights[-1] == float(result.server["model"]["head.weight"].square().sum())
