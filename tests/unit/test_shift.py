"""Shifts: turned images and renamed classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.data.augment import rotate
from fedloom.data.federated import divide, federate
from fedloom.data.source import Source
from fedloom.errors import BadInput


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def source(n=120, classes=4, dtype=np.uint8):
    x = np.random.default_rng(0).integers(0, 256, (n, 1, 8, 8)).astype(dtype)
    test = np.arange(n) >= n - 20
    return Source.from_arrays(x, np.arange(n) % classes, official_test=test, normalize="none")


def raw(data, split):
    """All images of a split, unnormalised."""
    return split.x(torch.arange(len(split))) * (255 if data.source.x.dtype == np.uint8 else 1)


def turned(images, angle):
    out = rotate(torch.from_numpy(images), torch.full((len(images),), float(angle)))
    return out.round() if images.dtype == np.uint8 else out


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_client_i_is_turned_by_i_steps(dtype):
    plain = source(dtype=dtype)
    before = divide(plain, "iid", 3, split="merged(train=0.5, val=0.25)")
    data = federate(plain, "iid", 3, split="merged(train=0.5, val=0.25)", shift="rotate(step=30)")
    for i, rows in enumerate(before.clients):
        client = data.client(i)
        for name in ("train", "val", "test"):
            split, at = client.split(name), getattr(rows, name)
            assert torch.equal(split.y, torch.from_numpy(plain.y[at]))
            torch.testing.assert_close(
                raw(data, split), turned(plain.x[at], 30 * i).float(), atol=1e-3, rtol=0
            )


def test_groups_are_turned_alike():
    plain = source()
    data = federate(plain, "iid", 4, shift="rotate(step=90, groups=2)")
    rows = divide(plain, "iid", 4).clients
    for i in range(4):
        expected = torch.from_numpy(plain.x[rows[i].train]).rot90(i % 2, (-2, -1)).float()
        torch.testing.assert_close(raw(data, data.client(i).train), expected, atol=1e-3, rtol=0)


def test_shared_tests_come_at_every_angle():
    """FedBR: ten copies of the official test, turned by 0, 15, ..., 135 degrees."""
    plain = source()
    data = federate(plain, "lda(0.1)", 10, split="fedbr", shift="rotate(step=15)")
    assert list(data.shared_tests) == [f"test@{15 * i}" for i in range(10)]
    for i, (_, split) in enumerate(data.shared_tests.items()):
        expected = turned(plain.x[100:], 15 * i).float()
        torch.testing.assert_close(raw(data, split), expected, atol=1e-3, rtol=0)
        assert split.y.tolist() == plain.y[100:].tolist()
    assert list(federate(plain, "iid", 10, split="fedbr").shared_tests) == ["test"]


def test_a_row_of_several_clients_becomes_several_rows():
    plain = source()
    partition = "dominant(size=60, sharing=true)"
    data = federate(plain, partition, 4, split="merged(train=1.0)", shift="rotate(step=90)")
    before = divide(plain, partition, 4, split="merged(train=1.0)")
    assert sum(len(c.train) for c in before.clients) == len(data.source) == 240
    for i, rows in enumerate(before.clients):
        expected = torch.from_numpy(plain.x[rows.train]).rot90(i, (-2, -1)).float()
        torch.testing.assert_close(raw(data, data.client(i).train), expected, atol=1e-3, rtol=0)


def test_each_image_has_its_own_angle():
    plain = source()
    shift = "rotate_images(angles=4, step=90)"
    data = federate(plain, "iid", 2, shift=shift)
    rows = divide(plain, "iid", 2).clients[0].train
    seen = set()
    for image, original in zip(raw(data, data.client(0).train), plain.x[rows], strict=True):
        quarters = [torch.from_numpy(original).rot90(q, (-2, -1)).float() for q in range(4)]
        seen.add([torch.allclose(image, q, atol=1e-3) for q in quarters].index(True))
    assert len(seen) > 1
    again = federate(plain, "iid", 2, shift=shift)
    assert again.partition.fingerprint == data.partition.fingerprint
    assert again.source.path == data.source.path  # made once, then found in the cache
    other = federate(plain, "iid", 2, seed=1, shift=shift)
    assert other.source.path != data.source.path


def test_groups_name_the_classes_their_own_way():
    plain = source()
    data = federate(plain, "iid", 6, shift="permute_labels(groups=3)")
    before = divide(plain, "iid", 6)
    maps = data.partition.label_maps
    assert all(sorted(m) == [0, 1, 2, 3] for m in maps.tolist())
    assert np.array_equal(maps[:3], maps[3:])
    assert len({tuple(m) for m in maps.tolist()}) == 3
    for i, rows in enumerate(before.clients):
        assert data.client(i).train.y.tolist() == maps[i][plain.y[rows.train]].tolist()
        assert data.client(i).test.y.tolist() == maps[i][plain.y[rows.test]].tolist()
    assert data.source is plain  # no image is copied


def test_shifts_add_up():
    plain = source()
    both = federate(plain, "iid", 3, shift="rotate(step=90) + permute_labels(groups=2)")
    maps = both.partition.label_maps
    rows = divide(plain, "iid", 3).clients[2].train
    assert both.client(2).train.y.tolist() == maps[2][plain.y[rows]].tolist()
    twice = federate(plain, "iid", 3, shift="permute_labels(groups=2) + permute_labels(groups=3)")
    one = federate(plain, "iid", 3, shift="permute_labels(groups=2)").partition.label_maps
    two = federate(plain, "iid", 3, shift="permute_labels(groups=3)").partition.label_maps
    renamed = [second[first] for first, second in zip(one, two, strict=True)]
    assert np.array_equal(twice.partition.label_maps, renamed)
    assert not np.array_equal(renamed[2], one[2][two[2]])  # the order matters
    later = federate(plain, twice.partition, shift="rotate(step=90)")
    assert np.array_equal(later.partition.label_maps, twice.partition.label_maps)


@pytest.mark.parametrize(
    ("shift", "sentence"),
    [
        ("permute_labels(groups=25)", "use fewer groups"),
        ("rotate(step=0)", "step must be"),
        ("rotate + rotate_images", "leave one of the rotations out"),
        ("rotate(angle=3)", "no argument 'angle'"),
    ],
)
def test_bad_shifts(shift, sentence):
    with pytest.raises(BadInput, match=sentence):
        federate(source(), "iid", 3, shift=shift)


def test_only_images_turn():
    table = Source.from_arrays(np.zeros((20, 3)), np.arange(20) % 2)
    with pytest.raises(BadInput, match="only images can be rotated"):
        federate(table, "iid", 2, shift="rotate")
