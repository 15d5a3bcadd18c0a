"""Train, validation and test of a client, as the papers make them."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.federated import divide
from fedloom.data.source import Source
from fedloom.errors import BadInput, PartitionError


def source(n=1200, classes=10, tests=200, **more):
    y = np.arange(n) % classes
    test = np.arange(n) >= n - tests if tests else None
    return Source.from_arrays(np.zeros((n, 2)), y, official_test=test, **more)


def sizes(partition):
    return [tuple(len(rows) for rows in client) for client in partition.clients]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("dbe", (90, 0, 30)),
        ("fedcr", (84, 0, 36)),
        ("merged(train=0.75)", (90, 0, 30)),
        ("merged(train=0.6, val=0.2)", (72, 24, 24)),
        ("merged(train=1.0)", (120, 0, 0)),
        ("merged(train=0.75, pool=train)", (75, 0, 25)),
        ("fedbr", (100, 0, 0)),
        ("fedbr(val=0.2)", (80, 20, 0)),
        ("shared_test(val=0)", (100, 0, 0)),
        ("fedpac", (100, 0, 20)),
        ("official(val=0.1)", (90, 10, 20)),
        ("capped(train=50)", (50, 0, 70)),
    ],
)
def test_sizes(split, expected):
    made = divide(source(), "iid", 10, split=split)
    if "fedpac" in split or "official" in split:  # test sizes follow the drawn class counts
        assert [s[:2] for s in sizes(made)] == [expected[:2]] * 10
        assert abs(np.mean([s[2] for s in sizes(made)]) - expected[2]) <= 3
    else:
        assert sizes(made) == [expected] * 10


@pytest.mark.parametrize("split", ["dbe", "fedcr", "fedpac", "fedbr", "dualfed"])
def test_no_row_twice_and_a_function_of_the_seed(split):
    made = divide(source(), "dirichlet(1.0)", 10, 0, split)
    every = np.concatenate([c.all for c in made.clients] + list(made.shared.values()))
    assert len(set(every)) == len(every)
    assert made.fingerprint == divide(source(), "dirichlet(1.0)", 10, 0, split).fingerprint
    assert made.fingerprint != divide(source(), "dirichlet(1.0)", 10, 1, split).fingerprint


@pytest.mark.parametrize("split", ["fedpac", "fedbr"])
def test_official_rows_stay_on_their_side(split):
    data = source()
    made = divide(data, "dirichlet(1.0)", 10, split=split)
    for client in made.clients:
        assert not data.official_test[client.train].any()
        assert not data.official_test[client.val].any()
        assert data.official_test[client.test].all()
    if split == "fedbr":
        assert made.shared["test"].tolist() == np.flatnonzero(data.official_test).tolist()


@pytest.mark.parametrize(
    ("domains", "train", "expected"),
    [
        # PACS: art, cartoon, photo, sketch; a fifth of each is its test set
        ((2048, 2344, 1670, 3929), 500, [(500, 410), (500, 469), (500, 334), (500, 786)]),
        # Office-Home: Art has only 1942 training images, as the paper says
        ((2427, 4365, 4439, 4357), 2000, [(1942, 485), (2000, 873), (2000, 888), (2000, 871)]),
    ],
)
def test_dualfed_on_domains_of_the_real_sizes(domains, train, expected):
    domain = np.repeat(np.arange(4), domains)
    data = source(sum(domains), tests=0, domain=domain)
    made = divide(data, "by_domain", split=f"dualfed(train={train})")
    assert [(s[0], s[2]) for s in sizes(made)] == expected
    every = np.concatenate([c.all for c in made.clients])
    assert len(set(every)) == len(every)


def test_dualfed_keeps_to_an_official_test_set():
    """DomainNet marks its test images: 900 of each domain here are for training, 100 for test."""
    domain = np.arange(2000) % 2
    data = source(2000, domain=domain)
    made = divide(data, "by_domain", split="dualfed")
    assert sizes(made) == [(500, 0, 100)] * 2
    for client in made.clients:
        assert data.official_test[client.test].all()
        assert not data.official_test[client.train].any()
    with pytest.raises(PartitionError, match="client 1 has no training rows"):
        divide(source(400, domain=np.arange(400) >= 200), "by_domain", split="dualfed")


def test_dbe_takes_the_official_train_rows_of_tiny_imagenet_alone():
    """1000 train rows and 200 others: 75 % of 100 each, where other data gives 75 % of 120."""
    tiny = source(name="tiny_imagenet")
    made = divide(tiny, "iid", 10, split="dbe")
    assert sizes(made) == [(75, 0, 25)] * 10
    assert not tiny.official_test[np.concatenate([c.all for c in made.clients])].any()
    assert sizes(divide(tiny, "iid", 10, split="dbe(pool=all)")) == [(90, 0, 30)] * 10
    one_split = source(tests=0, name="tiny_imagenet")
    assert sizes(divide(one_split, "iid", 10, split="dbe")) == [(90, 0, 30)] * 10
    with pytest.raises(BadInput, match="no official test split"):
        divide(one_split, "iid", 10, split="merged(pool=train)")
    with pytest.raises(BadInput, match="pool"):
        divide(tiny, "iid", 10, split="dbe(pool=test)")


def test_official_test_is_drawn_like_the_training_rows():
    """dominant(size=50): 42 / 3 + .. of the group's classes; a test of 100 doubles every count."""
    data = source(12000, tests=6000)
    made = divide(data, "dominant(size=50)", 5, split="official(test_size=100)")
    train, test = made.counts(data.y, 10, "train"), made.counts(data.y, 10, "test")
    assert (test.sum(axis=1) == 100).all()
    assert abs(test - 2 * train).max() <= 1
    scaled = divide(data, "dominant(size=50)", 5, split="official").counts(data.y, 10, "test")
    share = scaled / scaled.sum(axis=1, keepdims=True)
    assert abs(share - train / 50).max() < 0.01


