"""`split`: the net computes what the module computes, or the error says why it cannot."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput, UnknownName
from fedloom.models import split

SHAPE = (3, 8, 8)


class Residual(nn.Module):
    """A user's network with a forward of its own: a skip, functional calls, BatchNorm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)  # registered first, used last
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.bn(self.conv(x)))
        z = z + self.inner(z)
        return self.fc(self.drop(torch.flatten(F.adaptive_avg_pool2d(z, 1), 1)))  # type: ignore[no-any-return]


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.module, self.after = module, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.module(x))  # type: ignore[no-any-return]


def row() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
            ),
            flat=nn.Flatten(),
            classifier=nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.3), nn.Linear(8, 5)),
        )
    )


def same_in_both_modes(net, module: nn.Module) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(6, *SHAPE)
    for train in (False, True):
        copied, w = deepcopy(module), net.tree()
        with rng_scope("test"):
            expected = copied.train(train)(x)
        with rng_scope("test"):
            found = net(w, x, train=train)["head"]
        assert torch.allclose(found, expected, atol=1e-6)
        assert {k: v.dtype for k, v in w.items()} == {k: net.initial[k].dtype for k in w}


def test_any_forward_is_kept() -> None:
    module = Residual()
    net = split(module, head="fc", shape=SHAPE)
    same_in_both_modes(net, module)
    assert net.shape_of("body") == (6,)
    assert net.match("head.*") == {"head.weight", "head.bias"}
    assert "body.bn.running_var" in net.match("@stats")
    assert set(net.keys) == {
        k.replace("fc.", "head.") if k.startswith("fc.") else f"body.{k}"
        for k in module.state_dict()
    }


def test_the_module_is_untouched() -> None:
    module = Residual().train()
    before = deepcopy(module.state_dict())
    net = split(module, head="fc", shape=SHAPE)
    w = {k: v + 1 for k, v in net.tree().items()}
    net(w, torch.randn(4, *SHAPE), train=True)
    assert isinstance(module.fc, nn.Linear)
    assert module.training
    assert module.bn.training
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_torch_stream_is_untouched() -> None:
    module = Residual()
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    split(module, head="fc", shape=SHAPE)
    assert torch.equal(torch.rand(2), expected)


def test_dotted_path() -> None:
    module = row()
    net = split(module, head="classifier.2", shape=SHAPE)
    same_in_both_modes(net, module)
    assert net.shape_of("body") == (8,)


def test_a_head_of_several_layers() -> None:
    module = row()
    net = split(module, head="classifier", shape=SHAPE)
    same_in_both_modes(net, module)
    assert net.shape_of("body") == (64,)


def test_further_stages() -> None:
    module = row()
    net = split(module, head="classifier.2", shape=SHAPE, early="features.1", mid="flat")
    same_in_both_modes(net, module)
    assert list(net.reads) == ["early", "mid", "body", "head"]
    assert net.feature == "body"
    assert net.shape_of("early") == (4, 6, 6)
    assert net.shape_of("mid") == (64,)
    assert "mid.features_3.running_mean" in net.match("@stats")


def test_a_container_as_a_stage_and_nothing_left_for_a_body() -> None:
    module = row()
    net = split(module, head="classifier", shape=SHAPE, early="features", mid="flat")
    same_in_both_modes(net, module)
    assert list(net.reads) == ["early", "mid", "head"]
    assert net.feature == "mid"


