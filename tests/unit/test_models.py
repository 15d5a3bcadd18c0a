"""The papers' networks: sizes worked out by hand, starts that depend on the seed alone."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput, UnknownName
from fedloom.models import build_model, models
from fedloom.models.fasttext import MeanEmbedding
from fedloom.models.gaussian import Gaussian, Sample
from fedloom.models.weights import fill

GREY, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)

# expression, input, classes, feature, parameters as worked out in `test_parameter_counts`
NETWORKS = [
    ("mlp", (1, 8, 8), 10, (32,), 6_570),
    ("mlp(hidden=[])", (5,), 3, (5,), 18),
    ("mlp_fedcr", GREY, 10, (1024,), 1_863_690),
    ("mlp_fedcr(gaussian=256)", GREY, 10, (18, 256), 2_380_810),
    ("cnn4", GREY, 10, (512,), 582_026),
    ("cnn4", CIFAR, 100, (512,), 924_708),
    ("cnn4", TINY, 200, (512,), 5_694_600),
    ("cnn_fedpac", GREY, 62, (128,), 123_774),
    ("cnn_fedpac", CIFAR, 10, (128,), 107_690),
    ("cnn_fedcr", CIFAR, 100, (1024,), 2_898_852),
    ("cnn_fedcr(gaussian=512, samples=3)", CIFAR, 100, (3, 512), 3_897_252),
    ("cnn_fedcr", GREY, 10, (1024,), 2_213_578),
    ("cnn_fedcr(published=true)", GREY, 10, (1024,), 1_258_798),
    ("groupnorm_cnn", GREY, 10, (128,), 371_850),
    ("small_cnn", GREY, 10, (64,), 52_138),
    ("small_cnn(channels=[4], hidden=8, norm=batch)", CIFAR, 10, (8,), 8_426),
    ("small_cnn(channels=[4], hidden=8, norm=none)", CIFAR, 10, (8,), 8_402),
    ("vgg11", CIFAR, 10, (512,), 9_225_610),
    ("resnet18", TINY, 1000, (512,), 11_689_512),
    ("resnet18(norm=group, stem=cifar)", CIFAR, 10, (512,), 11_173_962),
    ("efficientnet_lite0", TINY, 1000, (1280,), 4_652_008),
    ("efficientnet_lite0(after=stage6)", (192, 3, 3), 7, (1280,), 1_026_567),
    ("cct7_3x1", CIFAR, 100, (256,), 3_783_269),
    ("fasttext", (200,), 4, (32,), 3_157_508),
    ("har_cnn", (9, 1, 128), 6, (512,), 2_253_958),
    ("har_cnn(published=true)", (6, 128), 6, (1664,), 2_253_094),
]


def count(net: Net) -> int:
    return sum(v.numel() for k, v in net.initial.items() if k in net.params)


@pytest.mark.parametrize(("spec", "shape", "classes", "feature", "parameters"), NETWORKS)
def test_parameter_counts(
    spec: str,
    shape: tuple[int, ...],
    classes: int,
    feature: tuple[int, ...],
    parameters: int,
) -> None:
    """Weights plus biases, layer by layer (k: kernel area).

    mlp                64*64+64 = 4160, 64*32+32 = 2080, 32*10+10 = 330
    mlp linear         5*3+3
    mlp_fedcr          784*1024+1024 = 803840, 1024*1024+1024 = 1049600, 1024*10+10 = 10250
      V=256            the first two, 1024*512+512 = 524800, 256*10+10 = 2570
    cnn4 28x28         1*25*32+32 = 832, 32*25*64+64 = 51264, 1024*512+512 = 524800, 5130
         32x32         2432, 51264, 1600*512+512 = 819712, 512*100+100 = 51300
         64x64         2432, 51264, 10816*512+512 = 5538304, 512*200+200 = 102600
    cnn_fedpac grey    1*25*16+16 = 416, 16*25*32+32 = 12832, 800*128+128 = 102528, 128*62+62 = 7998
      colour           1216, 12832, 32*9*64+64 = 18496, 576*128+128 = 73856, 1290
    cnn_fedcr CIFAR    3*25*64+64 = 4864, 64*25*64+64 = 102464, 1600*1024+1024 = 1639424, 1049600,
                       1024*100+100 = 102500
      V=512            the first four, 1024*1024+1024 = 1049600, 512*100+100 = 51300
      grey             1664, 102464, 1024*1024+1024 = 1049600, 1049600, 10250
      published        104, 4*25*12+12 = 1212, 192*1024+1024 = 197632, 1049600, 10250
    groupnorm_cnn      640+128, 64*9*128+128+256 = 74112, twice 128*9*128+128+256 = 147840, 1290
    small_cnn          1*9*8+8 = 80, 8*9*16+16 = 1168, 784*64+64 = 50240, 650
      batch            3*9*4+4 = 112, 8, 4*256*8+8 = 8200, 16, 90
    vgg11              1792, 73856, 295168, 590080, 1180160, three times 2359808, 512*10+10 = 5130
    resnet18           torchvision's number, 11689512
      group, cifar     11689512 - 513000 (fc) + 5130 - 3*64*(49-9) = 7680
    efficientnet_lite0 the published number of the network with 1000 classes, 4652008
      after stage6     192*1152+2304 = 223488, 1152*9+2304 = 12672, 1152*320+640 = 369280,
                       320*1280+2560 = 412160, 1280*7+7 = 8967
    cct7_3x1           3*9*256 = 6912, 256*256 positions = 65536, norm 512, pool 257, 25700;
                       7 layers of 2*512 + 256*768 + 65792 + 131584 + 131328 = 526336
    fasttext           98635*32 = 3156320, 32*32+32 = 1056, 32*4+4 = 132
    har_cnn            9*9*32+32 = 2624, 32*9*64+64 = 18496, 1664*1024+1024 = 1704960,
                       1024*512+512 = 524800, 3078; six sensors: 864 fewer
    """
    net = build_model(spec, shape, classes, seed=0)
    assert count(net) == parameters
    x = torch.zeros(3, *shape, dtype=net.input_dtype)
    out = net(net.tree(), x, train=True)
    assert out[net.feature].shape == (3, *feature)
    assert out[net.logits].shape == (3, *feature[:-1], classes)
    assert torch.isfinite(out[net.logits]).all()


def test_every_registered_network_is_tested_here() -> None:
    # Tested where its libraries are installed, or where data has several inputs.
    elsewhere = {"timm_encoder", "transformers_encoder", "fusion"}
    assert {spec.split("(")[0] for spec, *_ in NETWORKS} | elsewhere == set(models)


@pytest.mark.parametrize("spec", ["mlp", "groupnorm_cnn", "resnet18(stem=cifar)", "cct7_3x1"])
def test_the_seed_decides_the_start_and_nothing_else_is_disturbed(spec: str) -> None:
    torch.manual_seed(7)
    undisturbed = torch.rand(3)
    torch.manual_seed(7)
    first = build_model(spec, (1, 8, 8), 10, seed=3).initial
    assert torch.equal(torch.rand(3), undisturbed)
    again = build_model(spec, (1, 8, 8), 10, seed=3).initial
    other = build_model(spec, (1, 8, 8), 10, seed=4).initial
    assert all(torch.equal(v, again[k]) for k, v in first.items())
    assert any(not torch.equal(v, other[k]) for k, v in first.items())


def test_another_start_keeps_the_distribution_of_the_first() -> None:
    """He: variance 2 / (9 * 512) at VGG's last convolution; CCT: 0.02 cut at +-2 absolute."""
    vgg = build_model("vgg11", CIFAR, 10, seed=0)
    wide = vgg.fresh(1)["body.18.weight"]
    assert wide.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.02)
    assert vgg.fresh(1)["body.18.bias"].abs().max() == 0
    cct = build_model("cct7_3x1", CIFAR, 100, seed=0)
    tree = cct.fresh(1)
    assert tree["body.1.table"].std().item() == pytest.approx(0.2, rel=0.02)
    assert tree["body.2.mlp.0.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert not torch.equal(tree["body.1.table"], cct.initial["body.1.table"])


def test_fine_stages_are_the_same_network() -> None:
    body, fine = (build_model(spec, GREY, 10, seed=0) for spec in ("cnn4", "cnn4(stages=fine)"))
    assert list(fine.reads) == ["conv1", "conv2", "fc", "head"]
    assert fine.feature == "fc"
    x = torch.rand(4, *GREY)
    assert torch.equal(
        body(body.tree(), x)["head"],
        fine(fine.tree(), x)["head"],
    )
    assert {k.removeprefix("body.") for k in body.keys} == set(fine.keys)


def test_fine_resnet_is_the_same_network() -> None:
    body, fine = (
        build_model(f"resnet18(stem=cifar, stages={s})", (1, 8, 8), 10, seed=0)
        for s in ("body", "fine")
    )
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(body(body.tree(), x)["head"], fine(fine.tree(), x)["head"])


def test_an_insertion_between_fine_stages_changes_what_follows_only() -> None:
    net = build_model("cnn4(stages=fine)", GREY, 10, seed=0)
    x, w = torch.rand(2, *GREY), net.tree()
    before = net(w, x)
    net.insert("shift", nn.Tanh(), after="conv1")
    after = net(w, x)
    assert net.feature == "fc"
    assert torch.equal(before["conv1"], after["conv1"])
    assert not torch.equal(before["conv2"], after["conv2"])


def test_batchnorm_keys_are_torchvisions() -> None:
    net = build_model("resnet18", CIFAR, 10, seed=0)
    norms = net.match("@bn")
    assert "body.bn1.weight" in norms
    assert "body.layer2.0.downsample.1.running_mean" in norms
    assert len(norms) == 5 * 20
    assert "body.layer4.1.conv2.weight" in net.keys
    group = build_model("resnet18(norm=group)", CIFAR, 10, seed=0)
    assert not group.match("@bn")
    assert set(group.keys) == set(net.keys) - net.match("@stats")


# ---------------------------------------------------------------------- single layers


def test_gaussian_and_sample() -> None:
    """With weight 0 and bias (1, -2 | 0, 0): mean (1, -2), deviation softplus(0) = log 2."""
    layer = Gaussian(3, 2)
    with torch.no_grad():
        layer.fc.weight.zero_()
        layer.fc.bias.copy_(torch.tensor([1.0, -2.0, 0.0, 0.0]))
        both = layer(torch.zeros(20_000, 3))
        assert both.shape == (20_000, 2, 2)
        assert torch.allclose(both[0], torch.tensor([[1.0, -2.0], [0.6931472, 0.6931472]]))
        with rng_scope("test"):
            z = Sample(3).eval()(both)
        with rng_scope("test"):
            assert torch.equal(Sample(3)(both), z)
    assert z.shape == (20_000, 3, 2)
    assert torch.allclose(z.mean((0, 1)), torch.tensor([1.0, -2.0]), atol=0.02)
    assert torch.allclose(z.std((0, 1)), torch.tensor([0.6931, 0.6931]), atol=0.02)


def test_mean_embedding() -> None:
    """Vectors 1 -> 2, 2 -> 4, padding 0 -> 0; text [1, 2, 0, 0]: 6/4 over positions, 6/2 words."""
    for over, expected in (("positions", 1.5), ("words", 3.0)):
        layer = MeanEmbedding(3, 1, over)  # type: ignore[arg-type]
        with torch.no_grad():
            layer.table.weight.copy_(torch.tensor([[0.0], [2.0], [4.0]]))
        assert layer(torch.tensor([[1, 2, 0, 0], [0, 0, 0, 0]])).flatten().tolist() == [expected, 0]


def test_fasttext_published_representation_is_a_log_softmax() -> None:
    net = build_model("fasttext(published=true)", (6,), 4, seed=0, vocabulary=50)
    out = net(net.tree(), torch.randint(50, (5, 6)))
    assert torch.allclose(out["body"].exp().sum(1), torch.ones(5))
    assert net.initial["body.0.table.weight"].shape == (50, 32)


def test_cct_is_deterministic_in_evaluation_and_draws_from_the_default_stream() -> None:
    net = build_model("cct7_3x1", (1, 8, 8), 10, seed=0)
    x, w = torch.rand(4, 1, 8, 8), net.tree()
    assert torch.equal(net(w, x)["head"], net(w, x)["head"])
    with rng_scope("a"):
        first = net(w, x, train=True)["head"]
    with rng_scope("a"):
        assert torch.equal(net(w, x, train=True)["head"], first)
    with rng_scope("b"):
        assert not torch.equal(net(w, x, train=True)["head"], first)


# ---------------------------------------------------------------------- what a user may ask for


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        ("cnn4", (1, 8, 8), "cnn4 needs images of at least 16x16 pixels, these are 8x8; use mlp"),
        ("cnn4", (64,), "cnn4 takes images"),
        ("cnn4(stages=all)", GREY, "stages = 'all' is unknown; use 'body' or 'fine'"),
        ("cnn4(stage=fine)", GREY, "did you mean 'stages'"),
        ("cnn5", GREY, "did you mean 'cnn4'"),
        ("cnn_fedpac", (1, 8, 8), "at least 12x12"),
        ("small_cnn(norm=group)", GREY, "norm = 'group' is unknown; use 'none' or 'batch'"),
        ("vgg11", GREY, "vgg11 needs images of at least 32x32 pixels"),
        ("mlp(hidden=64)", GREY, r"hidden = 64 is not a list of int; write \[64\]"),
        ("resnet18(norm=layer)", CIFAR, "use 'batch' or 'group'"),
        ("resnet18(norm=group, groups=3)", CIFAR, "groups=3 does not divide"),
        ("resnet18(stem=tiny)", CIFAR, "use 'imagenet' or 'cifar'"),
        ("fasttext", GREY, "fasttext takes texts"),
        ("fasttext(mean=all)", (9,), "use 'positions' or 'words'"),
        ("har_cnn", (9, 20), "at least 28 steps, these have 20"),
        ("har_cnn", CIFAR, "har_cnn takes windows"),
        ("mlp_fedcr(gaussian=2, samples=0)", GREY, "samples=0"),
    ],
)
def test_errors(spec: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=says):
        build_model(spec, shape, 10, seed=0)


