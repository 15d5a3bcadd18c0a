"""Partitions small enough to be worked out on paper."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedloom.data.partition import Pool, deal
from fedloom.data.partition.dominant import dominant_classes
from fedloom.data.partition.draw import apportion, take
from fedloom.errors import BadInput, PartitionError


def table(expression, labels, clients, classes, seed=0):
    parts = deal(expression, Pool(labels, classes), clients, seed)
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in parts])


def test_label_order_fills_the_first_clients_first():
    """DBE: 20 clients x 2 of 10 classes are 40 places, 4 per class. Classes 0 and 1 go to clients
    0-3, which are then full, 2 and 3 to clients 4-7, and so on."""
    held = table("pathological(2)", np.repeat(np.arange(10), 100), 20, 10) > 0
    for i in range(20):
        assert np.flatnonzero(held[i]).tolist() == [i // 4 * 2, i // 4 * 2 + 1]


def test_label_order_when_places_do_not_divide():
    """3 clients x 2 of 4 classes: 6 places, the classes get 1, 2, 1, 2 of them.
    0 -> client 0; 1 -> clients 0, 1; 2 -> client 2, who needs both classes still to come (client 1
    waits); 3 -> clients 1, 2."""
    held = table("pathological(2)", np.repeat(np.arange(4), 10), 3, 4) > 0
    assert [np.flatnonzero(row).tolist() for row in held] == [[0, 1], [1, 3], [2, 3]]


def test_uneven_amounts():
    """Of 100 rows and 4 holders the equal share is 25: three get 2 to 25, the last the rest."""
    counts = table("pathological(1)", np.repeat(np.arange(2), 100), 8, 2)
    for k in range(2):
        amounts = counts[4 * k : 4 * k + 4, k]
        assert amounts.sum() == 100
        assert all(2 <= a <= 25 for a in amounts[:3])
        assert amounts[3] >= 25


def test_consecutive_classes_wrap_around():
    """FedCR's code: client i holds i..i+4 mod 10; 100 clients share 7000 rows of each class: every
    class has 50 holders, every client 700 rows, 140 of each of its classes."""
    counts = table("pathological(5, true, consecutive)", np.repeat(np.arange(10), 7000), 100, 10)
    assert (counts.sum(axis=1) == 700).all()
    assert np.flatnonzero(counts[7]).tolist() == [0, 1, 7, 8, 9]
    assert np.flatnonzero(counts[12]).tolist() == [2, 3, 4, 5, 6]
    assert set(counts.ravel().tolist()) == {0, 140}


@pytest.mark.parametrize(
    ("classes", "rows", "each", "amount"),
    [
        (10, 5600, 5, 112),  # EMNIST-L: 56,000 rows, 560 a client
        (10, 7000, 5, 140),  # Fashion-MNIST
        (10, 6000, 5, 120),  # CIFAR-10
        (100, 600, 15, 40),  # CIFAR-100
        (100, 600, 10, 60),  # CIFAR-100, Table 9
        (100, 600, 20, 30),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_classes_in_equal_amounts(classes, rows, each, amount, seed):
    """FedCR's non-iid_1 on data of the real sizes: 100 clients, all rows in use, every client the
    same number of each of its random classes (Table 4: sizes of 560, 700, 600 and 600)."""
    labels = np.repeat(np.arange(classes), rows)
    counts = table(f"pathological({each}, true, random)", labels, 100, classes, seed)
    assert set(counts.ravel().tolist()) == {0, amount}
    assert (counts.sum(axis=1) == each * amount).all()
    assert (counts.sum(axis=0) == rows).all()
    sets = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(sets) > 60  # drawn, not 10 or 20 sets in turn


def test_random_classes_where_the_numbers_do_not_divide():
    """Seven clients of 2 out of 4 classes: 14 places, so 3, 3, 4 and 4 holders; of 12 rows a class
    with four holders gives 3 each, so every client has 3 of both of its classes."""
    counts = table("pathological(2, true, random)", np.repeat(np.arange(4), 12), 7, 4)
    assert sorted((counts > 0).sum(axis=0).tolist()) == [3, 3, 4, 4]
    assert set(counts.ravel().tolist()) == {0, 3}
    assert (counts.sum(axis=1) == 6).all()


def test_all_random_sets_occur():
    """Of 4 classes, two each: the 6 pairs are about as frequent, over many seeds."""
    labels = np.repeat(np.arange(4), 40)
    sets = Counter(
        tuple(np.flatnonzero(row).tolist())
        for seed in range(100)
        for row in table("pathological(2, true, random)", labels, 6, 4, seed)
    )
    assert len(sets) == 6
    assert min(sets.values()) > 70  # 100 expected


def test_class_blocks():
    """FedBR's observations: two clients, classes 0 and 1 against 2 and 3, of 20 rows each."""
    labels = np.repeat(np.arange(4), 20)
    assert table("class_blocks", labels, 2, 4).tolist() == [[20, 20, 0, 0], [0, 0, 20, 20]]
    mild = table("class_blocks(alpha=0.25)", labels, 2, 4)
    assert mild.tolist() == [[15, 15, 5, 5], [5, 5, 15, 15]]
    assert (table("class_blocks(alpha=0.5)", labels, 2, 4) == 10).all()
    assert table("class_blocks(0.2)", labels, 3, 4)[:, 0].tolist() == [16, 2, 2]
    with pytest.raises(
        BadInput, match=r"goes from 0 .* to 0.5 \(all clients of 2 alike\), not 0.6"
    ):
        table("class_blocks(alpha=0.6)", labels, 2, 4)
    with pytest.raises(PartitionError, match="5 clients need a class each, and there are 4"):
        table("class_blocks", labels, 5, 4)


