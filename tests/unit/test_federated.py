"""The federated data object: what clients get, and how it travels."""

from __future__ import annotations

import io
import os
import pickle
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from rich.console import Console

from fedloom.core.rng import generator
from fedloom.data import FederatedData, Partition, Source, divide, federate, federated, load
from fedloom.data.picture import bubble_svg, cells, table
from fedloom.errors import BadInput, PartitionError


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def images(n=200, c=3, classes=5):
    x = np.random.default_rng(0).integers(0, 256, (n, c, 8, 8), dtype=np.uint8)
    return Source.from_arrays(x, np.arange(n) % classes, normalize="channel")


def test_images_are_normalised_by_channel():
    source = images()
    data = federate(source, "iid", 4)
    rows = divide(source, "iid", 4).clients[1].train
    idx = torch.tensor([3, 0, 3])
    got = data.client(1).train.x(idx)
    raw = source.x.astype(np.float64) / 255
    train = raw[np.concatenate([client.train for client in data.partition.clients])]
    mean, std = (v.reshape(-1, 1, 1) for v in (train.mean((0, 2, 3)), train.std((0, 2, 3))))
    np.testing.assert_allclose(got.numpy(), ((raw - mean) / std)[rows[idx]], atol=1e-5)
    assert got.dtype == torch.float32
    assert data.shape == (3, 8, 8)
    assert data.classes == 5
    assert data.client(1).train.y.tolist() == source.y[rows].tolist()


@pytest.mark.parametrize("shape", [(4,), (2, 6)])
def test_tables_and_signals(shape):
    x = np.random.default_rng(0).normal(3, 2, (60, *shape)).astype(np.float32)
    source = Source.from_arrays(x, np.arange(60) % 3)
    data = federate(source, "iid", 2, split="merged(train=1.0)")
    whole = torch.cat([data.client(i).train.x(torch.arange(30)) for i in range(2)])
    axes = (0, 2) if len(shape) == 2 else 0
    np.testing.assert_allclose(whole.mean(axes), 0, atol=1e-5)
    np.testing.assert_allclose(whole.std(axes, correction=0), 1, atol=1e-4)


def test_text_stays_token_ids():
    x = np.arange(40).reshape(20, 2)
    data = federate(Source.from_arrays(x, np.arange(20) % 2, kind="text"), "iid", 2)
    got = data.client(0).train.x(torch.tensor([0]))
    assert got.dtype == torch.int64
    assert got.tolist()[0] in x.tolist()


def test_augmentation_needs_a_generator():
    source = images()
    plain, data = federate(source, "iid", 4), federate(source, "iid", 4, augment="flip(p=1)")
    idx = torch.arange(5)
    x = plain.client(0).train.x(idx)
    assert torch.equal(data.client(0).train.x(idx), x)
    assert torch.equal(data.client(0).train.x(idx, generator(0)), x.flip(-1))
    assert torch.equal(plain.client(0).train.x(idx, generator(0)), x)
    with pytest.raises(BadInput, match="only images"):
        federate(Source.from_arrays(np.zeros((20, 2)), np.arange(20) % 2), "iid", 2, augment="flip")


def test_splits_that_were_not_made_are_none():
    client = federate(images(), "iid", 4, split="merged(train=1.0)").client(0)
    assert client.val is None
    assert client.test is None
    assert client.split("train") is client.train


def test_the_clients_asked_for_last_stay_at_hand(monkeypatch):
    monkeypatch.setattr(federated, "CLIENTS_AT_HAND", 2)
    sites = [(np.full((4, 2), i, np.float32), [0, 1, 0, 1]) for i in range(1, 5)]
    data = FederatedData.from_clients(sites)
    first = data.client(0)
    assert data.client(0) is first
    assert not torch.equal(data.client(1).train.x(torch.arange(3)), first.train.x(torch.arange(3)))
    assert data.client(0) is first  # and is the latest now
    data.client(2)
    assert data.client(0) is first
    data.client(3)
    data.client(2)
    again = data.client(0)
    assert again is not first
    assert torch.equal(again.train.x(torch.arange(3)), first.train.x(torch.arange(3)))


def test_unknown_client():
    with pytest.raises(BadInput, match="no client 4; ids go from 0 to 3"):
        federate(images(), "iid", 4).client(4)


def test_travels_as_a_path_and_indices():
    source = images(2000)
    data = federate(source, "iid", 4, augment="flip").shared()
    idx = torch.arange(4)
    data.client(0).train.x(idx)  # what was opened here does not travel
    sent = pickle.dumps(data)
    assert len(sent) < source.x.nbytes / 10
    back = pickle.loads(sent)
    assert torch.equal(back.client(2).train.x(idx), data.client(2).train.x(idx))
    assert back.augment == "flip"
    assert back.partition.fingerprint == data.partition.fingerprint


def test_saved_partition_in_place_of_an_expression(tmp_path):
    source = images()
    made = divide(source, "dirichlet(1.0)", 5, seed=2)
    made.save(tmp_path / "p.json")
    data = federate(source, Partition.load(tmp_path / "p.json"))
    assert (
        data.partition.fingerprint == federate(source, "dirichlet(1.0)", 5, 2).partition.fingerprint
    )
    with pytest.raises(BadInput, match="of other data"):
        federate(images(210), made)
    with pytest.raises(BadInput, match="has 5 clients, not 6"):
        federate(source, made, clients=6)
    with pytest.raises(BadInput, match=r"split by 'merged\(train=0.75\)', not 'official'"):
        federate(source, made, split="official")


def test_twenty_clients_unless_told():
    assert len(federate(images(2000), "iid")) == 20
    assert federate(images(2000)).partition.recipe["partition"] == "dirichlet(alpha=0.1)"


