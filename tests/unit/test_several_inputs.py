"""Networks with several inputs, and rows of unlike length: from arrays to a trained network."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.fields import Field
from fedloom.core.flat_rows import arguments, made_up_rows, without_padding
from fedloom.core.rng import generator
from fedloom.data import FederatedData, Source, federate, load
from fedloom.errors import BadInput, UnknownName
from fedloom.models import build_model

RNG = np.random.default_rng(0)
Y = np.arange(48) % 3
IMAGES = RNG.integers(0, 256, (48, 1, 6, 6), dtype=np.uint8)
TABLE = RNG.normal(3.0, 2.0, (48, 4)) + Y[:, None]
SERIES = [RNG.normal(size=(int(n), 2)) for n in RNG.integers(3, 9, 48)]
NOTES = [RNG.integers(0, 30, int(n)) for n in RNG.integers(1, 8, 48)]
needs_data = pytest.mark.skipif(not os.environ.get("FEDLOOM_DATA"), reason="needs FEDLOOM_DATA")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


class ImageAndTable(nn.Module):
    """Takes both inputs by name."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8))
        self.table = nn.Linear(4, 8)
        self.fc = nn.Linear(16, classes)

    def forward(self, table: Tensor, image: Tensor) -> Any:
        return self.fc(torch.cat([self.image(image), self.table(table)], 1).relu())


