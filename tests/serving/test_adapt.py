"""Who comes after a run: what data it may bring, what it is told, and `fedloom adapt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedloom
from fedloom import BadInput, FederatedData, Source, UnknownName
from fedloom.runs.result import Result
from fedloom.serving.row_files import read_rows
from helpers import fedloom as fedloom_command

SMALL: dict[str, Any] = {"rounds": 1, "model": "mlp(hidden=[4])", "progress": False}


def command(*words: object) -> str:
    """What a command prints: its output, or its error."""
    done = fedloom_command(*map(str, words))
    return " ".join(done.err.split()) if done.code else done.out


def patients(rows: int, seed: int = 0, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(shift, 1, size=(rows, 2)), columns=["age", "dose"])
    frame["label"] = np.where(frame["age"] > shift, "ill", "well")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of two sites, and beside it rows of a third."""
    folder = tmp_path_factory.mktemp("table")
    frame = patients(80)
    frame["client"] = ["leeds", "york"] * 40
    frame.to_csv(folder / "all.csv", index=False)
    settings: Any = {**SMALL, "partition": "by_user", "out": str(folder / "run")}
    fedloom.run("fedper", str(folder / "all.csv"), **settings)
    patients(40, seed=1, shift=5).to_csv(folder / "hull.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return fedloom.open(folder / "run")


def test_a_newcomer_s_table_is_read_by_the_run_s_columns(folder: Path, result: Result) -> None:
    """In any order, with others beside them, of some classes only."""
    frame = pd.read_csv(folder / "hull.csv")
    frame = frame[frame["label"] == "well"].assign(name="x")[["name", "label", "dose", "age"]]
    frame.to_csv(folder / "other.csv", index=False)
    joined = result.adapt(folder / "other.csv", epochs=1)
    plain = result.adapt((frame[["age", "dose"]].to_numpy(), frame["label"].to_numpy()), epochs=1)
    card = joined.model.card
    assert (card.name, card.client, card.columns) == ("other", 2, ["age", "dose"])
    assert card.class_names == ["ill", "well"]
    assert joined.adapted == plain.adapted == result.adapt(frame, epochs=1).adapted
    assert repr(plain).startswith("Adapted(newcomer: accuracy ")
    assert "a federation of 2 clients went before" in card.in_words()


@pytest.mark.parametrize(("normalize", "own"), [("channel", False), ("site", True)])
def test_rows_are_scaled_as_the_run_scales_those_of_a_newcomer(
    folder: Path, normalize: Any, own: bool
) -> None:
    """By the run's training rows, whose mean is near 0, or by its own, with a mean near 5."""
    data = FederatedData.from_clients(
        {name: (patients(40, i)[["age", "dose"]], patients(40, i)["label"]) for i, name in NAMES},
        normalize=normalize,
    )
    result = fedloom.run("fedavg", data, **SMALL)
    card = result.adapt(folder / "hull.csv", epochs=1).model.card
    assert (card.mean[0] > 4) is own
    assert own or card.mean == list(data.scaling().mean)


NAMES = list(enumerate(("leeds", "york")))


def test_what_does_not_fit_is_refused_in_one_sentence(result: Result, tmp_path: Path) -> None:
    frame = patients(20)
    frame.drop(columns="dose").to_csv(tmp_path / "lacking.csv", index=False)
    frame.replace("ill", "dead").to_csv(tmp_path / "unknown.csv", index=False)
    with pytest.raises(BadInput, match=r"has no inputs column 'dose'; it has: age, label"):
        result.adapt(tmp_path / "lacking.csv")
    with pytest.raises(UnknownName, match="class in 'unknown' that the run does not have: 'dead'"):
        result.adapt(tmp_path / "unknown.csv")
    arrays = frame[["age", "dose"]].to_numpy(), frame["label"].to_numpy()
    with pytest.raises(BadInput, match=r"shape 3, and in the run 2; name the columns by inputs"):
        result.adapt((np.zeros((4, 3)), ["ill", "well"] * 2))
    with pytest.raises(BadInput, match="kind image, and in the run table"):
        result.adapt((np.zeros((4, 1, 8, 8), np.uint8), ["ill", "well"] * 2))
    with pytest.raises(BadInput, match="the data has 2 clients, and one joins"):
        result.adapt(FederatedData.from_clients([arrays, arrays]))
    with pytest.raises(BadInput, match="divided already; leave out label"):
        result.adapt(FederatedData.from_clients([arrays]), split="merged(train=0.5)")
    with pytest.raises(BadInput, match="label = 'label' names a column of a table"):
        result.adapt(Source.from_arrays(*arrays), label="label")
    for settings in ({"epochs": 0}, {"lr": 0.0}):
        with pytest.raises(BadInput, match="1 or more epochs at a learning rate above 0"):
            result.adapt(arrays, **settings)


def test_images_of_another_size_type_or_language_are_refused() -> None:
    run = fedloom.run("fedavg", clients=2, partition="iid", **SMALL)
    y = np.arange(8) % 2
    with pytest.raises(BadInput, match=r"shape 1 x 9 x 9, and in the run 1 x 8 x 8; set image_siz"):
        run.adapt((np.zeros((8, 1, 9, 9), np.uint8), y))
    with pytest.raises(BadInput, match="are float32, and those of the run uint8"):
        run.adapt((np.zeros((8, 1, 8, 8)), y))
    ids = np.arange(40).reshape(8, 5) % 7
    texts = Source.from_arrays(ids, y, kind="text")
    settings: Any = {**SMALL, "model": "auto", "clients": 2, "partition": "iid"}
    read = fedloom.run("fedavg", texts, **settings)
    assert (
        read.adapt(Source.from_arrays(ids % 5, y, kind="text"), epochs=1).model.card.vocabulary == 7
    )
    with pytest.raises(BadInput, match="token ids up to 8, and the run knows 7"):
        read.adapt(Source.from_arrays(ids + 2, y, kind="text"))
    with pytest.raises(BadInput, match="the words behind the token ids of this run are not known"):
        read.adapt(pd.DataFrame({"text": ["a b", "c d"] * 4, "label": y}))


def pictures(folder: Path, per_class: int, side: int, seed: int) -> Path:
    """A folder of images for each class: dark ones and light ones, with noise."""
    rng = np.random.default_rng(seed)
    for name, grey in (("dark", 60), ("light", 200)):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = rng.normal(grey, 15, (side, side, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_a_newcomer_brings_a_folder_of_images(tmp_path: Path) -> None:
    """They are resized as the run's were, and its model predicts such files: those of its own test
    rows as they were scored."""
    members = pictures(tmp_path / "members", 20, side=12, seed=0)
    settings: Any = {**SMALL, "rounds": 5, "clients": 2, "partition": "iid", "image_size": 8}
    run = fedloom.run("fedper", str(members), **settings)
    new = pictures(tmp_path / "new", 12, side=16, seed=1)
    joined = run.adapt(new, epochs=5)
    card = joined.model.card
    assert (card.name, card.shape, card.class_names) == ("new", [3, 8, 8], ["dark", "light"])
    assert (card.training_rows, card.rows_scored) == (18, {"test": 6})
    assert joined.adapted["test"]["accuracy"] == 1.0
    rows = read_rows(new, card)
    answers = [answer["prediction"] for answer in joined.model.answers(rows.x).rows()]
    assert answers == [Path(name).parent.name for name in rows.names]


def test_numbers_are_predicted_too() -> None:
    """A gain is above 0 where the error is smaller."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = x @ [3.0, -2.0, 1.0] + 10
    settings: Any = {**SMALL, "rounds": 5, "clients": 3, "partition": "iid"}
    run = fedloom.run("fedavg", (x[:90], y[:90]), **settings)
    joined = run.adapt((x[90:], y[90:]), epochs=1)
    assert joined.metric == "rmse"
    (gain,) = (one for one in joined.gains if one.over == "alone")
    errors = [float(scores["test"]["rmse"] or 0) for scores in (joined.alone, joined.adapted)]
    assert gain.value == pytest.approx(errors[0] - errors[1])
    assert gain.interval[0] <= gain.value <= gain.interval[1]


def test_without_test_rows_nothing_is_compared(folder: Path, result: Result) -> None:
    joined = result.adapt(folder / "hull.csv", epochs=1, split="merged(train=1.0)")
    assert (joined.adapted, joined.gains) == ({}, ())
    assert "no score" in joined.model.card.in_words()


def test_the_rate_and_the_epochs_are_the_newcomer_s(folder: Path, result: Result) -> None:
    states = [
        result.adapt(folder / "hull.csv", **settings).model.card.state_sha256
        for settings in ({"epochs": 10}, {}, {"epochs": 2}, {"epochs": 2, "lr": 0.5})
    ]
    assert states[0] == states[1]
    assert len(set(states)) == 3


def test_frozen_stages_are_run_over_the_newcomer_s_rows() -> None:
    """And not taken from what is remembered of the run's first client."""
    net = fedloom.build_model("mlp(hidden=[4])", (1, 8, 8), 10, seed=0).freeze("body.*")
    settings: Any = {**SMALL, "clients": 2, "partition": "iid", "model": net}
    run = fedloom.run("fedavg", **settings)
    assert run.experiment.program.outputs.stages == ["body"]
    joined = run.adapt("digits", epochs=1)
    test = joined.model.card.metrics["test"]["accuracy"]
    split = fedloom.federate("digits", "iid", 1).partition.clients[0].test
    source = fedloom.load("digits")
    prediction = joined.model.predict(np.asarray(source.x)[split]).argmax(1)
    assert (prediction == torch.from_numpy(np.asarray(source.y)[split])).double().mean() == test


def test_the_command_ends_with_a_table_and_a_model(folder: Path, tmp_path: Path) -> None:
    words = ("adapt", folder / "run", "--data", folder / "hull.csv", "--epochs", 2)
    shown = command(*words, "--out", tmp_path / "model")
    for part in ("hull joins: 30 training rows", "alone, 2 epochs", "10 test rows", "saved the"):
        assert part in shown
    told = json.loads(command(*words, "--json"))
    card = fedloom.PersonalModel.load(tmp_path / "model").card
    assert told["adapted"] == card.metrics
    assert card.joined is not None
    assert (told["alone"], told["epochs"]) == (card.joined.alone, card.joined.epochs)
    assert [gain["over"] for gain in told["gains"]] == ["received", "alone"]
    assert "p(ill)" in command("predict", tmp_path / "model", folder / "hull.csv")
    assert "not empty" in command(*words, "--out", tmp_path / "model")
    of_one = command("adapt", tmp_path / "model", "--data", folder / "hull.csv")
    assert "holds the model of one client, and a newcomer joins all of them" in of_one
