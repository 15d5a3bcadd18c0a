"""Inputs are normalised by training rows only: of all clients, or of each client alone."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.data import Split
from fedloom.data import FederatedData, Partition, Source, federate
from fedloom.data.normalization import Scaling
from fedloom.data.partition import ClientRows


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def inputs(split: Split | None) -> np.ndarray:
    assert split is not None
    return split.x(torch.arange(len(split))).numpy()


def two_clients(normalize: str | None = None) -> FederatedData:
    """Client 0 trains on 0 and 2, client 1 on 4 and 6; 100 and 200 are validated, 1000 tested."""
    column = np.array([0, 2, 4, 6, 100, 200, 1000, 1000], np.float32)
    x = np.stack([column, np.full(8, 0.1, np.float32)], axis=1)
    source = Source.from_arrays(x, np.arange(8) % 2, normalize=normalize)  # type: ignore[arg-type]
    rows = [ClientRows(*map(np.array, r)) for r in (([0, 1], [4], [6]), ([2, 3], [5], [7]))]
    return FederatedData(source, Partition(rows, shared={"all": np.arange(8)}))


def test_all_clients_by_the_training_rows_of_all() -> None:
    """0, 2, 4, 6: mean 3, deviation sqrt(5); a column of one value is only centred."""
    data = two_clients()
    for who in (0, 1, None):
        assert data.scaling(who).mean == pytest.approx((3.0, 0.1))
        assert data.scaling(who).std == pytest.approx((5**0.5, 1.0))
    client = data.client(1)
    np.testing.assert_allclose(inputs(client.train)[:, 0], [1 / 5**0.5, 3 / 5**0.5], rtol=1e-6)
    np.testing.assert_allclose(inputs(client.val)[:, 0], [197 / 5**0.5], rtol=1e-6)
    np.testing.assert_allclose(inputs(client.test)[:, 0], [997 / 5**0.5], rtol=1e-6)
    np.testing.assert_allclose(inputs(client.test)[:, 1], 0, atol=1e-7)


def test_each_client_by_its_own_training_rows() -> None:
    """0 and 2: mean 1, deviation 1. 4 and 6: mean 5, deviation 1. Test sets of nobody: by all."""
    data = two_clients("site")
    assert [data.scaling(i).mean[0] for i in (0, 1)] == [1.0, 5.0]
    assert [data.scaling(i).std[0] for i in (0, 1)] == [1.0, 1.0]
    for cid, centre in ((0, 1.0), (1, 5.0)):
        client = data.client(cid)
        assert inputs(client.train)[:, 0].tolist() == [-1.0, 1.0]
        assert inputs(client.val)[0, 0] == 100 * (cid + 1) - centre
        assert inputs(client.test)[0, 0] == 1000 - centre
    np.testing.assert_allclose(inputs(data.shared_tests["all"])[3, 0], 3 / 5**0.5, rtol=1e-6)


def test_the_rows_of_clients_are_not_copied() -> None:
    data = two_clients("site")
    raw = {c.train._inputs.x.data_ptr() for c in map(data.client, (0, 1))}  # type: ignore[attr-defined]
    assert raw == {torch.from_numpy(data.source.x).data_ptr()}


def test_a_row_that_two_clients_hold_counts_once() -> None:
    source = Source.from_arrays(np.array([[0.0], [2.0], [4.0]]), [0, 1, 0])
    rows = [ClientRows(np.array([0, 1])), ClientRows(np.array([1, 2]))]
    assert FederatedData(source, Partition(rows)).scaling(0).mean == (2.0,)


def test_pixels_of_one_byte_go_from_0_to_1_first() -> None:
    x = np.array([0, 255, 51], np.uint8).reshape(3, 1, 1, 1)
    assert Scaling.over(x, np.array([0, 1])) == Scaling((0.5,), (0.5,))
    assert Scaling.over(x, np.array([2])) == Scaling((0.2,), (1.0,))


SHIFT = 1000.0


def shifted(test: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(60, 2, 5) if kind == "signal" else (60, 3))
    x[test] += SHIFT
    return x.astype(np.float32), np.arange(60) % 3


@pytest.mark.parametrize("normalize", ["channel", "site"])
@pytest.mark.parametrize("kind", ["table", "signal"])
@pytest.mark.parametrize("split", ["merged(train=0.6, val=0.2)", "official", "shared_test"])
def test_rows_for_test_and_validation_change_nothing(
    normalize: fl.data.normalization.Normalize, kind: str, split: str
) -> None:
    """What clients train on is the same where all other rows are 1000 larger."""
    official = np.arange(60) >= 48
    x, y = shifted(np.zeros(60, bool), kind)
    plain = Source.from_arrays(x, y, official_test=official, normalize=normalize)
    before = federate(plain, "iid", 4, split=split)
    elsewhere = np.ones(60, bool)
    elsewhere[np.concatenate([c.train for c in before.partition.clients])] = False
    assert elsewhere.sum() >= 12
    moved = Source.from_arrays(
        *shifted(elsewhere, kind), official_test=official, normalize=normalize
    )
    after = federate(moved, "iid", 4, split=split)
    for cid in range(4):
        same, other = before.client(cid), after.client(cid)
        np.testing.assert_array_equal(inputs(same.train), inputs(other.train))
        assert before.scaling(cid) == after.scaling(cid)
        if other.test is not None:
            assert inputs(other.test).mean() > 100


def test_own_files_and_sites(tmp_path: Path) -> None:
    """CSV, npz, a pair and `from_clients`: the same rows, the same mean, without the test rows."""
    x, y, user = np.arange(40.0).reshape(20, 2), np.arange(20) % 2, np.arange(20) // 10
    np.savez(tmp_path / "own.npz", x=x, y=y, user=user)
    lines = [f"{a},{b},{k},{u}" for (a, b), k, u in zip(x, y, user, strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,label,user", *lines]))
    sites = [(x[user == u], y[user == u]) for u in (0, 1)]
    divided = [
        federate(tmp_path / "own.npz", "by_user"),
        federate(tmp_path / "own.csv", "by_user"),
        FederatedData.from_clients(sites),
    ]
    for data in divided:
        train = np.concatenate([c.train for c in data.partition.clients])
        assert len(train) == 14
        assert data.scaling(0).mean == pytest.approx(x[train].mean(axis=0))
        assert data.scaling(0).std == pytest.approx(x[train].std(axis=0))
    own = FederatedData.from_clients(sites, normalize="site")
    assert own.scaling(1).mean == pytest.approx(x[own.partition.clients[1].train].mean(axis=0))


@pytest.mark.parametrize("normalize", ["channel", "site"])
def test_it_travels(normalize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To files, to memory and to other processes, where nothing is measured over all rows again."""
    data = two_clients(normalize)
    expected = [inputs(data.client(cid).test) for cid in (0, 1)]
    copies = [data.shared(), data.in_memory(), pickle.loads(pickle.dumps(data.shared()))]
    if normalize == "channel":
        monkeypatch.setattr(Scaling, "over", None)
    for copy in copies:
        for cid in (0, 1):
            np.testing.assert_array_equal(inputs(copy.client(cid).test), expected[cid])


def test_turned_images_are_measured_as_they_are_seen() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    source = Source.from_arrays(x, np.arange(40) % 2, normalize="site")
    data = federate(source, "iid", 2, shift="rotate(step=30)")
    train = data.source.x[data.partition.clients[1].train] / 255
    assert data.scaling(1).mean == pytest.approx((train.mean(),))


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_run_normalised_by_site(engine: str) -> None:
    x = np.random.default_rng(0).normal(3, 2, (80, 4))
    result = fl.run(
        "fedavg", (x, np.arange(80) % 2), clients=4, rounds=1, normalize="site", engine=engine
    )
    assert result.experiment.data.source.normalize == "site"
    assert result.experiment.config.normalize == "site"