def test_sites_with_their_own_arrays():
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    sites = [(x[:10], ["b"] * 10), (x[10:], ["a", "b"] * 10)]
    data = FederatedData.from_clients(sites, split="merged(train=0.5)", normalize="none")
    assert len(data) == 2
    assert data.source.class_names == ("a", "b")
    assert data.counts().tolist() == [[0, 10], [10, 10]]
    seen = data.client(0).train.x(torch.arange(5)).numpy()
    assert all(any(np.allclose(row, r) for r in x[:10]) for row in seen)
    with pytest.raises(PartitionError, match="client 1 has no rows"):
        FederatedData.from_clients([(x, [0] * 30), (x[:0], [])])
    with pytest.raises(BadInput, match="client 1 has inputs"):
        FederatedData.from_clients([(x, [0] * 30), (x[:, :2], [0] * 30)])
    with pytest.raises(BadInput, match="at least one"):
        FederatedData.from_clients([])


def test_sites_by_name():
    """In the order given, which is not the alphabet's; the names also survive a pickle."""
    x = np.random.default_rng(0).normal(size=(30, 4))
    sites = {"Turin": (x[:10], [0, 1] * 5), "Berlin": (x[10:], [1, 1] * 10)}
    data = FederatedData.from_clients(sites)
    assert data.client_names == ["Turin", "Berlin"]
    assert data.counts().tolist() == [[5, 5], [0, 20]]
    assert pickle.loads(pickle.dumps(data.shared())).client_names == ["Turin", "Berlin"]
    assert FederatedData.from_clients(list(sites.values())).client_names == ["0", "1"]
    with pytest.raises(PartitionError, match="client Lyon has no rows"):
        FederatedData.from_clients({**sites, "Lyon": (x[:0], [])})
    with pytest.raises(BadInput, match=r"client Lyon is ndarray, not a pair"):
        FederatedData.from_clients({**sites, "Lyon": x})
    with pytest.raises(BadInput, match="'client 0': x is not an array"):
        FederatedData.from_clients([(torch.zeros(2, 2, requires_grad=True), [0, 1])])
    with pytest.raises(BadInput, match="client 0 has a single number"):
        FederatedData.from_clients([(1, 2)])


def test_the_cache_does_not_mix_up_names():
    """Two federations of the same rows share the cached arrays, not the names of their sites."""
    site = (np.arange(8, dtype=np.float32).reshape(4, 2), [0, 1, 0, 1])
    for names in (("Lyon", "Turin"), ("Rome", "Berlin")):
        source = FederatedData.from_clients(dict.fromkeys(names, site)).shared().source
        assert source.user_names == names


def test_everything_that_load_takes_is_federated(tmp_path):
    x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    for data in (tmp_path / "own.npz", str(tmp_path / "own.npz"), (x, y)):
        assert np.array_equal(federate(data, "iid", 4).source.x, x)
    assert len(federate("digits", "iid", 7)) == 7


def test_counts_sum_to_the_splits():
    data = federate(images(), "dirichlet(1.0)", 4, split="merged(train=0.5, val=0.2)")
    parts = [data.counts(split) for split in ("train", "val", "test")]
    assert np.array_equal(sum(parts), data.counts())
    assert data.counts().sum() == 200


def test_table_and_picture():
    x = np.zeros((40, 2))
    names = ["<cat>", "dog & co", "a very long class name indeed", "d"]
    source = Source.from_arrays(x, np.arange(40) % 4, class_names=names, name="pets")
    data = federate(source, "pathological(2)", 6)
    header, rows = cells(data)
    assert header == ["client", *names, "all"]
    assert len(rows) == 7
    assert rows[-1] == ["all", "10", "10", "10", "10", "40"]
    assert rows[0].count("·") == 2
    assert table(data).row_count == 7
    root = ET.fromstring(bubble_svg(data))
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == "pets: pathological(2), all samples"
    circles = root.findall(f".//{space}circle")
    assert len(circles) == 12
    counts = data.counts()
    largest = counts.max()
    for circle in circles:
        said = circle.find(f"{space}title").text
        samples = int(said.rsplit(" ", 1)[1])
        area = (float(circle.get("r")) / (28 * 0.48)) ** 2
        assert abs(area - samples / largest) < 0.01
    bubble_svg(federate(images(2000), "iid", 1000))


def test_table_and_picture_with_names():
    """A name may hold what rich and XML take for markup."""
    x = np.zeros((40, 2))
    hard = "<Lyon> [north] & a long way"
    source = Source.from_arrays(x, np.arange(40) % 2, user=["b", hard] * 20, name="a[/b]")
    data = federate(source, "by_user")
    header, rows = cells(data)
    assert header == ["client", "name", "0", "1", "all"]
    assert [row[:2] for row in rows] == [["0", hard], ["1", "b"], ["all", ""]]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(data))
    text = console.export_text()
    assert hard in text
    assert "a[/b]: by_user" in text
    root = ET.fromstring(bubble_svg(data))
    texts = [node.text for node in root.iter() if node.text]
    assert "<Lyon> [north] …" in texts
    assert f"client 0 ({hard}), 1: 20" in texts


@pytest.mark.skipif("FEDLOOM_DATA" not in os.environ, reason="FEDLOOM_DATA names no real data")
def test_real_data_by_domain():
    data = federate(load("pacs"), "by_domain(per_domain=2)", split="dualfed")
    assert len(data) == 8
    counts = data.counts() > 0
    assert counts[0].tolist() == [True] * 4 + [False] * 3
    assert counts[1].tolist() == [False] * 4 + [True] * 3
    assert all(len(data.client(i).train) <= 500 for i in range(8))