def test_dominant_counts():
    """FedPAC, 600 rows, s = 20 %: 120 / 10 = 12 of each class, 480 / 3 = 160 more of each dominant
    one. Client 5 is of group 0 (classes 0, 1, 2), client 4 of group 4 (8, 9, 0)."""
    counts = table("dominant", np.repeat(np.arange(10), 2000), 20, 10)
    assert counts[5].tolist() == [172, 172, 172, 12, 12, 12, 12, 12, 12, 12]
    assert counts[4].tolist() == [172, 12, 12, 12, 12, 12, 12, 12, 172, 172]


@pytest.mark.parametrize("classes", [2, 4, 7, 10, 62, 100, 200])
def test_dominant_groups_of_any_class_count_touch_every_class(classes):
    groups = dominant_classes(5, classes)
    assert len(groups) == 5
    assert {k for group in groups for k in group} == set(range(classes))
    assert len({len(group) for group in groups}) == 1


def test_emnist_groups():
    assert [len(g) for g in dominant_classes("emnist", 62)] == [10, 26, 26]


def test_sharing_wraps_around_but_never_within_a_client():
    """10 rows of one class for 4 clients of 4: 16 places, so 6 rows are held twice."""
    labels = np.zeros(10, dtype=np.int64)
    parts = take(np.full((4, 1), 4), labels, np.random.default_rng(0), sharing=True)
    held = np.bincount(np.concatenate(parts), minlength=10)
    assert sorted(held) == [1] * 4 + [2] * 6
    assert all(len(set(rows)) == 4 for rows in parts)


def test_group_pathological_sizes():
    """C.7: 3/3/5/5/8 classes by client mod 5, 600 rows spread evenly: 200, 120 or 75 of each."""
    labels = np.repeat(np.arange(10), 5000)
    for allocation in ("random", "clustered"):
        counts = table(f"group_pathological(allocation={allocation})", labels, 20, 10)
        for i, (number, each) in enumerate([(3, 200), (3, 200), (5, 120), (5, 120), (8, 75)] * 4):
            assert sorted(counts[i])[-number:] == [each] * number
            assert counts[i].sum() == 600
        held = [tuple(np.flatnonzero(row)) for row in counts]
        if allocation == "clustered":
            assert held[:5] == held[5:10] == held[15:]
            assert len(set(held)) == 5
        else:
            assert len(set(held)) > 5


def test_lda_zeroes_a_class_that_runs_out():
    """One row of class 0, nine of class 1, two clients of 5: whatever the draw, all ten rows go."""
    for seed in range(20):
        counts = table("lda(0.01)", np.array([0] + [1] * 9), 2, 2, seed)
        assert counts.sum(axis=0).tolist() == [1, 9]
        assert counts.sum(axis=1).tolist() == [5, 5]


def test_apportion_gives_the_rest_to_the_largest_remainders():
    """7 over 1:1:2 is 1.75, 1.75, 3.5: two rows are left after 1, 1, 3, for the two 0.75."""
    assert apportion(7, np.array([1, 1, 2]), np.random.default_rng(0)).tolist() == [2, 2, 3]
