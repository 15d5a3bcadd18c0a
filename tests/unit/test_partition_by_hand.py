"""Partitions small enough to be worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.partition import Pool, deal
from fedloom.data.partition.dominant import dominant_classes
from fedloom.data.partition.draw import apportion, take


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
