"""Which model a client is given: the one that was scored, in memory and from a run's folder."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom import At, BadInput, FederatedData, PersonalModel, UnknownName, run
from fedloom.core.evaluate import Ask, score_client
from fedloom.core.rng import rng_scope
from fedloom.runs.result import Result
from fedloom.serving.card import Card

SMALL: dict[str, Any] = {
    "clients": 5,
    "rounds": 2,
    "epochs": 1,
    "participation": 0.5,
    "newcomers": 1,
    "model": "mlp(hidden=[8])",
    "split": "merged(train=0.6, val=0.2)",
    "progress": False,
}


def rows_of(result: Result, cid: int) -> tuple[np.ndarray, np.ndarray]:
    data: Any = result.experiment.data
    rows = data.partition.clients[cid].test
    return np.asarray(data.source.x)[rows], data.client(cid).test.y.numpy()


def recorded(result: Result, moment: Any, cid: int) -> float:
    """The accuracy that the journal has last of the client at this moment."""
    at = At(moment, "test", result.summary.result.at.model)
    scores = (record.score(at) for record in reversed(result.records))
    return next(score.by_client("accuracy")[cid] for score in scores if score is not None)


@pytest.mark.parametrize(
    ("method", "protocol", "moment"),
    [
        ("fedper", "fedloom", "received"),
        ("fedbabu(adapt_epochs=1)", "fedloom", "final"),
        ("fedbabu(adapt_epochs=1)", "fedpac", "adapted"),
        ("fedper", "fedpac", "trained"),
        ("ditto", "fedloom(moment=trained)", "trained"),
        ("fedavg", "fedcr", "final"),
        ("apfl", "fedloom(model=global)", "received"),
        ("apple", "dbe", "received"),
        ("fedper", "fedloom(clients=new)", "received"),
    ],
)
def test_the_model_of_a_client_scores_what_the_run_recorded(
    tmp_path: Path, method: str, protocol: str, moment: str
) -> None:
    """Under every moment that a protocol may judge; the client that joins last included. From the
    folder comes the same model as from the run itself."""
    result = run(method, **SMALL, protocol=protocol, out=str(tmp_path / "run"))
    again = fedloom.open(tmp_path / "run")
    for cid in range(5):
        model = result.client(cid)
        x, y = rows_of(result, cid)
        prediction = model.predict(x)
        accuracy = float((prediction.argmax(1).numpy() == y).mean())
        assert model.card.metrics["test"]["accuracy"] == accuracy
        assert torch.equal(again.client(str(cid)).predict(x), prediction)
        if cid < 4:
            assert model.card.moment == moment
            assert recorded(result, moment, cid) == accuracy


X = np.random.default_rng(0).normal(size=(80, 3))
POINTS = (X, (X[:, 0] > 0).astype(int))


def best_of_two(select: str, **more: Any) -> Result:
    """A run whose result is of its first round: in the second the model is thrown far off."""
    return run(
        "fedavg",
        POINTS,
        **{**SMALL, "clients": 2, "newcomers": 0, "participation": 1.0, "partition": "iid"},
        lr=0.5,
        decay=1e4,
        protocol=f"fedloom(select={select})",
        **more,
    )


@pytest.mark.parametrize("select", ["best_val", "best_test"])
def test_a_model_of_another_round_than_the_result_says_so(
    select: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, where it is handed out and where it is read again, and on the card."""
    result = best_of_two(select)
    assert result.summary.result.rounds == (1,)
    model = result.client(0)
    sentence = "the run's result is of round 1, which its protocol chose"
    assert sentence in caplog.text
    assert (model.card.round, model.card.chosen_rounds) == (2, [1])
    model.save(tmp_path)
    assert sentence in (tmp_path / "CARD.md").read_text()
    caplog.clear()
    PersonalModel.load(tmp_path)
    assert sentence in caplog.text


def test_the_model_of_the_chosen_round_is_handed_out_where_a_checkpoint_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the run and from its folder: it scores what the run's result says of the client."""
    result = best_of_two("best_val", out=str(tmp_path / "run"), checkpoint_every=1)
    again, judged = fedloom.open(tmp_path / "run", data=POINTS), result.summary.result
    assert judged.rounds == (1,)
    x, y = rows_of(result, 1)
    for model in (result.client(1), again.client(1)):
        assert (model.card.round, model.card.chosen_rounds) == (1, [])
        accuracy = float((model.predict(x).argmax(1).numpy() == y).mean())
        assert accuracy == judged.by_client()[1] == model.card.metrics["test"]["accuracy"]
    assert not caplog.text