def test_smallest_images_work() -> None:
    for spec, side in (("cnn4", 16), ("cnn_fedpac", 12), ("cnn_fedcr", 16), ("vgg11", 32)):
        net = build_model(spec, (1, side, side), 10, seed=0)
        assert net.shape_of(net.logits) == (10,)
    assert build_model("cnn_fedpac", (3, 16, 16), 10, seed=0).shape_of("body") == (128,)
    assert build_model("har_cnn", (3, 28), 6, seed=0).shape_of("body") == (512,)


def test_a_net_starts_many_runs() -> None:
    mine = build_model("mlp", (1, 8, 8), 10, seed=0)
    one, two = (build_model(mine, (1, 8, 8), 10, seed=s) for s in (1, 2))
    one.insert("shift", nn.Tanh())
    assert "shift" not in two.reads
    assert "shift" not in mine.reads
    w = {k: torch.zeros_like(v) for k, v in two.initial.items()}
    assert two(w, torch.ones(2, 1, 8, 8))["head"].abs().max() == 0
    assert all(torch.equal(two.initial[k], v) for k, v in mine.initial.items())


def test_a_net_must_fit_the_data() -> None:
    mine = build_model("mlp", (1, 8, 8), 10, seed=0)
    with pytest.raises(BadInput, match="has 10 outputs, the data have 7 classes"):
        build_model(mine, (1, 8, 8), 7, seed=0)
    with pytest.raises(BadInput, match="made for inputs of shape"):
        build_model(mine, GREY, 10, seed=0)
    with pytest.raises(BadInput, match="at least two classes"):
        build_model("mlp", GREY, 1, seed=0)


