"""Augmentations: what they may produce, from which draws."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.rng import generator
from fedloom.data.augment import augmentation, rotate
from fedloom.errors import BadInput, UnknownName


def images(b=64, c=3, h=6, w=5):
    return torch.randint(1, 256, (b, c, h, w), generator=generator(0), dtype=torch.uint8)


def test_crop_is_a_window_of_the_padded_image():
    x = images()
    out = augmentation("crop(pad=2)")(x, generator(1))
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    places = set()
    for i in range(len(x)):
        windows = [
            (t, s)
            for t in range(5)
            for s in range(5)
            if torch.equal(out[i], padded[i, :, t : t + 6, s : s + 5])
        ]
        assert len(windows) == 1
        places.add(windows[0])
    assert len(places) > 15  # of 25: draws are independent


def test_flip_turns_whole_images():
    x = images()
    out = augmentation("flip")(x, generator(1))
    flipped = [torch.equal(o, i.flip(-1)) for o, i in zip(out, x, strict=True)]
    same = [torch.equal(o, i) for o, i in zip(out, x, strict=True)]
    assert all(a != b for a, b in zip(flipped, same, strict=True))
    assert 16 < sum(flipped) < 48
    assert torch.equal(augmentation("flip(p=1)")(x, generator(1)), x.flip(-1))


@pytest.mark.parametrize("quarter", [0, 1, 2, 3])
@pytest.mark.parametrize("side", [4, 7, 28])
def test_quarter_turns_are_exact(quarter, side):
    x = images(3, 2, side, side)
    turned = rotate(x, torch.full((3,), 90.0 * quarter)).round().to(torch.uint8)
    assert torch.equal(turned, x.rot90(quarter, (-2, -1)))


def test_rotation_of_a_wide_image_keeps_its_shape():
    """A 1 x 9 bar in a 9 x 17 image, turned by 90 degrees, is a 9 x 1 bar: no stretching."""
    x = torch.zeros(1, 1, 9, 17)
    x[0, 0, 4, 4:13] = 1
    expected = torch.zeros(1, 1, 9, 17)
    expected[0, 0, :, 8] = 1
    torch.testing.assert_close(rotate(x, torch.tensor([90.0])), expected, atol=1e-5, rtol=0)


def test_rotation_stays_within_its_degrees():
    x = images(8, 1, 9, 9)
    out = augmentation("rotation(degrees=0)")(x, generator(0))
    torch.testing.assert_close(out, x.float(), atol=1e-3, rtol=0)
    assert not torch.equal(augmentation("rotation")(x, generator(0)).round(), x.float())


def test_same_generator_same_images():
    augment = augmentation("crop(pad=4) + flip + rotation(degrees=30)")
    x = images()
    a, b, c = (augment(x, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert a.shape == x.shape
    assert torch.equal(x, images())  # the input is left alone


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("crop(pad=0)", BadInput),
        ("crop(size=3)", BadInput),
        ("flip(p=2)", BadInput),
        ("rotation(-3)", BadInput),
        ("mirror", UnknownName),
    ],
)
def test_bad_expressions(expression, error):
    with pytest.raises(error):
        augmentation(expression)
