"""A run on texts ends with models that take texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom
from exported import CLOSE, READERS
from fedloom import BadInput, PersonalModel, Source, export
from fedloom.data.cache import META
from fedloom.runs.result import Result
from fedloom.serving.app import Models
from helpers import fedloom as fedloom_command

TEXTS = ["Good, good food!", "bad food: never again", "a good day", "such a bad, bad day"] * 6
LABELS = ["like", "hate"] * 12
NEW = ["Good day!", "unheard-of words only", "never a bad day"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of texts."""
    folder = tmp_path_factory.mktemp("texts")
    frame = pd.DataFrame({"review": TEXTS, "opinion": LABELS})
    frame.to_csv(folder / "reviews.csv", index=False)
    fedloom.run(
        "fedper",
        str(folder / "reviews.csv"),
        label="opinion",
        partition="iid",
        clients=2,
        rounds=1,
        progress=False,
        out=str(folder / "run"),
    )
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return fedloom.open(folder / "run")


def test_texts_go_in_as_in_training(result: Result, tmp_path: Path) -> None:
    """The words by frequency: `bad` and `good` nine times, `a`, `,`, `day` and `food` ... The
    run's own texts get the ids that it trained on, also in a saved model."""
    model, source = result.client(1), result.experiment.data.source  # type: ignore[union-attr]
    assert set(source.words[:2]) == {"bad", "good"}
    assert torch.equal(model.predict(TEXTS), model.predict(np.asarray(source.x)))
    model.save(tmp_path)
    loaded = PersonalModel.load(tmp_path)
    assert loaded.words == source.words
    assert torch.equal(loaded.predict(NEW), model.predict(NEW))
    assert "those of all clients' texts" in (tmp_path / "CARD.md").read_text()


def test_a_changed_vocabulary_is_refused(result: Result, tmp_path: Path) -> None:
    result.client(1).save(tmp_path)
    words = tmp_path / "vocabulary.txt"
    words.write_text(words.read_text().replace("good", "evil"))
    with pytest.raises(BadInput, match=r"vocabulary.txt is not the file of the model's card"):
        PersonalModel.load(tmp_path)


def test_an_exported_model_brings_the_words_for_its_ids(result: Result, tmp_path: Path) -> None:
    model = result.client(1)
    folder = export(model, "torch", tmp_path / "model")
    words = (folder / "vocabulary.txt").read_text().splitlines()
    ids = torch.zeros(1, model.card.shape[0], dtype=torch.int64)
    ids[0, :3] = torch.tensor([words.index(word) + 2 for word in ("good", "day", "!")])
    assert (READERS["torch"](folder, ids) - model.predict(["Good day!"])).abs().max() < CLOSE


@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_a_file_of_texts_is_predicted(
    folder: Path, result: Result, suffix: str, tmp_path: Path
) -> None:
    """A column by the name that it had in training, or lines."""
    pd.DataFrame({"note": ["x y"] * 3, "review": NEW}).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "new.txt").write_text("\n".join(NEW))
    done = fedloom_command("predict", folder / "run", tmp_path / f"new.{suffix}", "--client", "1")
    expected = result.client(1).answers(NEW).to_csv(["0", "1", "2"])
    assert done.out == expected


def test_texts_over_http(result: Result) -> None:
    answer = Models(["1"], result.client).answer("1", NEW)
    probabilities = [row["probability"] for row in answer["predictions"]]
    assert probabilities == result.client(1).predict(NEW).max(1).values.tolist()


def test_a_newcomer_brings_texts(result: Result) -> None:
    """Numbered by the run's words: its own rarer ones are unknown, whatever it counts most."""
    mine = pd.DataFrame({"review": ["zebra zebra good", "zebra bad"] * 8, "opinion": LABELS[:16]})
    joined = result.adapt(mine, epochs=1)
    words = result.client(0).words
    ids = [1, 1, words.index("good") + 2]
    by_ids = np.zeros((1, joined.model.card.shape[0]), np.int64)
    by_ids[0, :3] = ids
    assert torch.equal(joined.model.predict(["zebra zebra good"]), joined.model.predict(by_ids))
    assert joined.model.card.vocabulary == len(words) + 2
    with pytest.raises(BadInput, match="have other token ids than those of the run; give the"):
        result.adapt(fedloom.load(mine, label="opinion"))


def test_a_model_of_ids_says_that_it_knows_no_words() -> None:
    ids = Source.from_arrays(np.arange(40).reshape(8, 5) % 7, np.arange(8) % 2, kind="text")
    run = fedloom.run("fedavg", ids, clients=2, partition="iid", rounds=1, progress=False)
    with pytest.raises(BadInput, match="takes token ids and no texts"):
        run.client(0).predict(["good"])
    with pytest.raises(BadInput, match="a list of texts, also where it is a single one"):
        run.client(0).predict("good")


def test_a_cache_of_before_words_were_kept_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv(tmp_path / "texts.csv", index=False)
    first = fedloom.load(tmp_path / "texts.csv")
    assert first.path is not None
    meta = json.loads((first.path / META).read_text())
    del meta["words"]
    (first.path / META).write_text(json.dumps(meta))
    again = fedloom.load(tmp_path / "texts.csv")
    assert (again.words, again.fingerprint) == (first.words, first.fingerprint)
