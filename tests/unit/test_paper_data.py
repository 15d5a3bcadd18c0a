"""Every data setting of the five papers can be expressed, on label arrays of the real sizes.

Rows are one pixel wide, so that a set of 70,000 takes no time; what is compared are the numbers
that a paper prints: clients, rows per client, rows per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedloom.data import FederatedData, Source, federate


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Size:
    """Classes of a data set, and rows of each in its published splits."""

    classes: int
    train: int
    test: int


SIZES = {
    "fashion_mnist": Size(10, 6000, 1000),
    "mnist": Size(10, 6000, 1000),
    "cifar10": Size(10, 5000, 1000),
    "cifar100": Size(100, 500, 100),
    "tiny_imagenet": Size(200, 500, 50),
    "ag_news": Size(4, 30_000, 1900),
    "emnist_l": Size(10, 4800, 800),
    "cinic10": Size(10, 18_000, 9000),
    # EMNIST by class is not balanced: so many of its rarer characters, many more of every digit.
    "emnist": Size(62, 1800, 300),
}


def labelled(name: str) -> Source:
    size = SIZES[name]
    classes = [*range(size.classes), *(list(range(10)) * 15 if name == "emnist" else [])]
    y = np.concatenate([np.repeat(classes, n) for n in (size.train, size.test)])
    test = np.arange(len(y)) >= len(classes) * size.train
    return Source.from_arrays(
        np.zeros((len(y), 1, 1, 1), np.uint8), y, name=name, official_test=test
    )


DBE = [
    ("fashion_mnist", "pathological(2)", 20),
    ("cifar100", "pathological(10)", 20),
    ("tiny_imagenet", "pathological(20)", 20),
    ("fashion_mnist", "dirichlet(alpha=0.1)", 20),
    ("cifar100", "dirichlet(alpha=0.1)", 20),
    ("cifar100", "dirichlet(alpha=0.1)", 100),
    ("tiny_imagenet", "dirichlet(alpha=0.1)", 20),
    ("tiny_imagenet", "dirichlet(alpha=0.01)", 20),
    ("tiny_imagenet", "dirichlet(alpha=0.5)", 20),
    ("tiny_imagenet", "dirichlet(alpha=5)", 20),
    ("ag_news", "dirichlet(alpha=1.0)", 20),
]


@pytest.mark.parametrize(("name", "partition", "clients"), DBE)
def test_dbe(name: str, partition: str, clients: int) -> None:
    """All rows are in use (of Tiny-ImageNet 100,000), three quarters of each client's to train."""
    data = federate(labelled(name), partition, clients, split="dbe")
    sizes = data.partition.packed.sizes
    size = SIZES[name]
    rows = size.classes * (size.train + (0 if name == "tiny_imagenet" else size.test))
    assert (len(data), sizes.sum()) == (clients, rows)
    assert (sizes[:, 0] == (0.75 * sizes.sum(axis=1) + 1e-9).astype(int)).all()
    if "pathological" in partition:
        assert set((data.counts() > 0).sum(axis=1).tolist()) == {max(2, size.classes // 10)}


FEDBR = [
    ("mnist", 10, "rotate(step=15)"),
    ("cifar10", 10, "rotate_images(angles=10, step=15, alpha=1.0)"),
    ("cifar10", 100, "rotate_images(angles=10, step=15, alpha=1.0)"),
    ("cifar10", 10, None),
    ("cifar100", 10, None),
]


@pytest.mark.parametrize("concentration", ["total", "per_class"])
@pytest.mark.parametrize(("name", "clients", "shift"), FEDBR)
def test_fedbr(name: str, clients: int, shift: str | None, concentration: str) -> None:
    """Clients of one size that train on all they have; the test set once for every angle."""
    partition = f"lda(alpha=0.1, concentration={concentration})"
    data = federate(labelled(name), partition, clients, split="fedbr", shift=shift)
    size = SIZES[name]
    each = size.classes * size.train // clients
    assert data.partition.packed.sizes.tolist() == [[each, 0, 0]] * clients
    assert len(data.shared_tests) == (1 if shift is None else 10)
    assert {len(test) for test in data.shared_tests.values()} == {size.classes * size.test}


def test_fedbr_on_pacs() -> None:
    """Two clients of each of four domains: classes 0-3 and 4-6 of seven."""
    y, domain = np.arange(2800) % 7, np.arange(2800) // 700
    source = Source.from_arrays(np.zeros((2800, 3, 1, 1), np.uint8), y, domain=domain)
    data = federate(source, "by_domain(per_domain=2)", split="merged(train=0.8)")
    own = [np.flatnonzero(row).tolist() for row in data.counts()]
    assert own == [[0, 1, 2, 3], [4, 5, 6]] * 4
    assert data.partition.packed.sizes.tolist() == [[320, 0, 80], [240, 0, 60]] * 4


def test_fedbr_observations() -> None:
    data = federate(labelled("cifar10"), "class_blocks(alpha=0.1)", 2, split="fedbr")
    assert data.counts("train").tolist() == [[4500] * 5 + [500] * 5, [500] * 5 + [4500] * 5]


FEDCR = [
    ("emnist_l", 5, 0.5, 392, 168),
    ("fashion_mnist", 5, 0.5, 490, 210),
    ("cifar10", 5, 0.5, 420, 180),
    ("cifar100", 15, 0.3, 420, 180),
]


@pytest.mark.parametrize(("name", "classes", "alpha", "train", "test"), FEDCR)
def test_fedcr(name: str, classes: int, alpha: float, train: int, test: int) -> None:
    """Table 4: training and test rows of each of 100 clients, in both settings."""
    source = labelled(name)
    first = f"pathological({classes}, order=random, balanced=true)"
    for partition in (first, f"dirichlet_equal(alpha={alpha})"):
        data = federate(source, partition, 100, split="fedcr")
        assert data.partition.packed.sizes.tolist() == [[train, 0, test]] * 100


def test_fedcr_second_setting_is_as_skewed_as_the_paper_says() -> None:
    """Dirichlet 0.5 over ten classes: about four classes hold 80 % of a client, one or two lack."""
    counts = federate(
        labelled("cifar10"), "dirichlet_equal(alpha=0.5)", 100, split="fedcr"
    ).counts()
    largest = np.sort(counts, axis=1)[:, ::-1].cumsum(axis=1) / 600
    assert 3 <= (largest < 0.8).sum(axis=1).mean() + 1 <= 5
    assert 0.5 <= (counts == 0).sum(axis=1).mean() <= 2.5


def fedpac(name: str, partition: str, clients: int, **more: str) -> FederatedData:
    split = more.pop("split", "fedpac(test_size=300, sharing=true)")
    return federate(labelled(name), partition, clients, split=split, **more)  # type: ignore[arg-type]


FEDPAC = [
    ("fashion_mnist", "dominant(uniform=0.2, size=600)", 20, 600),
    ("cifar10", "dominant(uniform=0.2, size=600)", 20, 600),
    ("cinic10", "dominant(uniform=0.2, size=600)", 20, 600),
    ("emnist", "dominant(uniform=0.2, groups=emnist, size=1000)", 20, 1000),
    ("fashion_mnist", "dominant(uniform=0.2, size=600, sharing=true)", 100, 600),
    ("cifar10", "dominant(uniform=0.2, size=600, sharing=true)", 100, 600),
    ("cinic10", "dominant(uniform=0.2, size=600)", 100, 600),
    ("emnist", "dominant(uniform=0.2, groups=emnist, size=1000)", 100, 1000),
    ("cifar10", "group_pathological(sizes=[3, 3, 5, 5, 8], allocation=random, size=600)", 20, 600),
    ("cifar10", "group_pathological(sizes=[3, 3, 5, 5, 8], allocation=clustered)", 20, 600),
    ("cifar10", "dominant(uniform=0.2, size=50, sharing=true)", 1000, 50),
    *[("cifar10", f"dominant(uniform={s}, size=600)", 20, 600) for s in (0, 0.4, 0.6, 0.8)],
    *[("cifar10", f"dominant(uniform=0.2, size={n})", 20, n) for n in (100, 200, 1000)],
]


@pytest.mark.parametrize(("name", "partition", "clients", "size"), FEDPAC)
@pytest.mark.parametrize("split", ["fedpac", "fedpac(test_size=300, sharing=true)"])
def test_fedpac(name: str, partition: str, clients: int, size: int, split: str) -> None:
    """Tables 1, 2, 4, 5, 7 and 9, Figure 1: every client the same number of training rows."""
    sizes = fedpac(name, partition, clients, split=split).partition.packed.sizes
    assert sizes[:, :2].tolist() == [[size, 0]] * clients
    assert sizes[:, 2].min() > 0
    assert "test_size" not in split or set(sizes[:, 2].tolist()) == {300}


def test_fedpac_concept_shift_follows_the_groups() -> None:
    """Table 3: clients with the same dominant classes name them by the same permutation."""
    data = fedpac("cifar10", "dominant", 20, shift="permute_labels(groups=5)")
    maps = data.partition.label_maps
    assert maps is not None
    assert (maps[:5] == maps[5:10]).all()
    assert len({tuple(m) for m in maps.tolist()}) == 5


def test_fedpac_feature_skew_follows_the_groups() -> None:
    """Table 10: the images of a group are turned by one angle."""
    data = fedpac("fashion_mnist", "dominant", 20, shift="rotate(step=15, groups=5)")
    assert data.partition.packed.sizes.tolist() == [[600, 0, 300]] * 20


def test_fedpac_imbalanced() -> None:
    """Table 6: sizes from 300, 600 and 1200, whatever the classes."""
    partition = "dominant(uniform=0.2, size=1200) + quantity(sizes=[300, 600, 1200])"
    sizes = fedpac("cifar10", partition, 20).partition.packed.sizes[:, 0]
    assert set(sizes.tolist()) == {300, 600, 1200}


def test_fedpac_dirichlet() -> None:
    """Table 8: every class over 100 clients by Dir(1.0), all training rows in use."""
    for name in ("fashion_mnist", "cifar10"):
        data = fedpac(name, "dirichlet(alpha=1.0, capped=false, min_size=1)", 100)
        assert data.partition.packed.sizes[:, 0].sum() == 10 * SIZES[name].train