def test_a_module_is_split_before_its_last_linear_layer() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
    kept = deepcopy(module.state_dict())
    net = build_model(module, (1, 8, 8), 3, seed=0)
    assert net.keys == ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
    assert all(torch.equal(v, kept[k]) for k, v in module.state_dict().items())
    with pytest.raises(BadInput, match="no linear layer with 4 outputs"):
        build_model(module, (1, 8, 8), 4, seed=0)


# ---------------------------------------------------------------------- timm


def test_importing_the_package_imports_no_network_and_no_timm() -> None:
    code = "import sys, fedloom.models as m; list(m.models); assert 'timm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, fedloom.models; assert 'fedloom.models.resnet' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_timm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match=r"pip install 'fedloom\[timm\]'"):
        build_model("timm_encoder", CIFAR, 10, seed=0)


class FakeEncoder(nn.Module):
    """Has what timm gives a model: a configuration that names its classifier."""

    default_cfg = {"classifier": "fc"}  # noqa: RUF012

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3)
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x)).mean((2, 3))  # type: ignore[no-any-return]


def fake_create(name: str, pretrained: bool, num_classes: int, in_chans: int) -> nn.Module:
    assert num_classes == 0
    if name.endswith("broken"):
        raise RuntimeError("invalid pretrained tag")
    if pretrained:
        raise ConnectionError("no route to the hub")
    return FakeEncoder(in_chans)


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        create_model=fake_create,
        is_model=lambda name: name.split(".")[0] == "tiny",
        list_models=lambda: ["tiny"],
    )
    monkeypatch.setitem(sys.modules, "timm", fake)  # type: ignore[arg-type]