class LastState(nn.Module):
    """A recurrent network that stops where a row ends."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 6, batch_first=True)
        self.fc = nn.Linear(6, classes)

    def forward(self, rows: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths.cpu(), True, False)
        return self.fc(self.gru(packed)[1][0])


def two_inputs(clients: int = 3) -> FederatedData:
    return federate(Source.from_arrays({"image": IMAGES, "table": TABLE}, Y), "iid", clients)


def refused(x: Any, y: Any = Y, **options: Any) -> str:
    with pytest.raises((BadInput, UnknownName)) as caught:
        Source.from_arrays(x, y, **options)
    return str(caught.value)


# ---------------------------------------------------------------------- rows


def test_a_row_is_flat_and_divides_again() -> None:
    x = {"image": IMAGES, "table": TABLE, "notes": NOTES, "series": SERIES}
    source = Source.from_arrays(x, Y)
    assert [str(field) for field in source.fields] == [
        "image: image [1, 6, 6]",
        "table: table [4]",
        "notes: text [7], up to 7 positions",
        "series: signal [8, 2], up to 8 positions",
    ]
    assert source.shape == (36 + 4 + 7 + 1 + 16 + 1,)
    by_position, by_name = arguments(source.fields, torch.from_numpy(source.x))
    assert not by_position
    assert (by_name["image"].numpy() == IMAGES).all()
    for i, (notes, series) in enumerate(zip(NOTES, SERIES, strict=True)):
        assert by_name["notes"][i, : len(notes)].tolist() == notes.tolist()
        assert by_name["notes_lengths"][i] == len(notes)
        assert np.allclose(by_name["series"][i, : len(series)], series)
        assert not by_name["series"][i, len(series) :].any()


def test_rows_of_unlike_length_keep_their_layout_and_are_cut() -> None:
    first, last = Source.from_arrays(SERIES, Y), Source.from_arrays([s.T for s in SERIES], Y)
    assert (first.fields[0].shape, first.fields[0].time) == ((8, 2), 0)
    assert (last.fields[0].shape, last.fields[0].time) == ((2, 8), 1)
    cut = Source.from_arrays(SERIES, Y, longest=4)
    assert (cut.fields[0].shape, cut.x[:, -1].max()) == ((4, 2), 4)
    filled = np.zeros((48, 8, 2))
    for row, series in zip(filled, SERIES, strict=True):
        row[: len(series)] = series
    lengths = [len(series) for series in SERIES]
    filled += np.where(np.arange(8)[:, None] >= np.array(lengths)[:, None, None], 99.0, 0.0)
    ready = Source.from_arrays({"x": filled, "x_lengths": lengths}, Y)
    assert (ready.x == first.x).all()  # what stood behind a row's end is gone


def test_a_tuple_is_by_position_and_a_list_is_rows() -> None:
    pair = Source.from_arrays((IMAGES, TABLE), Y)
    assert [field.name for field in pair.fields] == ["0", "1"]
    assert Source.from_arrays(tuple(TABLE), Y).kind == "table"
    assert Source.from_arrays(tuple(SERIES), Y).fields == Source.from_arrays(SERIES, Y).fields
    whole = Source.from_arrays(NOTES, Y, kind="signal")
    assert (whole.fields[0].kind, whole.normalize) == ("signal", "channel")
    assert Source.from_arrays(NOTES, Y).normalize == "none"


def test_clients_bring_several_inputs() -> None:
    sites = {
        "a": ({"image": IMAGES[:20], "notes": NOTES[:20]}, Y[:20]),
        "b": ({"image": IMAGES[20:], "notes": NOTES[20:]}, Y[20:]),
    }
    data = FederatedData.from_clients(sites)
    whole = Source.from_arrays({"image": IMAGES, "notes": NOTES}, Y)
    assert data.fields == whole.fields
    assert (data.source.x == whole.x).all()
    again = pickle.loads(pickle.dumps(data.shared()))
    assert again.fields == data.fields
    assert again.source.fingerprint == data.source.fingerprint
    assert Source.open(again.source.path).fields == data.fields
    with pytest.raises(BadInput, match="client b has 20 rows of input 'notes' and 28 labels"):
        FederatedData.from_clients(
            {**sites, "b": ({"image": IMAGES[20:], "notes": NOTES[:20]}, Y[20:])}
        )
    with pytest.raises(BadInput, match="unlike inputs; all need image, notes"):
        FederatedData.from_clients({**sites, "b": ({"image": IMAGES[20:]}, Y[20:])})


def test_what_cannot_be_an_input_is_named() -> None:
    assert "input '2d' cannot be an argument" in refused({"2d": IMAGES, "table": TABLE})
    assert "unlike numbers of rows (image 48, table 40)" in refused(
        {"image": IMAGES, "table": TABLE[:40]}
    )
    assert "x has 48 rows but y has 40" in refused({"image": IMAGES, "table": TABLE}, Y[:40])
    assert "row 1 is empty" in refused([[1.0], []], [0, 1])
    assert "unlike length along both axes" in refused([np.ones((2, 3)), np.ones((4, 5))], [0, 1])
    assert "token ids are whole numbers from 0" in refused([[1, -2], [3]], [0, 1])
    assert "lengths are whole numbers from 1 to 4" in refused(
        {"x": TABLE, "x_lengths": np.full(48, 5)}
    )
    assert "NaN or infinite" in refused({"image": IMAGES, "table": TABLE * np.nan})
    fields = two_inputs().fields
    table = "data 'arrays': input 'table' is (table: table [3]), not (table: table [4])"
    assert table in refused({"image": IMAGES, "table": TABLE[:, :3]}, fields=fields)
    assert "lacks the input 'table'" in refused({"image": IMAGES}, fields=fields)
    assert "unknown input of data 'arrays':" in refused(
        {"image": IMAGES, "tabel": TABLE}, fields=fields
    )


def test_files_with_several_inputs() -> None:
    lengths = [len(series) for series in SERIES]
    rows = Source.from_arrays(SERIES, Y).x[:, :-1].reshape(48, 8, 2)
    np.savez("own.npz", image=IMAGES, series=rows, series_lengths=lengths, y=Y, user=Y)
    source = load("own.npz")
    assert [field.name for field in source.fields] == ["image", "series"]
    assert source.user is not None
    assert load("own.npz", inputs="image").kind == "image"
    assert load("own.npz", inputs="series").fields == source.fields[1:]
    frame = pd.DataFrame(
        {"age": TABLE[:, 0], "dose": TABLE[:, 1], "codes": NOTES, "pulse": SERIES, "label": Y}
    )
    frame["pulse"] = [series.tolist() for series in SERIES]
    frame.to_parquet("own.parquet")
    table = load("own.parquet", longest={"codes": 5})
    assert [str(field) for field in table.fields] == [
        "table: table [2]",
        "codes: text [5], up to 5 positions",
        "pulse: signal [8, 2], up to 8 positions",
    ]
    assert (load(frame, longest={"codes": 5}).x == table.x).all()


# ---------------------------------------------------------------------- normalisation


def test_what_is_filled_up_is_not_measured() -> None:
    """Training rows 1, 3 | 5: mean 3, variance (4 + 0 + 4) / 3; the table's 10, 20: 15 and 5. The
    third row is tested only. Behind the end of a row stands zero, not (0 - 3) / deviation."""
    x = {"series": [[1.0, 3.0], [5.0], [100.0, 100.0, 100.0]], "table": [10.0, 20.0, 1000.0]}
    source = Source.from_arrays(x, [0, 1, 0])
    rows = [fl.data.partition.ClientRows(*map(np.array, ([0, 1], np.array([], int), [2])))]
    data = FederatedData(source, fl.data.Partition(rows))
    deviation = np.sqrt(8 / 3)
    assert data.scaling(0).mean == pytest.approx((3, 15))
    assert data.scaling(0).std == pytest.approx((deviation, 5))
    train = data.client(0).train.x(torch.arange(2))
    expected = [[-2 / deviation, 0, 0, 2, -1], [2 / deviation, 0, 0, 1, 1]]
    assert np.allclose(train.numpy(), expected, atol=1e-6)
    as_it_is = FederatedData(source.normalized("none"), data.partition)
    assert (as_it_is.client(0).train.x(torch.arange(2)).numpy() == source.x[:2]).all()


def test_every_input_is_normalised_as_it_would_be_alone() -> None:
    data = two_inputs()
    images = FederatedData(Source.from_arrays(IMAGES, Y).normalized("channel"), data.partition)
    table = FederatedData(Source.from_arrays(TABLE, Y), data.partition)
    both = data.client(1).train.x(torch.arange(8))
    assert torch.equal(both[:, :36], images.client(1).train.x(torch.arange(8)).flatten(1))
    assert torch.equal(both[:, 36:], table.client(1).train.x(torch.arange(8)))
    assert data.scaling().mean == (*images.scaling().mean, *table.scaling().mean)


def test_token_ids_and_lengths_stay_whole() -> None:
    ids = [np.array([2**24 - 1, 7]), np.array([0])]
    for normalize in ("channel", "half", "site"):
        source = Source.from_arrays({"ids": ids, "t": [[1.0], [2.0]]}, [0, 1], normalize=normalize)
        row = federate(source, "iid", 1, split="merged(train=1.0)").client(0).train
        x = row.x(torch.arange(2))
        assert sorted(x[:, 0].tolist()) == [0, 2**24 - 1]
        assert sorted(x[:, 2].tolist()) == [1, 2]
    assert f"from 0 to {2**24 - 1}" in refused([[2**24], [1, 2]], [0, 1])


# ---------------------------------------------------------------------- networks


def test_a_head_is_found_and_the_outputs_stay() -> None:
    data = two_inputs()
    module = ImageAndTable(3)
    net = fl.split(module, head="fc", shape=data.shape, fields=data.fields)
    assert net.shape_of("body") == (16,)
    x = data.client(0).train.x(torch.arange(5))
    image, table = x[:, :36].reshape(5, 1, 6, 6), x[:, 36:]
    assert torch.equal(net(net.tree(), x)["head"], module.eval()(table, image))
    by_itself = build_model(ImageAndTable, data.shape, 3, seed=0, fields=data.fields)
    assert by_itself.keys == net.keys


def test_a_prediction_does_not_depend_on_how_far_a_row_is_filled_up() -> None:
    """The same series, filled up to 8 and to 20 positions, under the same weights."""
    short = Source.from_arrays(SERIES, Y)
    long = Source.from_arrays(SERIES, Y, longest=20)
    nets = [build_model("fusion", s.shape, 3, seed=0, fields=s.fields) for s in (short, long)]
    weights = nets[0].tree()
    first, second = (
        net(weights, torch.from_numpy(source.x))["head"]
        for net, source in zip(nets, (short, long), strict=True)
    )
    assert torch.allclose(first, second, atol=1e-6)


def test_what_a_network_cannot_read_is_named() -> None:
    images, series = two_inputs(), Source.from_arrays(SERIES, Y)

    def built(model: Any, data: Any) -> str:
        with pytest.raises(BadInput) as caught:
            build_model(model, data.shape, 3, seed=0, fields=data.fields)
        return str(caught.value)

    called = "its forward is called with: image [n, 1, 6, 6], table [n, 4]"
    assert called in built(LastState, images)
    assert "is called with: [n, 8, 2], [n]" in built(ImageAndTable, series)
    assert "reads a row as plain numbers, and the data has rows of unlike" in built("mlp", series)
    assert build_model("mlp", images.shape, 3, seed=0, fields=images.fields).fields == ()
    other = build_model("fusion", series.shape, 3, seed=0, fields=series.fields)
    assert "made for inputs of shape" in built(other, images)
    with pytest.raises(BadInput, match="fusion takes several inputs"):
        build_model("fusion", (4,), 3, seed=0)
    with pytest.raises(BadInput, match="cannot be cut into early"):
        fl.split(ImageAndTable(3), "fc", shape=images.shape, fields=images.fields, early="table")


def test_made_up_rows_are_as_rows_may_be() -> None:
    fields = (Field("t", "text", (5,), 0, vocabulary=9), Field("s", "signal", (2, 4), 1))
    rows = made_up_rows(fields, 50, generator("test"))
    values = arguments(fields, rows)[1]
    assert values["t"].min() >= 0
    assert values["t"].max() < 9
    assert set(values["s_lengths"].tolist()) == {1, 2, 3, 4}
    assert torch.equal(without_padding(fields, rows), rows)


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize(
    "method", ["fedper", "fedavg + dbe", "fedpac", "fedcr", "dualfed", "fedavg + mixup + fedbr"]
)
def test_methods_train_on_several_inputs(method: str) -> None:
    result = fl.run(method, two_inputs(), model=ImageAndTable, rounds=2, batch_size=8)
    assert len(result.records) >= 2
    again = fl.run(method, two_inputs(), model=ImageAndTable, rounds=2, batch_size=8)
    assert again.value == result.value


def test_methods_that_average_inputs_refuse_what_is_no_number() -> None:
    for term, why in (
        ("mixup", "averages"),
        ("fedmix", "averages"),
        ("vhl", "makes"),
        ("fedbr", ""),
    ):
        for rows, of in ((NOTES, "token ids"), (SERIES, "rows of unlike length")):
            with pytest.raises(BadInput, match=f"{term} {why}.* reads {of}"):
                fl.run(f"fedavg + {term}", (rows, Y), partition="iid", clients=2, rounds=1)
    with pytest.raises(BadInput, match="only images can be augmented"):
        fl.federate(two_inputs().source, "iid", 2, augment="flip")


def test_a_recurrent_network_sees_where_a_row_ends() -> None:
    """The class is the sign of the last position; where that is, only the lengths tell."""
    rows = [RNG.normal(size=(int(n), 2)) for n in RNG.integers(1, 6, 300)]
    signs = [int(row[-1, 0] > 0) for row in rows]
    data = FederatedData.from_clients([(rows[:150], signs[:150]), (rows[150:], signs[150:])])
    result = fl.run("fedavg", data, model=LastState, rounds=10, lr=0.5, batch_size=16)
    assert result.value > 0.85


@needs_data
def test_windows_of_unlike_length() -> None:
    """Windows of `hapt`, cut to a random length; body and head as any network's."""
    har = load("har")
    few = np.flatnonzero(np.asarray(har.user) < 4)[::6]
    rng = np.random.default_rng(1)
    rows = [np.asarray(har.x[i])[:, : rng.integers(40, 128)] for i in few]
    source = Source.from_arrays(rows, har.y[few], user=np.asarray(har.user)[few])
    assert source.fields[0].time == 1
    result = fl.run(
        "fedper", source, partition="by_user", rounds=4, epochs=3, lr=0.1, batch_size=10
    )
    assert result.value > 0.5


@needs_data
def test_texts_of_unlike_length() -> None:
    """The first 400 texts of `ag_news` as lists of token ids, without what fills them up."""
    news = load("ag_news(vocabulary=2000, positions=60)")
    rows = [row[row > 0] for row in np.asarray(news.x[:400])]
    source = Source.from_arrays(rows, news.y[:400], longest=40)
    assert source.fields[0].longest == 40
    result = fl.run("fedrep", source, partition="iid", clients=4, rounds=10, lr=1.0)
    assert result.value > 0.3
