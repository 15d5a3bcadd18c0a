"""Attacks by settings alone, played: each gives a row of the site to the last digits, and each is
refused by the default policy. What a server would do with checkpoints is done here with uploads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.core.client import client
from fedloom.core.message import Up
from fedloom.core.round import Round, initial_server, send
from fedloom.core.server_optimizers import server_step
from fedloom.core.site import Visit
from fedloom.data import FederatedData
from fedloom.policy import Policy, facts_of, refusals
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment

EXACT = 1e-3
"""Relative distance of a row that is as good as read."""
Change = tuple[Tensor, Tensor]
"""Of the first layer's weights [units, inputs] and biases [units], divided by the rate."""


def experiment(**keys: Any) -> Experiment:
    fixed = {"data": "digits", "partition": "iid", "clients": 6, "min_clients": 2, "lr": 0.05}
    return Experiment.build(RunConfig.checked({"model": "mlp(hidden=[64])", **fixed, **keys}))


def site(of: Experiment) -> FederatedData:
    assert isinstance(of.data, FederatedData)
    return of.data


def rows(of: Experiment) -> Tensor:
    train = site(of).client(0).train
    return train.x(torch.arange(len(train))).flatten(1).double()


def refused(of: Experiment) -> set[str]:
    listed = refusals(Policy.checked(), of.config, facts_of(site(of), 0))
    return {refusal.rule for refusal in listed}


def answer(of: Experiment, plan: int = 0) -> tuple[dict[str, Tensor], Up]:
    """What client 0 gets in the first round, and what it sends."""
    r = Round(of.program, of.plans[plan], initial_server(of.program), range(6))
    down = send(r, 0)
    return down.state.get("model", {}), client(Visit(of.program, 0, site(of).client(0), down))[0]


def change(of: Experiment, layer: str = "") -> Change:
    """Of this layer, by default the first one."""
    before, up = answer(of)
    after = up.state["model"]
    weight = next(k for k in after if k.startswith(layer) and k.endswith("weight"))
    bias = weight.replace("weight", "bias")
    lr = -of.program.method.opt.lr
    return (
        (after[weight].double() - before[weight].double()) / lr,
        (after[bias].double() - before[bias].double()) / lr,
    )


def rows_read(update: Change, known: Tensor) -> set[int]:
    """Rows that stand in an update as the ratio of a unit's weights and bias."""
    weights, biases = update
    moved = biases.abs() > 1e-5
    ratios = weights[moved] / biases[moved][:, None]
    if not len(ratios):
        return set()
    distance = torch.cdist(ratios, known) / known.norm(dim=1)
    return set(distance.argmin(1)[distance.min(1).values < EXACT].tolist())


def difference(a: Change, times_a: int, b: Change, times_b: int) -> Change:
    return times_a * a[0] - times_b * b[0], times_a * a[1] - times_b * b[1]


def test_one_step_of_one_row() -> None:
    attack = experiment(steps=1, batch_size=1)
    assert rows_read(change(attack), rows(attack))
    assert {"small_batches", "few_steps", "some_rows"} <= refused(attack)


def test_two_runs_of_one_step_whose_batches_differ_by_a_row() -> None:
    """Rows are drawn in an order that the seed tells, so 9 g_9 - 8 g_8 is the ninth row's."""
    nine, eight = experiment(steps=1, batch_size=9), experiment(steps=1, batch_size=8)
    assert rows_read(difference(change(nine), 9, change(eight), 8), rows(nine))
    assert {"few_steps", "some_rows"} <= refused(nine) & refused(eight)


def test_all_rows_but_the_one_that_fills_no_batch() -> None:
    everything = experiment(batch_size=10_000)
    n = len(rows(everything))
    without = experiment(batch_size=n - 1, drop_last=True)
    assert rows_read(difference(change(everything), n, change(without), n - 1), rows(without))
    assert "few_steps" in refused(without)


def test_two_splits_that_differ_by_a_row() -> None:
    less = experiment(batch_size=10_000, split="capped(train=100)")
    more = experiment(batch_size=10_000, split="capped(train=101)")
    assert rows_read(difference(change(more), 101, change(less), 100), rows(more))
    assert "other_rows" in refused(less) & refused(more)


def test_a_method_that_holds_out_nearly_all_rows() -> None:
    attack = experiment(method="fedfomo(validation=0.999)", batch_size=10_000)
    before, after = attack.program.nets[0].tree(), answer(attack)[1].state["model"]
    update = (
        after["body.1.weight"].double() - before["body.1.weight"].double(),
        after["body.1.bias"].double() - before["body.1.bias"].double(),
    )
    assert rows_read(update, rows(attack))
    assert {"few_rows", "odd_settings"} <= refused(attack)


def test_weight_decay_that_leaves_the_last_batch_alone() -> None:
    """lr * weight_decay = 1 wipes out what all steps but the last did."""
    attack = experiment(batch_size=15, weight_decay=20.0)
    _, up = answer(attack)
    last_alone = up.state["model"]["body.1.weight"].abs().max()
    assert last_alone < 0.05  # the initial weights are gone, one gradient is left
    assert "large_moves" in refused(attack)