@pytest.mark.usefixtures("fake_timm")
def test_timm_encoder_logic() -> None:
    with rng_scope("file"):
        state = {**FakeEncoder(3).state_dict(), "fc.weight": torch.zeros(1000, 6)}
    net = build_model("timm_encoder(name=tiny)", CIFAR, 10, seed=0)
    fill(net, state, "fc.* head.*", "the file")
    assert torch.equal(net.initial["body.conv.weight"], state["conv.weight"])
    assert net.initial["body.bn.running_mean"].abs().max() == 0
    assert net.initial["body.bn.num_batches_tracked"] == 0
    assert net.shape_of("body") == (6,)


@pytest.mark.usefixtures("fake_timm")
@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ("timm_encoder(name='local-dir:./saved')", True),
        ("timm_encoder(name='hf-hub:owner/saved')", True),
        ("timm_encoder(name='local-dir:./saved', pretrained=false)", False),
        ("timm_encoder(name=tiny)", False),
    ],
)
def test_a_place_of_weights_is_asked_for_them(spec: str, asks: bool) -> None:
    """Whoever names a folder does not get random weights without a word."""
    if asks:
        with pytest.raises(BadInput, match="could not get the pretrained weights"):
            build_model(spec, CIFAR, 10, seed=0)
    else:
        assert build_model(spec, CIFAR, 10, seed=0).shape_of("body") == (6,)


