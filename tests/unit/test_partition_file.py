"""A saved partition comes back whole, or not at all."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from fedloom.data.partition import ClientRows, Partition
from fedloom.data.partition.assignment import SOME, PackedRows
from fedloom.errors import BadInput


@pytest.fixture
def partition():
    return Partition(
        clients=(
            ClientRows(np.array([0, 2]), test=np.array([4])),
            ClientRows(np.array([1]), np.array([3])),
        ),
        shared={"test": np.array([5, 6])},
        label_maps=np.array([[0, 1], [1, 0]]),
        source="abc",
        recipe={"partition": "iid", "seed": 0},
    )


def test_save_and_load(partition, tmp_path):
    partition.save(tmp_path / "p.json")
    back = Partition.load(tmp_path / "p.json")
    assert back.fingerprint == partition.fingerprint
    assert back.to_json() == partition.to_json()
    assert back.clients[1].val.tolist() == [3]
    assert back.shared["test"].tolist() == [5, 6]


def test_many_clients_are_hashed_and_written_as_one_by_one():
    """Some hold nothing of a split; digests and files are what they were when all were objects."""
    draw = np.random.default_rng(0)
    clients = [
        ClientRows(*(draw.integers(0, 50, size) for size in draw.integers(0, 4, 3)))
        for _ in range(2 * SOME + 1)
    ]
    digest = hashlib.sha256()
    for rows in (rows for client in clients for rows in client):
        digest.update(len(rows.tobytes()).to_bytes(8, "little") + rows.tobytes())
    partition = Partition(clients)
    assert partition.fingerprint == digest.hexdigest()
    written = json.dumps([[rows.tolist() for rows in client] for client in clients])
    assert f'"clients": {written}, ' in partition.to_json()
    labels = draw.integers(0, 5, 50)
    for split in ("train", "val", "test"):
        one_by_one = [np.bincount(labels[getattr(c, split)], minlength=5) for c in clients]
        assert partition.counts(labels, 5, split).tolist() == np.stack(one_by_one).tolist()
        assert partition.packed.has(split)
    assert not PackedRows.of([ClientRows(np.array([1]))]).has("val")


def test_names_of_clients_are_saved_beside_the_rows(partition, tmp_path):
    """They do not enter the fingerprint, and without them the file is as it was before them."""
    assert "client_names" not in json.loads(partition.to_json())
    assert partition.client_names == ["0", "1"]
    named = replace(partition, names=("Lyon", "Turin"))
    named.save(tmp_path / "p.json")
    back = Partition.load(tmp_path / "p.json")
    assert back.client_names == ["Lyon", "Turin"]
    assert back.fingerprint == partition.fingerprint
    assert replace(named, clients=named.clients[:1]).client_names == ["Lyon"]
    with pytest.raises(BadInput, match="1 names are too few for 2 clients"):
        replace(partition, names=("Lyon",))


@pytest.mark.parametrize("names", [["Lyon"], ["Lyon", 3], ["a", "b", "c"], None, 3])
def test_names_must_be_one_text_for_each_client(partition, names):
    saved = {**json.loads(partition.to_json()), "client_names": names}
    with pytest.raises(BadInput, match="not a partition"):
        Partition.from_json(json.dumps(saved))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", [[[0, 2], [], [3]], [[1], [3], []]]),
        ("clients", [[[0], [2], [4]], [[1], [3], []]]),
        ("shared", {"test": [5, 7]}),
        ("label_maps", [[0, 1], [0, 1]]),
        ("fingerprint", "0" * 64),
    ],
)
def test_an_altered_file_is_refused(partition, tmp_path, key, value):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({**json.loads(partition.to_json()), key: value}))
    with pytest.raises(BadInput, match=r"p\.json was altered after it was saved"):
        Partition.load(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', "null"])
def test_what_is_no_partition_is_refused(text):
    with pytest.raises(BadInput, match="not a partition saved by fedloom"):
        Partition.from_json(text)


@pytest.mark.parametrize(("key", "value"), [("source", {}), ("source", [0]), ("recipe", "iid")])
def test_what_a_partition_says_of_itself_has_its_kind(partition, key, value):
    saved = {**json.loads(partition.to_json()), key: value}
    with pytest.raises(BadInput, match="not a partition"):
        Partition.from_json(json.dumps(saved))


@pytest.mark.parametrize("rows", [[-1], [0.5], ["0"], [True]])
def test_rows_must_be_whole_numbers(partition, rows):
    saved = {**json.loads(partition.to_json()), "shared": {"test": rows}}
    with pytest.raises(BadInput, match="not a partition"):
        Partition.from_json(json.dumps(saved))


def test_missing_file(tmp_path):
    with pytest.raises(BadInput, match="cannot read the partition file"):
        Partition.load(tmp_path / "none.json")


def test_counts_follow_the_label_maps(partition):
    """Labels 0 1 0 1 0 ..: client 0 holds rows 0, 2, 4 (all class 0), client 1 rows 1 and 3, both
    of class 1, which it calls 0."""
    labels = np.array([0, 1, 0, 1, 0, 1, 0])
    assert partition.counts(labels, 2).tolist() == [[3, 0], [2, 0]]
    assert partition.counts(labels, 2, "val").tolist() == [[0, 0], [1, 0]]