def test_official_test_may_be_shared():
    data = source()
    with pytest.raises(PartitionError, match="set sharing=true"):
        divide(data, "iid", 10, split="official(test_size=60)")
    made = divide(data, "iid", 10, split="official(test_size=60, sharing=true)")
    assert {len(c.test) for c in made.clients} == {60}


def test_official_keeps_natural_clients_together():
    user = np.arange(1200) % 4
    data = source(user=user)
    made = divide(data, "by_user", split="official")
    for u, client in enumerate(made.clients):
        assert (user[client.all] == u).all()
        assert len(client.all) == 300
        assert data.official_test[client.test].all()


def test_one_row_is_for_training():
    data = source(5, 5, 0)
    made = divide(data, "iid", 5, split="merged(train=0.1, val=0.1)")
    assert sizes(made) == [(1, 0, 0)] * 5
    assert sizes(divide(data, "iid", 5, split="capped")) == [(1, 0, 0)] * 5


def test_office_home_art():
    """DualFed reports 1942 training images for Art, 2427 images in all, under a cap of 2000."""
    assert sizes(divide(source(2427, 3, 0), "iid", 1, split="dualfed(train=2000)")) == [
        (1942, 0, 485)
    ]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ("merged(train=1.5)", "train is a share between 0 and 1"),
        ("merged(train=0)", "something to learn"),
        ("merged(train=0.9, val=0.2)", "more than 1"),
        ("official(val=2)", "val is a share"),
        ("official(test_size=0)", "test_size must be a whole number above zero"),
        ("merged + official", "without '\\+'"),
    ],
)
def test_bad_splits(split, sentence):
    with pytest.raises(BadInput, match=sentence):
        divide(source(), "iid", 10, split=split)


@pytest.mark.parametrize("split", ["official", "shared_test"])
def test_without_an_official_test(split):
    with pytest.raises(BadInput, match="no official test split"):
        divide(source(tests=0), "iid", 10, split=split)