@pytest.mark.usefixtures("fake_timm")
@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        ("timm_encoder(name=tinny)", CIFAR, "unknown timm encoder 'tinny'; did you mean 'tiny'"),
        ("timm_encoder(name=tiny, pretrained=true)", CIFAR, "no route to the hub.*start = 'FILE'"),
        ("timm_encoder(name='tiny.broken')", CIFAR, "timm cannot build 'tiny.broken' .invalid"),
        ("timm_encoder(name=tiny)", (3, 2, 2), "does not take inputs of shape"),
    ],
)
def test_timm_encoder_errors(spec: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=says):
        build_model(spec, shape, 10, seed=0)


@pytest.fixture(scope="module")
def real_timm() -> Any:
    """Timm imports torchvision. PyPI's has operations for GPUs, which a torch for CPUs cannot load;
    its Python part, all that timm reads, wants the names of two."""
    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    except ImportError:
        pytest.skip("the extra timm (with torchvision) is not installed")
    return pytest.importorskip("timm")


@pytest.mark.usefixtures("real_timm")
def test_real_timm_encoder() -> None:
    ours = build_model("resnet18", TINY, 10, seed=0)
    net = build_model("timm_encoder(name=resnet18)", TINY, 10, seed=0)
    assert set(net.keys) == set(ours.keys)
    x = torch.rand(2, *TINY)
    assert torch.allclose(net(ours.tree(), x)["head"], ours(ours.tree(), x)["head"], atol=1e-5)


def test_a_real_timm_folder_brings_its_weights(real_timm: Any, tmp_path: Path) -> None:
    with rng_scope("another training"):
        saved = real_timm.create_model("test_resnet", num_classes=3)
    real_timm.models.save_for_hf(saved, tmp_path)
    net = build_model(f"timm_encoder(name='local-dir:{tmp_path}')", TINY, 10, seed=0)
    assert torch.equal(net.initial["body.conv1.0.weight"], saved.state_dict()["conv1.0.weight"])