def test_a_model_of_the_result_s_round_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert run("fedper", **SMALL).client(0).card.chosen_rounds == []
    assert not caplog.text


def test_in_memory_too(tmp_path: Path) -> None:
    kept, stored = (
        run("fedper", **SMALL, protocol="fedpac", out=out) for out in (None, str(tmp_path / "run"))
    )
    x, _ = rows_of(kept, 1)
    assert torch.equal(kept.client(1).predict(x), stored.client(1).predict(x))


def test_a_method_that_draws_keeps_the_state_that_was_scored() -> None:
    """Drawn as the run drew, it scores to the digit what was recorded; by its own draws it answers
    the same row the same, alone and among others, and its card says what that scores."""
    result = run("fedcr(dim=8)", **{**SMALL, "participation": 1.0})
    model, experiment = result.client(2), result.experiment
    plan = experiment.plans[-1]
    with rng_scope(*plan.key, 2, "evaluate", "final"):
        ask = Ask(("final",), experiment.splits)
        data: Any = experiment.data.client(2)
        scores = score_client(experiment.program, 2, data, model.state, "final", ask)
    assert {s.split: dict(s.metrics) for s in scores} == model.card.metrics
    x, y = rows_of(result, 2)
    prediction = model.predict(x)
    assert torch.allclose(model.predict(x[3:4]), prediction[3:4], atol=1e-6)
    accuracy = float((prediction.argmax(1).numpy() == y).mean())
    assert model.card.metrics_of_fixed_draws["test"]["accuracy"] == accuracy
    assert "were drawn once" in model.card.in_words()


def test_clients_are_found_by_name_and_number() -> None:
    rng = np.random.default_rng(0)
    site = (rng.normal(size=(20, 3)), rng.choice(["no", "yes"], 20))
    data = FederatedData.from_clients({"leeds": site, "york": site})
    result = run("fedper", data, rounds=1, progress=False)
    assert result.client("york").card.client == result.client(1).card.client == 1
    assert result.client("0").card.name == "leeds"
    with pytest.raises(UnknownName, match="did you mean 'york'"):
        result.client("yorc")
    with pytest.raises(BadInput, match="there is no client 2; ids go from 0 to 1"):
        result.client(2)


def test_a_run_whose_states_stay_with_its_clients_says_so() -> None:
    pytest.importorskip("flwr")
    result = run("fedper", **{**SMALL, "newcomers": 0}, engine="flower")
    with pytest.raises(BadInput, match=r"kept their states to themselves \(engine flower\)"):
        result.client(0)


def test_a_run_that_did_not_end_has_no_models_yet(tmp_path: Path) -> None:
    run("fedper", **SMALL, out=str(tmp_path / "run"))
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(fedloom.RunFolderError, match="has not ended; go on with: fedloom resume"):
        fedloom.open(tmp_path / "run")


def test_states_that_were_trained_from_and_are_gone_are_missed_in_one_sentence(
    tmp_path: Path,
) -> None:
    run("fedper", **SMALL, protocol="fedpac", out=str(tmp_path / "run"))
    for folder in (tmp_path / "run" / "checkpoints").glob("step-000001*"):
        folder.rename(tmp_path / folder.name)
    with pytest.raises(BadInput, match="the states they were trained from are not kept"):
        fedloom.open(tmp_path / "run").client(0)


def test_a_card_says_what_was_done_to_uploads(tmp_path: Path) -> None:
    protected = {"privacy": "client(noise=2.0)", "secure_aggregation": "pairwise"}
    result = run("fedper", **{**SMALL, **protected, "participation": 1.0})
    result.client(1).save(tmp_path)
    card = Card.read(tmp_path)
    assert result.summary.privacy is not None
    assert card.epsilon == result.summary.privacy.epsilon
    words = (tmp_path / "CARD.md").read_text()
    assert f"`client(noise=2.0)`, epsilon {card.epsilon:.4g} in the end." in words
    assert "Uploads were masked (`pairwise`)" in words
    run("fedper", **SMALL).client(1).save(tmp_path / "plain")
    assert "masked" not in (tmp_path / "plain" / "CARD.md").read_text()
    assert "epsilon" not in (tmp_path / "plain" / "card.json").read_text()


