"""Every registered method and term runs with privacy, or is refused by a sentence that names it;
and what it declares of gradients of single rows is so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from cases import ALL, case

from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.privacy import ClientPrivacy, ExamplePrivacy, Privacy
from fedloom.core.program import Program
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree
from fedloom.errors import BadInput
from fedloom.methods.fedavg import FedAvg
from fedloom.models import build_model
from fedloom.testing.rounds import Played, finite, play

TINY = 1e-9
"""Noise that changes nothing that could be seen."""


def program(name: str, privacy: Privacy | None, model: str = "") -> Program:
    net = build_model(model or case(name).model, (1, 8, 8), 10, seed=0)
    return Program(case(name).method_anew(), net, 2, seed=3, privacy=privacy)


def played(made: Program, rounds: int = 1) -> Played:
    return play(made, case("fedavg").data, made.schedule(rounds), participation=0.5)


@pytest.mark.parametrize("name", ALL)
def test_client_noise_is_borne_or_refused_by_name(name: str) -> None:
    privacy = ClientPrivacy(clip=0.5, noise=0.5)
    parts = case(name).program().method.parts
    if against := [part for part in parts if part.against_client_noise]:
        with pytest.raises(BadInput, match=against[0].name) as refusal:
            program(name, privacy)
        assert against[0].against_client_noise in str(refusal.value)
        return
    run = played(program(name, privacy), rounds=2)
    assert finite(run.server)
    for answer in run.answers:
        assert finite(answer.up.state)
        assert answer.up.n == 1
        assert not answer.up.metrics


@pytest.mark.parametrize("name", ALL)
def test_example_noise_is_borne_or_refused_by_name(name: str) -> None:
    privacy = ExamplePrivacy(clip=0.1, noise=0.1)
    parts = case(name).program().method.parts
    if against := [part for part in parts if privacy.against(part)]:
        assert all(part.against_example_noise is not None for part in parts)
        with pytest.raises(BadInput, match=against[0].name):
            program(name, privacy)
        return
    run = played(program(name, privacy))
    assert finite(run.server)
    assert all("loss" not in answer.up.metrics for answer in run.answers)


ROW_WISE = [
    name
    for name in ALL
    if all(part.against_example_noise == "" for part in case(name).program().method.parts)
]


def test_most_methods_that_average_weights_are_row_wise() -> None:
    assert {"fedavg", "fedrep", "ditto", "scaffold", "moon"} <= set(ROW_WISE)


@pytest.mark.parametrize("name", ROW_WISE)
def test_the_mean_of_the_rows_gradients_is_the_batchs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound and without noise, every step of a round gets the gradient that it gets
    without privacy. A loss that looks at other rows of its batch would not."""
    made = program(name, ExamplePrivacy(clip=1e9, noise=1e-18))
    draws = any(map(made.nets[0].draws, made.nets[0].reads))
    private = Site._private_gradient
    compared = Counter[str]()

    def beside(
        self: Site, b: Batch, fixed: Tree, privacy: ExamplePrivacy
    ) -> tuple[Tree, torch.Tensor]:
        found, loss = private(self, b, fixed, privacy)
        expected, plain_loss = self._gradient(b, fixed)
        if not draws:  # a row by itself draws other numbers than a batch
            torch.testing.assert_close(loss, plain_loss, rtol=1e-4, atol=1e-5)
            for key, g in expected.items():
                torch.testing.assert_close(found[key], g, rtol=1e-3, atol=1e-5)
        compared[name] += 1
        return found, loss

    monkeypatch.setattr(Site, "_private_gradient", beside)
    played(made)
    assert compared[name]


@pytest.mark.parametrize("name", ROW_WISE)
def test_gradients_are_bounded_and_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over a step's rows is no longer than clip, and a row is used as often as the
    accountant is told."""
    clip = 1e-3
    made = program(name, ExamplePrivacy(clip=clip, noise=TINY))
    private, used = Site._private_gradient, Counter[int]()

    def seen(
        self: Site, b: Batch, fixed: Tree, privacy: ExamplePrivacy
    ) -> tuple[Tree, torch.Tensor]:
        g, loss = private(self, b, fixed, privacy)
        length = torch.cat([v.flatten() for v in g.values()]).norm()
        assert 0 < float(length) <= clip * (1 + 1e-4)
        used.update(b.idx.tolist())
        return g, loss

    monkeypatch.setattr(Site, "_private_gradient", seen)
    (answer,) = (a for a in played(made).answers if a.plan.kind == "train")
    privacy = made.privacy
    assert privacy is not None
    assert max(used.values()) == privacy.mechanisms(made.method, answer.plan, answer.up.n)


def test_steps_in_place_of_epochs_are_counted_by_what_a_row_may_be_in() -> None:
    """25 rows in batches of 10 are 3 steps a pass: 7 steps begin a third pass."""
    privacy = ExamplePrivacy()
    method = FedAvg()
    method = FedAvg(opt=method.opt.changed({"batch": 10, "steps": 7}))
    assert privacy.mechanisms(method, Plan(1), 25) == 3
    assert privacy.mechanisms(method, Plan(1), None) == 7
    assert privacy.mechanisms(method, Plan(1, "adapt"), 25) == 0


def test_a_method_that_says_nothing_is_refused_for_rows_whatever_it_inherits() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(FedAvg):
        name = "silent"

    assert "nobody says" in ExamplePrivacy().against(Silent())
    assert not ClientPrivacy().against(Silent())


def test_batch_norm_and_replacement_are_refused_for_rows() -> None:
    with pytest.raises(BadInput, match="BatchNorm"):
        program("fedavg", ExamplePrivacy(), "mlp(hidden=[16], norm=batch)")
    method: Method = FedAvg()
    method = FedAvg(opt=method.opt.changed({"replacement": True}))
    with pytest.raises(BadInput, match="replacement"):
        ExamplePrivacy().check(method, [])


def test_statistics_of_batch_norm_stay_usable_under_client_noise() -> None:
    made = program("fedavg", ClientPrivacy(clip=1, noise=5), "mlp(hidden=[16], norm=batch)")
    run = played(made)
    variances = [v for k, v in run.server["model"].items() if k.endswith("running_var")]
    assert variances
    assert all(bool((v >= 0).all()) for v in variances)


def test_what_nobody_trains_goes_back_as_it_came() -> None:
    """Frozen weights and the statistics of their stages; noise would move them round by round."""
    net = build_model("mlp(hidden=[16], norm=batch)", (1, 8, 8), 10, seed=0).freeze("body.*")
    made = Program(FedAvg(), net, 2, seed=3, privacy=ClientPrivacy(clip=1, noise=1))
    run = played(made, rounds=2)
    moved = {k for k, v in run.server["model"].items() if not torch.equal(v, net.initial[k])}
    assert moved == {"head.weight", "head.bias"}


def test_gradients_in_a_round_of_a_methods_own_are_refused_for_rows() -> None:
    """Nothing counts them."""

    @dataclass(frozen=True, kw_only=True)
    class Before(FedAvg):
        name = "before"
        before = ("look",)
        reveals = ()
        against_example_noise = ""

        def special(self, s: Site) -> State:
            return {self.name: s.fit(Phase())}

    net = build_model("mlp(hidden=[8])", (1, 8, 8), 10, seed=0)
    made = Program(Before(), net, 2, privacy=ExamplePrivacy())
    with pytest.raises(BadInput, match="before: it takes gradients in a round of its own"):
        played(made)
