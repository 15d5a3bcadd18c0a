"""`fedloom export`, `predict` and `serve` on what a run or a site left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedloom
from helpers import fedloom as fedloom_command


def command(*words: object) -> str:
    """What a command prints: its output, or its error."""
    done = fedloom_command(*map(str, words))
    return " ".join(done.err.split()) if done.code else done.out


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    fedloom.run("fedper", rounds=1, clients=3, partition="iid", out=str(folder), progress=False)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CSV file with names for columns and sites."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["age", "dose"])
    frame["client"] = ["leeds", "york"] * 30
    frame["label"] = np.where(frame["age"] > 0, "ill", "well")
    frame.to_csv(folder / "t.csv", index=False)
    settings: Any = {"partition": "by_user", "rounds": 1, "out": str(folder / "run")}
    fedloom.run("fedper", str(folder / "t.csv"), progress=False, **settings)
    return folder


def rows_in(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_model_is_exported_with_its_card(digits: Path, tmp_path: Path) -> None:
    done = command("export", digits, "--client", 2, "--out", tmp_path / "m", "--json")
    assert json.loads(done)["files"] == ["CARD.md", "card.json", "model.py", "model.safetensors"]
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert set(card["files"]) == {"model.py", "model.safetensors"}
    assert "not empty" in command("export", digits, "--client", 2, "--out", tmp_path / "m")


def test_the_source_of_an_exported_model_runs_without_fedloom(digits: Path, tmp_path: Path) -> None:
    command("export", digits, "--client", 1, "--format", "torch", "--out", tmp_path / "m")
    x = np.random.default_rng(0).integers(0, 241, (4, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    program = (
        "import sys, numpy, torch; sys.modules['fedloom'] = None\n"
        "sys.path.insert(0, 'm'); from model import load\n"
        "numpy.save('y.npy', load()(torch.from_numpy(numpy.load('x.npy'))).numpy())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=600)
    expected = fedloom.open(digits).client(1).predict(x).numpy()
    assert np.abs(np.load(tmp_path / "y.npy") - expected).max() < 1e-5


def test_a_model_of_the_library_is_a_folder_like_a_sites(digits: Path, tmp_path: Path) -> None:
    """It can be predicted with and exported once more, and it knows whose it is."""
    command("export", digits, "--client", 0, "--format", "safetensors", "--out", tmp_path / "m")
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    from_model = command("predict", tmp_path / "m", tmp_path / "x.npy")
    assert from_model == command("predict", digits, tmp_path / "x.npy", "--client", 0)
    assert "saved" in command("export", tmp_path / "m", "--out", tmp_path / "again")
    other = command("predict", tmp_path / "m", tmp_path / "x.npy", "--client", 1)
    assert "holds the model of client 0, not of 1" in other
    assert "needs no fedloom" in command("predict", tmp_path / "again", tmp_path / "x.npy")


def test_images_are_predicted_by_file(digits: Path, tmp_path: Path) -> None:
    """Of other sizes and in colour, too: they are made what the model reads."""
    x = np.random.default_rng(1).integers(0, 241, (8, 8), dtype=np.uint8)
    (tmp_path / "images" / "more").mkdir(parents=True)
    Image.fromarray(x).save(tmp_path / "images" / "a.png")
    Image.new("RGB", (20, 30), "white").save(tmp_path / "images" / "more" / "b.jpg")
    out = tmp_path / "predictions.csv"
    done = command("predict", digits, tmp_path / "images", "--client", 1, "--out", out)
    assert done == f"saved 2 predictions in {out}\n"
    first, second = rows_in(out)
    assert (first["file"], second["file"]) == ("a.png", "more/b.jpg")
    expected = fedloom.open(digits).client(1).predict(x[None, None])[0]
    assert first["prediction"] == str(int(expected.argmax()))
    assert float(first["p(3)"]) == pytest.approx(float(expected[3]), rel=1e-5)
    alone = tmp_path / "alone.csv"
    command("predict", digits, tmp_path / "images" / "a.png", "--client", 1, "--out", alone)
    (one,) = rows_in(alone)
    assert (one["file"], one["prediction"]) == ("a.png", first["prediction"])
    assert float(one["p(3)"]) == pytest.approx(float(first["p(3)"]), rel=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_are_read_by_their_columns(table: Path, tmp_path: Path, suffix: str) -> None:
    """In any order, with others beside them, without labels."""
    frame = pd.DataFrame({"dose": [0.0, 1.0], "name": ["x", "y"], "age": [2.0, -2.0]})
    file = tmp_path / f"new.{suffix}"
    frame.to_csv(file, index=False) if suffix == "csv" else frame.to_parquet(file)
    command("predict", table / "run", file, "--client", "york", "--out", tmp_path / "p.csv")
    model = fedloom.open(table / "run").client("york")
    assert model.card.columns == ["age", "dose"]
    expected = model.predict([[2.0, 0.0], [-2.0, 1.0]]).tolist()
    for row, answer in zip(rows_in(tmp_path / "p.csv"), expected, strict=True):
        assert [float(row["p(ill)"]), float(row["p(well)"])] == pytest.approx(answer, rel=1e-5)


def test_what_cannot_be_read_is_one_sentence(digits: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"no array")
    pd.DataFrame({"age": [1.0]}).to_csv(tmp_path / "few.csv", index=False)
    pd.DataFrame({"age": ["old"], "dose": [1.0]}).to_csv(tmp_path / "words.csv", index=False)
    np.save(tmp_path / "one.npy", np.float32(1))
    (tmp_path / "head.npy").write_bytes(b"\x93NUMPY\x01\x00\x06\x00" + b"(" * 6)
    (tmp_path / "empty").mkdir()
    run = table / "run"
    for words, sentence in (
        ((digits, tmp_path / "x.npy", "--client", 0), "cannot read"),
        ((digits, tmp_path / "none", "--client", 0), "there is no file or folder"),
        ((digits, tmp_path / "few.csv", "--client", 0), "takes image rows and no table"),
        ((digits, tmp_path / "x.npy"), "whose model? give --client"),
        ((run, tmp_path / "few.csv", "--client", 0), "lacks the column 'dose'"),
        ((run, tmp_path / "words.csv", "--client", 0), "column 'age' of"),
        ((run, tmp_path / "one.npy", "--client", 0), "holds a single number"),
        ((digits, tmp_path / "head.npy", "--client", 0), "write it with numpy.save"),
        ((digits, tmp_path / "empty", "--client", 0), "there is no image in"),
    ):
        assert sentence in command("predict", *words)


def test_a_run_is_served(digits: Path) -> None:
    """As a process of its own, on a free port, until it is asked to end."""
    words = [sys.executable, "-m", "fedloom.cli", "serve", str(digits), "--port", "0"]
    environment = {**os.environ, "COLUMNS": "300"}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split(" at ")[1].split()[0]
        rows = np.zeros((1, 1, 8, 8), int).tolist()
        url, expected = f"{address}/clients/2/predict", fedloom.open(digits).client(2).predict(rows)
        answer = httpx.post(url, json={"rows": rows}, timeout=600).json()["predictions"][0]
        assert answer["p(0)"] == pytest.approx(float(expected[0, 0]))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(600)


def test_data_of_a_relative_path_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder the run's models are the same, by the columns' names too; in a run that
    was moved with its data, by the path as it was given."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["age", "dose"])
    frame["label"] = (frame["age"] > 0).astype(int)
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    frame.to_csv(tmp_path / "here" / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path / "here")
    settings: Any = {"clients": 2, "partition": "iid", "rounds": 1, "progress": False}
    fedloom.run("fedavg", "rows.csv", model="mlp(hidden=[4])", out="run", **settings)
    words = ("predict", tmp_path / "here" / "run", tmp_path / "here" / "rows.csv", "--client", "1")
    here = fedloom_command(*words)
    assert json.loads((tmp_path / "here" / "run" / "config.json").read_text())["data"] == "rows.csv"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (here.code, fedloom_command(*words).out) == (0, here.out)
    (tmp_path / "here").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert fedloom_command("predict", "run", "rows.csv", "--client", "1").out == here.out