def test_tied_weights_are_one_tensor() -> None:
    """One matrix [8, 8] used in body and head: 64 values, one key, and both places change."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
            self.last.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]

    net = split(Tied(), head="last", shape=(8,))
    assert net.keys == ("body.inner.weight", "head.bias")
    w = {"body.inner.weight": 2 * torch.eye(8), "head.bias": torch.zeros(8)}
    x = torch.randn(3, 8)
    assert torch.allclose(net(w, x)["head"], 2 * torch.tanh(2 * x))


def test_token_indices() -> None:
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
    net = split(module, head="2", shape=(5,))
    assert net.shape_of("body") == (20,)
    x = torch.randint(9, (4, 5))
    assert torch.equal(net(net.tree(), x)["head"], module(x))


def test_an_embedding_that_the_input_does_not_reach() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.fc = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc((x + self.places(torch.arange(5))).mean(1))  # type: ignore[no-any-return]

    net = split(Positions(), head="fc", shape=(5, 4))
    assert net.input_dtype == torch.float32


def test_random_layers_are_compared_on_the_same_draws() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    net = split(nn.Sequential(Noise(), nn.Linear(8, 3)), head="1", shape=(8,))
    assert net.shape_of("head") == (3,)


# ---------------------------------------------------------------------- refusals


def test_unknown_submodule() -> None:
    with pytest.raises(UnknownName, match="unknown submodule of Residual 'fcc'; did you mean 'fc'"):
        split(Residual(), head="fcc", shape=SHAPE)
    with pytest.raises(UnknownName, match="did you mean 'features"):
        split(row(), head="classifier.2", shape=SHAPE, early="feature")


@pytest.mark.parametrize("after", [nn.Softmax(dim=1), nn.Linear(4, 4), nn.Dropout(0.9)])
def test_something_after_the_head(after: nn.Module) -> None:
    """Dropout after the head shows in training mode only: 0.9 changes the 16 probed values."""
    with pytest.raises(BadInput, match=r"cannot be cut at 'module.fc'.*makes the final output"):
        split(Wrapped(Residual(), after), head="module.fc", shape=SHAPE)


def test_a_head_that_reads_more_than_one_tensor() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Bilinear(8, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x, x)  # type: ignore[no-any-return]

    with pytest.raises(BadInput, match="cannot be cut at 'head'"):
        split(Two(), head="head", shape=(8,))


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 3)), r"returns shape \(4, 2, 4, 4\)"),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Sequential(), nn.Flatten(0)), "returns shape"),
        (nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 2)), "cannot be run on inputs of shape"),
    ],
)
def test_outputs_that_are_no_logits(module: nn.Module, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        split(module, head="1", shape=SHAPE)


def test_several_outputs() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.fc(x), x

    with pytest.raises(BadInput, match="returns tuple"):
        split(Pair(), head="fc", shape=(8,))


def test_stages_of_a_module_that_is_no_row() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.fc = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            z = self.one(x)
            return self.fc(z + self.two(z))  # type: ignore[no-any-return]

    with pytest.raises(BadInput, match=r"write it as one nn.Sequential or name only the head"):
        split(Skip(), head="fc", shape=(8,), early="one")
    with pytest.raises(BadInput, match="'fc', which does not come after"):
        split(Residual(), head="fc", shape=SHAPE, early="conv")


def test_stages_out_of_order() -> None:
    with pytest.raises(
        BadInput, match=r"stage 'b' ends at 'features.0', which does not come after"
    ):
        split(row(), head="classifier.2", shape=SHAPE, a="flat", b="features.0")
    with pytest.raises(BadInput, match="'body' is made by split itself"):
        split(row(), head="classifier.2", shape=SHAPE, body="flat")


def test_a_stage_inside_an_opaque_module() -> None:
    module = nn.Sequential(OrderedDict(res=Residual(), fc=nn.Linear(4, 2)))
    with pytest.raises(BadInput, match=r"'res.conv' is inside a module"):
        split(module, head="fc", shape=SHAPE, early="res.conv")


def test_layers_that_hold_their_weights_elsewhere_are_not_trained_in_silence() -> None:
    """A layer that ignores the tree's tensors would never learn; other weights reveal it."""

    class Stubborn(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.hidden = [self.weight]

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.hidden[0], self.bias)

    with pytest.raises(BadInput, match=r"with other weights.*keeps its weights outside"):
        split(nn.Sequential(Stubborn(), nn.Linear(8, 3)), head="1", shape=(8,))