def test_a_card_says_all_there_is_to_know(tmp_path: Path) -> None:
    result = run("fedper", **SMALL)
    result.client(1).save(tmp_path)
    card = Card.read(tmp_path)
    assert card.shared == ["body.1.weight", "body.1.bias"]
    assert card.personal == ["head.weight", "head.bias"]
    assert (card.data, card.task, card.method.split("(")[0]) == (
        "digits",
        "classification",
        "fedper",
    )
    words = (tmp_path / "CARD.md").read_text()
    for sentence in (
        "# Model of client 1",
        "pixels 0 to 255 (uint8)",
        "Never left it: head.weight, head.bias.",
        f"{card.metrics['test']['accuracy']:.4f}",
        card.state_sha256,
    ):
        assert sentence in words


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            np.zeros((2, 8, 8), np.uint8),
            r"shape \(8, 8\), those of the model \(1, 8, 8\)",
        ),
        (np.zeros((0, 1, 8, 8), np.uint8), "there are no rows"),
        (np.full((1, 1, 8, 8), 0.5), "pixels from 0 to 255 as whole numbers"),
        (np.full((1, 1, 8, 8), 256), "pixels from 0 to 255 as whole numbers"),
        (np.full((1, 1, 8, 8), "a"), "takes numbers"),
    ],
)
def test_rows_of_another_kind_are_refused(rows: np.ndarray, sentence: str) -> None:
    model: PersonalModel = run("fedavg", rounds=1, clients=2, partition="iid").client(0)
    with pytest.raises(BadInput, match=sentence):
        model.predict(rows)


def test_token_ids_that_a_model_does_not_know_are_refused() -> None:
    ids = np.random.default_rng(0).integers(0, 50, (24, 6))
    source = fedloom.Source.from_arrays(ids, np.arange(24) % 3, kind="text")
    data = fedloom.federate(source, "iid", 2)
    model = run("fedper", data, model="fasttext", rounds=1, progress=False).client(0)
    with pytest.raises(BadInput, match=r"cannot read the token id 1000 .* from 0 to 49"):
        model.predict(np.full((1, 6), 1000))
    with pytest.raises(BadInput, match="token ids as whole numbers"):
        model.predict(np.full((1, 6), -1))


def table_run() -> Result:
    rng = np.random.default_rng(0)
    sites = [(rng.normal(size=(20, 4)), np.arange(20) % 2) for _ in range(2)]
    data = FederatedData.from_clients(sites)
    return run("local", data, model="mlp(hidden=[8, 8])", rounds=1, progress=False)


def test_a_prediction_that_is_not_a_number_names_no_class() -> None:
    model = table_run().client(0)
    broken = {key: torch.full_like(value, torch.nan) for key, value in model.state["model"].items()}
    with pytest.raises(BadInput, match="prediction of row 0 is not a number"):
        PersonalModel(model.program, {"model": broken}, model.card).answers(np.zeros((2, 4)))


def test_threads_do_not_get_each_others_answers() -> None:
    """The models of a run share one network, whose weights are set before it runs."""
    result = table_run()
    models = [result.client(0), result.client(1)]
    expected = [model.predict(np.ones((1, 4))) for model in models]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda i: models[i % 2].predict(np.ones((1, 4))), range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(answer, expected[i % 2]) for i, answer in enumerate(answers))


def test_a_network_that_was_an_object_is_not_saved_for_nobody_to_build(tmp_path: Path) -> None:
    sites = [(np.zeros((12, 4)), np.arange(12) % 2)] * 2
    net = fedloom.Net((4,), body=torch.nn.Linear(4, 3), head=torch.nn.Linear(3, 2))
    model = run("local", FederatedData.from_clients(sites), model=net, rounds=1, progress=False)
    with pytest.raises(BadInput, match=r"was a Python object .* export it with --format torch"):
        model.client(0).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