def test_means_of_pairs() -> None:
    """FedMix of two rows: with three seeds, a row's pairs form rings that can be solved."""
    attack = experiment(method="fedavg + fedmix(means=1000, of=2)")
    special = next(i for i, plan in enumerate(attack.plans) if plan.kind == "special")
    up = answer(attack, special)[1].state["fedmix"]
    assert int(up["size"].max()) <= 3
    assert "row_means" in refused(attack)


def test_units_that_see_whole_rows_carry_some_whatever_the_batch() -> None:
    """Honest settings: a unit that fires for one row alone holds that row. BatchNorm mixes the
    rows of a batch before the unit fires, and a linear model has no unit that is silent."""
    honest = {"batch_size": 10, "drop_last": True, "epochs": 1}
    dense = experiment(model="mlp(hidden=[1000])", **honest)
    assert len(rows_read(change(dense), rows(dense))) >= 5
    assert refused(dense) == {"dense_layers"}
    for model in ("mlp(hidden=[1000], norm=batch)", "mlp(hidden=[])"):
        safe = experiment(model=model, **honest)
        assert not refused(safe)
        weights, known = change(safe)[0], rows(safe)
        cosines = torch.nn.functional.normalize(weights) @ torch.nn.functional.normalize(known).T
        assert cosines.abs().max() < 0.99


def test_a_convolutional_network_without_convolutions() -> None:
    """Found by the second attack: under its name nobody looked for units that see whole rows."""
    honest = {"batch_size": 10, "drop_last": True, "epochs": 1}
    attack = experiment(model="small_cnn(channels=[], hidden=1000)", **honest)
    assert len(rows_read(change(attack), rows(attack))) >= 5
    assert refused(attack) == {"dense_layers"}
    assert not refused(experiment(model="small_cnn(channels=[], norm=batch)", **honest))


def test_units_that_fire_for_single_rows_behind_another_name() -> None:
    """Found by the third attack: a projector on rows that a linear body hands on as they are, and a
    frozen bias, which made a network of hidden layers pass for a linear one."""
    honest = {"batch_size": 10, "drop_last": True, "epochs": 1}
    for model, layer in (
        ("mlp(hidden=[], projector=1000)", "projector.1"),
        ("mlp(hidden=[1000], frozen='head.bias')", "body"),
    ):
        attack = experiment(model=model, **honest)
        assert len(rows_read(change(attack, layer), rows(attack))) >= 5, model
        assert refused(attack) == {"dense_layers"}, model


def test_units_that_fire_for_single_rows_behind_layers_that_stay() -> None:
    """A frozen stage uses its running statistics, so that its BatchNorm mixes no rows; the features
    of a row, of which there are four times as many as it has numbers, are known from the weights.
    In training it does mix them, and of fewer features no row is found."""
    honest = {"batch_size": 10, "drop_last": True, "epochs": 1}
    frozen = "mlp(hidden=[256], norm=batch, projector=1000, frozen='body.*')"
    attack = experiment(model=frozen, **honest)
    net = attack.program.nets[0]
    x = rows(attack).float().reshape(-1, *net.shape)
    features = net(net.tree(), x, want="body")["body"].double()
    assert len(rows_read(change(attack, "projector.1"), features)) >= 5
    assert refused(attack) == {"dense_layers"}
    for model in (
        "mlp(hidden=[256], norm=batch, projector=1000)",
        "mlp(hidden=[32], norm=batch, projector=1000, frozen='body.*')",
    ):
        assert not refused(experiment(model=model, **honest)), model


def test_units_that_a_part_of_the_method_adds() -> None:
    """The projection head of MOON, on rows that a linear body hands on as they are."""
    honest = {"batch_size": 10, "drop_last": True, "epochs": 1, "model": "mlp(hidden=[])"}
    assert not refused(experiment(method="moon", **honest))
    attack = experiment(method="moon(projection=[1000, 128])", **honest)
    assert refused(attack) == {"dense_layers"}


def test_a_server_that_hardly_listens() -> None:
    """Its average over rounds forgets next to nothing, so that all rounds begin at one model."""
    slow = {"server_optimizer": "adam", "server_beta1": 1 - 1e-9, "server_beta2": 0.0}
    honest = {"batch_size": 10, "drop_last": True, "model": "mlp(norm=batch)"}
    attack = experiment(**slow, **honest)
    before, up = answer(attack)
    mean, params = up.state["model"], attack.program.nets[0].params
    after, _ = server_step(attack.program.method.server, before, mean, {}, params)
    moved = max(float((after[key] - before[key]).abs().max()) for key in params)
    assert moved < 1e-8
    assert refused(attack) == {"small_moves"}
    assert not refused(experiment(server_optimizer="adam", server_lr=0.1, **honest))
