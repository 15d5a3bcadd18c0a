"""A model with several inputs outside its run: predicted by name, saved, exported, served."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.flat_rows import inputs_of
from fedloom.errors import BadInput, UnknownName
from fedloom.runs.result import Result
from fedloom.serving.app import Limits, Models, _rows
from fedloom.serving.model import PersonalModel
from fedloom.serving.row_files import read_rows

RNG = np.random.default_rng(0)
Y = np.arange(30) % 3
X: dict[str, Any] = {
    "image": RNG.integers(0, 256, (30, 1, 6, 6), dtype=np.uint8),
    "table": RNG.normal(5.0, 2.0, (30, 4)),
    "notes": [RNG.integers(0, 20, int(n)) for n in RNG.integers(1, 8, 30)],
    "pulse": [RNG.normal(60, 9, int(n)) for n in RNG.integers(2, 9, 30)],
}
SOME = {key: values[:5] for key, values in X.items()}


@pytest.fixture(scope="module")
def result() -> Result:
    data = fl.federate(fl.Source.from_arrays(X, Y), "iid", 2)
    return fl.run("fedper", data, model="fusion(width=8)", rounds=1, progress=False)


@pytest.fixture(scope="module")
def model(result: Result) -> PersonalModel:
    return result.client(1)


def test_rows_by_name_and_flat_rows_get_the_same_answer(
    model: PersonalModel, result: Result
) -> None:
    """The flat rows are those that the run scored."""
    data: Any = result.experiment.data
    rows = data.partition.clients[1].test
    prediction = model.predict(np.asarray(data.source.x)[rows])
    by_name = {key: [values[i] for i in rows] for key, values in X.items()}
    assert torch.equal(model.predict(by_name), prediction)
    accuracy = (prediction.argmax(1).numpy() == data.source.y[rows]).mean()
    assert accuracy == pytest.approx(model.card.metrics["test"]["accuracy"])
    plain = {key: [np.asarray(row).tolist() for row in values] for key, values in SOME.items()}
    assert torch.equal(model.predict(plain), model.predict(SOME))


def test_rows_that_do_not_fit_are_named(model: PersonalModel) -> None:
    for change, sentence in (
        ({"table": X["table"][:5, :3]}, "input 'table' is (table: table [3]), not"),
        ({"notes": [[1], [2], [3], [4], [20]]}, "token ids go up to 20, and must be below 20"),
        ({"image": SOME["image"] / 3}, "pixels are whole numbers from 0 to 255"),
        ({"table": X["table"][:4]}, "unlike numbers of rows"),
        ({"age": [1, 2, 3, 4, 5]}, "unknown input of data 'rows': 'age'"),
    ):
        with pytest.raises((BadInput, UnknownName)) as caught:
            model.predict({**SOME, **change})
        assert sentence in str(caught.value)
    with pytest.raises(BadInput, match="lacks the input 'pulse'"):
        model.predict({key: values for key, values in SOME.items() if key != "pulse"})
    flat = np.zeros((1, model.card.shape[0]))
    with pytest.raises(BadInput, match="input 'notes': lengths are whole numbers from 1 to 7"):
        model.predict(flat)


def test_a_saved_model_is_the_same(model: PersonalModel, tmp_path: Path) -> None:
    fl.export(model, "safetensors", tmp_path / "model")
    loaded = PersonalModel.load(tmp_path / "model")
    assert loaded.card.fields == model.card.fields
    assert torch.equal(loaded.predict(SOME), model.predict(SOME))
    words = (tmp_path / "model" / "CARD.md").read_text()
    assert "| notes | text [7] of ids below 20, up to 7 positions | 40 to 46, its length" in words


@pytest.mark.parametrize("form", ["torch", "exported-program", "onnx"])
def test_an_exported_model_takes_inputs_by_name(
    form: str, model: PersonalModel, result: Result, tmp_path: Path
) -> None:
    """Each in its own type, with the lengths beside what is of unlike length."""
    data: Any = result.experiment.data
    inputs = inputs_of(data.fields, torch.from_numpy(np.asarray(data.source.x[:5])))
    inputs["image"] = inputs["image"].byte()
    if form == "onnx":
        runtime = pytest.importorskip("onnxruntime")
    folder = fl.export(model, form, tmp_path / "model")
    if form == "onnx":
        session = runtime.InferenceSession(str(folder / "model.onnx"))
        arrays = {name: value.numpy() for name, value in inputs.items()}
        prediction = torch.from_numpy(session.run(None, arrays)[0])
    elif form == "torch":
        spec = importlib.util.spec_from_file_location("exported_inputs", folder / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        prediction = module.load()(**inputs)
    else:
        loaded: Any = torch.export.load(folder / "model.pt2").module()
        prediction = loaded(**inputs)
    assert (prediction - model.predict(SOME)).abs().max() < 1e-5


def test_rows_of_a_file_and_of_a_request(model: PersonalModel, tmp_path: Path) -> None:
    """An `.npz` file has the lengths beside rows that are filled up; a request has lists."""
    filled = np.zeros((5, 7), int)
    for row, notes in zip(filled, SOME["notes"], strict=True):
        row[: len(notes)] = notes
    pulse = np.zeros((5, 8))
    for values, row in zip(pulse, SOME["pulse"], strict=True):
        values[: len(row)] = row
    lengths = {f"{k}_lengths": [len(row) for row in SOME[k]] for k in ("notes", "pulse")}
    dense = {"image": SOME["image"], "table": SOME["table"]}
    np.savez(tmp_path / "rows.npz", notes=filled, pulse=pulse, **dense, **lengths)
    rows = read_rows(tmp_path / "rows.npz", model.card)
    assert torch.equal(model.predict(rows.x), model.predict(SOME))
    assert len(rows.names) == 5
    np.savez(tmp_path / "fewer.npz", **dense)
    with pytest.raises(BadInput, match="has no array 'notes'; the model takes: image, table"):
        read_rows(tmp_path / "fewer.npz", model.card)
    body = b'{"rows": {"image": [], "table": [[1, 2, 3, 4], [5, 6, 7, 8]]}}'
    assert _rows(body, "application/json", Limits())["table"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    with pytest.raises(BadInput, match="2 rows are more than 1"):
        _rows(body, "application/json", Limits(rows=1))
    answer = Models(["one"], lambda name: model).answer("one", SOME)
    assert len(answer["predictions"]) == 5
