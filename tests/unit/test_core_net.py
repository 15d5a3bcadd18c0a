"""The net: named stages, weights always an argument, nothing remembered."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from functools import reduce

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.net import METHOD, Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from fedloom.errors import BadInput, UnknownName
from fedloom.models import split
from fedloom.models.resnet import BasicBlock
from helpers import mlp, same

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def linear(weight: float, width: int = 1) -> nn.Linear:
    """y = weight * x."""
    layer = nn.Linear(width, width, bias=False)
    nn.init.constant_(layer.weight, 0)
    layer.weight.data.fill_diagonal_(weight)
    return layer


def chain() -> Net:
    """input -> body (x2) -> head (x3)."""
    return Net((1,), body=linear(2), head=linear(3))


def outputs(net: Net, **how: object) -> dict[str, float]:
    return {k: v.item() for k, v in net(net.tree(), torch.ones(1, 1), **how).items()}


# ------------------------------------------------------------------ running


def test_stages_run_in_order_and_keep_their_names() -> None:
    assert outputs(chain()) == {"input": 1, "body": 2, "head": 6}


def test_want_runs_only_what_a_stage_needs() -> None:
    assert outputs(chain(), want="body") == {"input": 1, "body": 2}


def test_weights_are_an_argument() -> None:
    net = chain()
    other = {"body.weight": torch.tensor([[10.0]]), "head.weight": torch.tensor([[1.0]])}
    assert net(other, torch.ones(1, 1))["head"].item() == 10
    assert outputs(net)["head"] == 6
    assert net.stage(other, "head", torch.ones(1, 1)).item() == 1


def test_a_missing_key_is_an_error_and_never_the_last_tensor() -> None:
    net = mlp(norm=True)
    w = net.tree()
    net(w, X)
    for key in ("body.1.running_mean", "head.bias"):
        with pytest.raises(KeyError, match=key):
            net({k: v for k, v in w.items() if k != key}, X)


def test_the_template_remembers_nothing() -> None:
    """Running, training and binding other trees change neither `initial` nor `tree()`."""
    net = mlp(norm=True)
    before = net.tree()
    other = {k: v + 1 for k, v in before.items()}
    net(other, X, train=True)
    assert same(net.tree(), before)
    assert same(net.initial, before)
    net.tree()["head.bias"].add_(1)
    assert same(net.tree(), before)


def test_batch_norm_updates_the_tree_it_was_given() -> None:
    """Momentum 0.1 from 0: the running mean after one batch is a tenth of the batch's mean."""
    net = Net((4,), body=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    w, untouched = net.tree(), net.tree()
    net(w, X, train=True)
    assert torch.allclose(w["body.running_mean"], 0.1 * X.mean(0))
    assert w["body.num_batches_tracked"].item() == 1
    net(untouched, X, train=False)
    assert untouched["body.running_mean"].tolist() == [0] * 4


def test_train_names_the_stages_in_training_mode() -> None:
    net = Net((4,), body=nn.BatchNorm1d(4), mid=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    w = net.tree()
    net(w, X, train={"mid", "head"})
    assert w["body.num_batches_tracked"].item() == 0
    assert w["mid.num_batches_tracked"].item() == 1


def test_a_batch_of_one_runs_batch_norm_in_evaluation_mode() -> None:
    net = mlp(norm=True)
    w = net.tree()
    out = net(w, X[:1], train=True)
    assert torch.isfinite(out["head"]).all()
    assert w["body.1.num_batches_tracked"].item() == 0
    net(w, X, train=True)
    assert w["body.1.num_batches_tracked"].item() == 1


def test_a_batch_of_one_keeps_dropout_where_there_is_no_batch_norm() -> None:
    net = mlp(dropout=0.5, hidden=64)
    with rng_scope(0):
        z = net(net.tree(), X[:1], train=True)["body"]
    assert not torch.equal(z, net(net.tree(), X[:1])["body"])


def test_gradients_reach_the_tree() -> None:
    net = chain()
    w = {k: v.requires_grad_() for k, v in net.tree().items()}
    net(w, torch.ones(1, 1))["head"].sum().backward()
    assert (w["body.weight"].grad.item(), w["head.weight"].grad.item()) == (3, 2)


# ------------------------------------------------------------------ building


def test_insert_goes_between_the_feature_and_its_readers() -> None:
    """body 2 -> shift x5 -> head x3 = 30; a second head on the body keeps reading the body only if
    it is added after."""
    net = chain().add("other", linear(7), reads="body")
    net.insert("shift", linear(5))
    assert outputs(net) == {"input": 1, "body": 2, "shift": 10, "head": 30, "other": 70}
    assert (net.feature, net.representation, net.logits) == ("shift", "body", "head")
    assert net.path_to("head") == ["body", "shift", "head"]
    net.add("raw", linear(1), reads="body")
    assert outputs(net)["raw"] == 2


def test_insert_twice_stacks() -> None:
    net = chain().insert("a", linear(5)).insert("b", linear(10))
    assert net.path_to("head") == ["body", "a", "b", "head"]
    assert (net.feature, outputs(net)["head"]) == ("b", 300)


def test_insert_after_another_stage_leaves_the_feature() -> None:
    net = Net((1,), stem=linear(2), body=linear(3), head=linear(5))
    net(net.tree(), torch.ones(1, 1))  # the route is known by now and must be found anew
    net.insert("shift", linear(10), after="stem")
    assert net.path_to("head") == ["stem", "shift", "body", "head"]
    assert (net.feature, outputs(net)["head"]) == ("body", 300)
    with pytest.raises(UnknownName, match="stem"):
        net.insert("x", linear(1), after="stm")


def test_a_side_stage_runs_only_when_asked() -> None:
    net = chain().add("side", linear(7), reads=None)
    assert "side" not in outputs(net)
    assert net.stage(net.tree(), "side", torch.ones(1, 1)).item() == 7
    assert "side.weight" in net.tree()


def test_replace_takes_the_place_and_forgets_the_old_tensors() -> None:
    net = chain()
    net(net.tree(), torch.ones(1, 1))
    net.replace("head", nn.Linear(1, 4, bias=True))
    assert set(net.tree()) == {"body.weight", "head.weight", "head.bias"}
    assert net.tree()["head.weight"].shape == (4, 1)
    assert net.shape_of("head") == (4,)
    assert net.match("head.*") == {"head.weight", "head.bias"}


def test_replace_can_read_another_stage() -> None:
    net = Net((1,), stem=linear(2), body=linear(3), head=linear(5))
    net.replace("head", linear(7), reads="stem")
    assert outputs(net) == {"input": 1, "stem": 2, "body": 6, "head": 14}


def test_reconnect_keeps_module_weights_and_what_can_be_trained() -> None:
    net = Net((1,), stem=linear(2), body=linear(3), head=linear(5))
    net(net.tree(), torch.ones(1, 1))
    net.reconnect("head", reads="stem")
    assert outputs(net) == {"input": 1, "stem": 2, "body": 6, "head": 10}
    assert "head.weight" in net.params
    with pytest.raises(UnknownName, match="stem"):
        net.reconnect("head", reads="stm")


def test_frozen_parameters_are_not_trained_but_travel() -> None:
    fixed = linear(3).requires_grad_(False)
    net = Net((1,), body=linear(2), head=fixed)
    assert net.params == {"body.weight"}
    assert "head.weight" in net.tree()
    net.replace("head", linear(4))
    assert net.params == {"body.weight", "head.weight"}


def test_owners_of_stages() -> None:
    net = chain()
    with net.adding_for("dbe"):
        net.insert("dbe", linear(1))
    net.add("mine", linear(1), reads="body")
    assert net.owner == {"body": METHOD, "head": METHOD, "dbe": "dbe", "mine": METHOD}


@pytest.mark.parametrize("name", ["body", "input", "a.b", "forward", "tools"])
def test_names_a_stage_cannot_have(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        chain().add(name, linear(1), reads="body")


def test_one_stage_is_no_net() -> None:
    with pytest.raises(BadInput, match="two stages"):
        Net((1,), body=linear(1))


def test_reading_an_unknown_stage_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'body'"):
        chain().add("x", linear(1), reads="bdy")


def test_tools_are_no_part_of_the_model() -> None:
    net = chain()
    net.tools["generator"] = nn.Linear(3, 3)
    assert set(net.tree()) == {"body.weight", "head.weight"}
    assert not any("generator" in k for k in net.state_dict())


# ------------------------------------------------------------------ asking


def resnet_like() -> Net:
    body = nn.Sequential(BasicBlock(3, 4, 2, nn.BatchNorm2d), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net((3, 8, 8), body=body, head=nn.Linear(4, 2))


def test_tags_find_batch_norm_by_type() -> None:
    """`downsample.1` is a BatchNorm layer whose name does not say so."""
    net = resnet_like()
    layers = ("body.0.bn1", "body.0.bn2", "body.0.downsample.1")
    leaves = ("running_mean", "running_var", "num_batches_tracked")
    stats = {f"{p}.{leaf}" for p in layers for leaf in leaves}
    assert net.match("@stats") == stats
    assert net.match("@bn") == stats | {f"{p}.{k}" for p in layers for k in ("weight", "bias")}
    assert net.match("* !@bn") == {
        *(f"body.0.{c}.weight" for c in ("conv1", "conv2", "downsample.0")),
        *("head.weight", "head.bias"),
    }


def test_tags_match_nothing_without_batch_norm() -> None:
    assert mlp().match("@bn") == mlp().match("@stats") == frozenset()


def test_patterns_are_read_from_left_to_right() -> None:
    net = mlp()
    body = {"body.0.weight", "body.0.bias"}
    head = {"head.weight", "head.bias"}
    assert net.match("*") == body | head
    assert net.match("") == frozenset()
    assert net.match("* !head.*") == net.match("body.*") == body
    assert net.match("!head.* *") == body | head
    assert net.match("* !head.* head.bias") == body | {"head.bias"}
    assert net.match("*.bias") == {"body.0.bias", "head.bias"}


def test_matches_follow_the_net_as_it_grows() -> None:
    net = mlp()
    assert net.match("dbe.*") == frozenset()
    net.insert("dbe", nn.BatchNorm1d(5))
    assert "dbe.weight" in net.match("dbe.*") & net.match("@bn")


def test_tree_of_a_pattern() -> None:
    assert list(mlp().tree("head.*")) == ["head.weight", "head.bias"]


def test_params_are_what_is_no_buffer() -> None:
    net = mlp(norm=True)
    assert net.params == net.match("* !@stats")


def test_shape_of_needs_no_data() -> None:
    net = resnet_like()
    assert net.shape_of("body") == (4,)
    assert net.shape_of("head") == (2,)


def test_shape_of_takes_nothing_from_torchs_stream_and_moves_no_statistic() -> None:
    net = mlp(norm=True, dropout=0.5)
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    net.shape_of("body")
    assert torch.equal(torch.rand(1), wanted)
    assert net.tree()["body.1.num_batches_tracked"].item() == 0


def test_path_to_an_unknown_stage() -> None:
    with pytest.raises(UnknownName, match="hed"):
        chain().path_to("hed")


def test_fresh_is_another_start_and_the_same_for_the_same_key() -> None:
    net = mlp(norm=True)
    before = net.tree()
    a, again, b = net.fresh(0, "m"), net.fresh(0, "m"), net.fresh(1, "m")
    assert same(a, again)
    for tree in (a, b):
        assert tree.keys() == before.keys()
        assert not torch.equal(tree["head.weight"], before["head.weight"])
    assert not torch.equal(a["head.weight"], b["head.weight"])
    assert same(net.tree(), before)
    assert a["body.1.running_var"].tolist() == [1] * 5


def test_fresh_keeps_frozen_tensors() -> None:
    net = Net((4,), body=nn.Linear(4, 3).requires_grad_(False), head=nn.Linear(3, 2))
    start, other = net.tree(), net.fresh(0, "m")
    assert all(torch.equal(other[k], start[k]) for k in ("body.weight", "body.bias"))
    assert not torch.equal(other["head.weight"], start["head.weight"])
    other["body.weight"].add_(1)
    assert same(net.tree(), start)


# ------------------------------------------------------------------ tied weights, copies


class Tied(nn.Module):
    """One weight in two places: y = W^T W x."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(2, 2, bias=False)
        self.up = nn.Linear(2, 2, bias=False)
        self.up.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def test_tied_weights_are_one_key_bound_everywhere() -> None:
    """With W = 2 the output is 4x; a stale second place would give 2 * the initial value."""
    net = Net((2,), body=Tied(), head=nn.Linear(2, 2))
    assert [k for k in net.tree() if k.startswith("body")] == ["body.down.weight"]
    w = net.tree() | {"body.down.weight": 2 * torch.eye(2)}
    assert net(w, torch.ones(1, 2))["body"].tolist() == [[4, 4]]
    w["body.down.weight"].requires_grad_()
    net(w, torch.ones(1, 2))["body"].sum().backward()
    # d/dW sum(W W 1) at W = 2I: (W 1) 1^T + (W^T 1) 1^T = 4 everywhere, both places counted.
    assert w["body.down.weight"].grad.tolist() == [[4, 4], [4, 4]]


def test_weights_tied_across_stages_are_one_key() -> None:
    shared = nn.Linear(2, 2)
    net = Net((2,), body=shared, head=shared)
    assert list(net.tree()) == ["body.weight", "body.bias"]
    w = {"body.weight": 3 * torch.eye(2), "body.bias": torch.zeros(2)}
    assert net(w, torch.ones(1, 2))["head"].tolist() == [[9, 9]]


def test_weights_stay_tied_in_a_copy_that_grows() -> None:
    made = Net((2,), body=Tied(), head=nn.Linear(2, 2))
    made(made.tree(), torch.ones(1, 2))
    net = pickle.loads(pickle.dumps(copy.deepcopy(made)))
    net.insert("more", nn.Linear(2, 2))
    assert [k for k in net.tree() if k.startswith("body")] == ["body.down.weight"]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
def test_a_net_that_ran_is_copied_without_what_it_ran(way) -> None:
    """Also with a graph behind the tensors it is bound to, which cannot be copied or sent."""
    net = mlp(norm=True)
    w = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in net.tree().items()}
    derived = {k: v * 2 if v.is_floating_point() else v for k, v in w.items()}
    derived |= {k: v.detach() for k, v in derived.items() if "running" in k}
    net(derived, X, train=True)
    made = way(net)
    assert same(made.tree(), net.tree())
    assert torch.equal(made(made.tree(), X)["head"], net(net.tree(), X)["head"])
    assert (made.reads, made.params, made.feature) == (net.reads, net.params, net.feature)
    w = made.tree()
    made(w, X, train=True)
    assert w["body.1.num_batches_tracked"].item() == 1
    assert same(net.tree(), made.tree())


# ------------------------------------------------------------------ weights that are loaded


def _loaded(net: Net, w: Tree) -> None:
    net.load_state_dict(w)


def _assigned(net: Net, w: Tree) -> None:
    net.load_state_dict(w, assign=True)


def _by_stage(net: Net, w: Tree) -> None:
    for stage in ("body", "head"):
        part = {k.removeprefix(f"{stage}."): v for k, v in w.items() if k.startswith(stage)}
        net.get_submodule(stage).load_state_dict(part)


def _in_place(net: Net, w: Tree) -> None:
    with torch.no_grad():
        for k, v in w.items():
            reduce(getattr, k.split("."), net).copy_(v)


def _by_data(net: Net, w: Tree) -> None:
    for k, v in w.items():
        reduce(getattr, k.split("."), net).data = v


@pytest.mark.parametrize("load", [_loaded, _assigned, _by_stage, _in_place, _by_data])
@pytest.mark.parametrize("before", ["new", "measured", "copied", "sent", "split"])
def test_weights_that_are_loaded_are_the_initial_ones(load, before: str) -> None:
    """By whatever idiom, and whatever was done with the net before."""
    net = mlp(norm=True)
    if before == "measured":
        net.shape_of("head")
    if before == "copied":
        net = copy.deepcopy(net)
    if before == "sent":
        net = pickle.loads(pickle.dumps(net))
    if before == "split":
        plain = nn.Sequential(OrderedDict(net.named_children()))
        net = split(plain, "head", shape=net.shape)
    w = {k: v + 1 for k, v in net.tree().items()}
    load(net, {k: v.clone() for k, v in w.items()})
    assert same(net.tree(), w)
    assert same(copy.deepcopy(net).initial, w)
    assert same(pickle.loads(pickle.dumps(net)).tree(), w)


def test_a_call_with_other_weights_is_not_loading() -> None:
    net = mlp(norm=True)
    before = net.tree()
    w = {k: nn.Parameter(v + 1) if k in net.params else v + 1 for k, v in before.items()}
    net(w, torch.ones(3, 4), train=True)
    assert same(net.tree(), before)
    assert same(copy.deepcopy(net).tree(), before)


def test_a_parameter_that_is_replaced_counts() -> None:
    net = mlp()
    net.head.bias = nn.Parameter(torch.ones(3))
    assert torch.equal(net.tree()["head.bias"], torch.ones(3))
    net(net.tree(), torch.ones(2, 4))
    net.head.bias = nn.Parameter(torch.zeros(3))
    assert torch.equal(copy.deepcopy(net).initial["head.bias"], torch.zeros(3))
