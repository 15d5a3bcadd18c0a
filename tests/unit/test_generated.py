"""Small made-up data with the schema of the known data sets."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedloom.data import federate, load
from fedloom.data.generated import SCHEMAS, like
from fedloom.data.known import EMBEDDED
from fedloom.data.load import names
from fedloom.data.source import Source
from fedloom.errors import BadInput, UnknownName

needs_data = pytest.mark.skipif(not os.environ.get("FEDLOOM_DATA"), reason="needs FEDLOOM_DATA")


def test_every_known_data_set_has_a_schema() -> None:
    assert set(names()) == set(SCHEMAS)


def schema(source: Source) -> dict[str, object]:
    return {
        "name": source.name,
        "kind": source.kind,
        "type": source.x.dtype,
        "shape": source.shape,
        "classes": source.class_names,
        "domains": source.domain_names,
        "test rows": source.official_test is not None,
        "users": 0 if source.user is None else len(np.unique(source.user)),
        "text": source.vocabulary > 0,
        "normalisation": source.normalize,
    }


@needs_data
@pytest.mark.parametrize(
    "name",
    [EMBEDDED, *("fashion_mnist", "mnist", "cifar10", "cifar100", "pacs", "office_caltech10")],
)
def test_schema_is_that_of_the_real_data(name: str) -> None:
    assert schema(like(name)) == schema(load(name))


@needs_data
@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("ag_news", {"test rows"}),  # at hand is only its test split
        ("har", {"shape", "test rows"}),  # at hand is its raw form, six signals
    ],
)
def test_schema_differs_from_a_part_of_the_real_data(name: str, differs: set[str]) -> None:
    made, real = schema(like(name)), schema(load(name))
    assert {key for key in made if made[key] != real[key]} == differs


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_contents_are_the_same_every_time(name: str) -> None:
    once, again, other = like(name, 2), like(name, 2), like(name, 2, seed=1)
    assert once.fingerprint == again.fingerprint != other.fingerprint
    assert len(once) == 2 * once.classes * max(1, len(once.domain_names))


def test_rows_of_the_test_set_come_last_and_have_every_class() -> None:
    source = like("cifar100", rows_per_class=12)
    assert source.official_test is not None
    assert source.official_test.tolist() == [False] * 1000 + [True] * 200
    assert np.bincount(source.y[source.official_test]).tolist() == [2] * 100


def test_options_in_the_expression() -> None:
    letters = like("emnist(subset=letters, classes=[C, A])", 5)
    assert (letters.class_names, len(letters)) == (("C", "A"), 10)
    assert like("ag_news(positions=7)").shape == (7,)
    assert like("pacs", 1, image_size=32).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("partition", "split", "name"),
    [
        ("by_domain(per_domain=2)", "dualfed(train=500)", "pacs"),
        ("by_user", "dbe", "har"),
        ("dominant(groups=emnist, size=20)", "fedpac", "emnist"),
        ("pathological(15, order=random, balanced=true)", "fedcr", "cifar100"),
    ],
)
def test_it_can_be_divided_as_the_real_data(partition: str, split: str, name: str) -> None:
    assert len(federate(like(name), partition, split=split)) > 1


def test_what_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown data set 'cifar11'; did you mean 'cifar10'"):
        like("cifar11")
    with pytest.raises(UnknownName, match="subset of emnist 'leters'"):
        like("emnist(subset=leters)")
    with pytest.raises(BadInput, match="data 'har' is signal and has no image_size"):
        like("har", image_size=8)
    with pytest.raises(BadInput, match="rows_per_class must be a whole number above zero, not 0"):
        like("mnist", 0)
