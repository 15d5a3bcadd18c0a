"""Every partitioner keeps its promises, on drawn label sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedloom.data.partition import Pool, deal, modifiers, partitions
from fedloom.errors import BadInput, PartitionError, UnknownName

LABELS = np.repeat(np.arange(10), 120)
COVERING = [
    *("dirichlet(1.0)", "dirichlet(0.1, min_size=1, capped=false)"),
    *("pathological(2)", "class_blocks(alpha=0.1)", "iid"),
]
EQUAL = [
    "dirichlet_equal(0.3)",
    "dirichlet_equal(0.001)",
    "lda(0.1)",
    "lda(0.1, per_class)",
    "lda(0.0001)",
    "pathological(5, true, consecutive)",
    "pathological(5, balanced=true, order=random)",
    "dominant(size=40)",
    "group_pathological(size=40)",
]


def dealt(expression, labels=LABELS, clients=10, seed=0, classes=10, **natural):
    return deal(expression, Pool(labels, classes, **natural), clients, seed)


def counts(parts, labels=LABELS, classes=10):
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in parts])


def disjoint(parts):
    every = np.concatenate(parts)
    return len(np.unique(every)) == len(every)


@pytest.mark.parametrize("expression", COVERING + EQUAL)
def test_is_a_function_of_the_seed(expression):
    first, again = dealt(expression, seed=3), dealt(expression, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = dealt(expression, seed=4)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("expression", COVERING)
def test_covers_every_row_once(expression):
    assert sorted(np.concatenate(dealt(expression))) == list(range(len(LABELS)))


@pytest.mark.parametrize("expression", EQUAL)
@pytest.mark.parametrize("clients", [1, 3, 10, 17])
def test_equal_sizes_and_no_row_twice(expression, clients):
    parts = dealt(expression, clients=clients)
    assert len(parts) == clients
    assert len({len(rows) for rows in parts}) == 1
    assert disjoint(parts)


@settings(max_examples=200, deadline=None)
@given(
    expression=st.sampled_from([*COVERING, *EQUAL, "iid + scarce(5)", "pathological(2, true)"]),
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=300),
    clients=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_any_labels_give_a_partition_or_its_error(expression, labels, clients, seed):
    y = np.array(labels, dtype=np.int64)
    try:
        parts = dealt(expression, y, clients, seed)
    except PartitionError:
        return
    assert len(parts) == clients
    assert min(len(rows) for rows in parts) > 0
    assert disjoint(parts)
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in parts)


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 25),
    each=st.integers(1, 12),
    order=st.sampled_from(["label", "consecutive", "random"]),
    balanced=st.booleans(),
)
def test_pathological_gives_exactly_the_classes_promised(classes, clients, each, order, balanced):
    assume(each <= classes)
    assume(order != "label" or clients * each >= classes)
    labels = np.repeat(np.arange(classes), 60)
    parts = dealt(f"pathological({each}, {balanced}, {order})", labels, clients, classes=classes)
    table = counts(parts, labels, classes)
    assert ((table > 0).sum(axis=1) == each).all()
    if order != "consecutive":
        holders = (table > 0).sum(axis=0)
        assert holders.max() - holders.min() <= 1
    if balanced:
        assert len(set(table.sum(axis=1).tolist())) == 1


@settings(max_examples=30, deadline=None)
@given(alpha=st.floats(1e-4, 100), seed=st.integers(0, 999), clients=st.integers(1, 30))
def test_dirichlet_cap_stops_a_full_client(alpha, seed, clients):
    """A client may pass n/N only with the class that took it there, so never by a whole class."""
    parts = dealt(f"dirichlet({alpha}, min_size=1)", clients=2, seed=seed)
    assert max(len(rows) for rows in parts) < len(LABELS) / 2 + 120
    equal = dealt(f"dirichlet_equal({alpha})", clients=clients, seed=seed)
    assert {len(rows) for rows in equal} == {len(LABELS) // clients}


def test_dirichlet_honours_min_size():
    assert min(len(rows) for rows in dealt("dirichlet(0.5, min_size=60)")) >= 60


def test_smaller_alpha_is_more_skewed():
    def largest_share(expression):
        table = counts(dealt(expression))
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    for family in ("dirichlet_equal({})", "lda({})", "lda({}, per_class)"):
        assert largest_share(family.format(0.05)) > largest_share(family.format(100)) + 0.2
    assert largest_share("lda(0.1)") > largest_share("lda(0.1, per_class)")


def test_natural_clients():
    domain = np.array([0, 0, 1, 1, 1, 1])
    labels = np.array([0, 6, 3, 4, 0, 6])
    parts = dealt("by_domain", labels, None, classes=7, domain=domain)
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3, 4, 5]]
    # FedBR's PACS: classes 0-3 and 4-6 of each domain.
    parts = dealt("by_domain(per_domain=2)", labels, None, classes=7, domain=domain)
    assert [p.tolist() for p in parts] == [[0], [1], [2, 4], [3, 5]]
    parts = dealt("by_user(min_size=2)", labels, None, classes=7, user=np.array([2, 2, 0, 1, 1, 1]))
    assert [p.tolist() for p in parts] == [[3, 4, 5], [0, 1]]
    with pytest.raises(PartitionError, match="makes 2 clients of this data, not 5"):
        dealt("by_domain", labels, 5, classes=7, domain=domain)


def test_quantity_and_scarce_thin_out_a_partition():
    before = dealt("iid")
    parts = dealt("iid + quantity(sizes=[30, 60, 120])")
    assert {len(p) for p in parts} <= {30, 60, 120}
    assert len({len(p) for p in parts}) > 1
    assert all(set(p) <= set(b) for p, b in zip(parts, before, strict=True))
    assert {len(p) for p in dealt("pathological(2) + scarce(size=10)")} == {10}
    with pytest.raises(PartitionError, match="client 0 is to keep 500 rows but has 120"):
        dealt("iid + quantity(sizes=[500])")


@pytest.mark.parametrize(
    ("expression", "clients", "sentence"),
    [
        ("dirichlet(0.1, min_size=40)", 500, "use at most 30 clients or min_size=2"),
        ("dirichlet(0.001, min_size=100)", 12, "larger alpha or a smaller min_size"),
        ("pathological(1)", 5, "set classes_per_client to at least 2"),
        ("pathological(11)", 5, "the data has 10 classes"),
        ("pathological(5)", 1000, "rows for 500 clients"),
        ("dominant(size=600)", 20, "or set sharing=true"),
        ("group_pathological(size=600)", 20, "or set sharing=true"),
        ("group_pathological(sizes=[10, 10], allocation=clustered)", 4, "use fewer groups"),
        ("by_domain", None, "names none"),
        ("by_user", None, "names none"),
        ("lda", 5000, "use fewer clients"),
        ("iid", 5000, "without a single row"),
    ],
)
def test_what_cannot_be_made_says_what_to_change(expression, clients, sentence):
    with pytest.raises(PartitionError, match=sentence):
        dealt(expression, clients=clients)


def test_five_hundred_clients_of_digits_end_in_a_sentence():
    with pytest.raises(PartitionError, match="500 clients of at least 40 rows need 20000 rows"):
        dealt("dirichlet(0.1, min_size=40)", np.arange(1797) % 10, 500)
    with pytest.raises(PartitionError, match="never gave each of 500 clients"):
        dealt("dirichlet(0.1)", np.arange(1797) % 10, 500)


@pytest.mark.parametrize(
    ("expression", "error", "sentence"),
    [
        ("dirichlett(0.1)", UnknownName, "did you mean 'dirichlet'"),
        ("dirichlet(alfa=0.1)", BadInput, "no argument 'alfa'; did you mean 'alpha'"),
        ("dirichlet(alpha=0)", BadInput, "alpha must be a number above zero"),
        ("dirichlet(alpha=much)", BadInput, "alpha = 'much' is not of type float"),
        ("lda(0.1, each)", BadInput, "'total' or 'per_class'"),
        ("pathological(2, order=odd)", BadInput, "'label', 'consecutive' or 'random'"),
        ("dominant(groups=[[0, 12]])", BadInput, "lists of classes 0..9"),
        ("dominant(groups=emnist)", BadInput, "62 classes"),
        ("dominant(uniform=20)", BadInput, "between 0 and 1"),
        ("scarce(5)", BadInput, "write it after one"),
        ("iid + quantity(sizes=[])", BadInput, "sizes must be a list of whole numbers"),
        ("iid + quantity(sizes=5)", BadInput, r"sizes = 5 is not a list of int; write \[5\]"),
        ("group_pathological(sizes=[11])", BadInput, "1 to 10 classes"),
        ("iid + iid", BadInput, "names two partitions"),
        ("iid + scarse", UnknownName, "did you mean 'scarce'"),
    ],
)
def test_mistyped_expressions(expression, error, sentence):
    with pytest.raises(error, match=sentence):
        dealt(expression)


def test_registries_name_what_there_is():
    assert {"by_domain", "dirichlet", "dominant", "iid", "lda", "pathological"} <= set(partitions)
    assert set(modifiers) == {"quantity", "scarce"}
