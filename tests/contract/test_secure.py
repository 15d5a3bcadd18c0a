"""Every registered method, recipe and term with secure aggregation: it gives what the plain mean
gives, or is refused by name."""

from __future__ import annotations

from functools import cache

import pytest
from cases import ALL, case

from fedloom import BadInput
from fedloom.core.secure.setting import Pairwise
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.engines.inline import Inline
from fedloom.runs.runner import Runner

REFUSED = {
    **{name: name for name in ("apple", "fedbr", "fedfomo", "fedgen", "fedmix", "fedpac")},
    **{name: name for name in ("groupdro", "hypcluster", "pfedhn")},
    "ifca": "hypcluster",
}
"""Expression -> the part of it that reads single uploads."""

SILENT = {"local"}
"""Those that send nothing."""

LOOSE = {
    # The change of the model over its steps times the rate, 3 to 7 times 0.1: the model's error is
    # divided by that.
    "fedcm": 10.0,
    "client_momentum": 10.0,
    # Quotients of small sums.
    "fedcr": 1000.0,
    "fedproto": 10.0,
    # The head solves a linear system of totals, which is close to singular (ridge = 0.001).
    "spherefed": 10_000.0,
}
"""How many times the error of a mean other numbers of the server may have."""


@cache
def server_after_a_round(name: str, secure: bool) -> State:
    """Without scores and adaptation, which change nothing at the server and take their time."""
    experiment = case(name).experiment(rounds=1, eval_every=100, secure_aggregation=secure)
    runner = Runner(experiment, Inline())
    runner.engine.open(experiment.program, experiment.data)
    runner.evaluator.last_round = 100
    for plan in runner.plans:
        if plan.kind != "adapt":
            runner.accept(runner.play(plan, last=False))
    return runner.server


@pytest.mark.parametrize("name", sorted(set(ALL) - REFUSED.keys() - SILENT))
def test_the_server_ends_where_it_ends_without_masks(name: str) -> None:
    """A mean of numbers that are each within half a step is within half a step; the rest is the
    rounding of float32."""
    plain, masked = (server_after_a_round(name, secure) for secure in (False, True))
    assert masked.keys() - plain.keys() == {SECURE}
    half_step = Pairwise().step / 2
    for slice_, tree in plain.items():
        for key, value in tree.items():
            is_mean = slice_ == "model" and name != "spherefed"
            most = half_step * (1.0 if is_mean else LOOSE.get(name, 1.0))
            error = (value.double() - masked[slice_][key].double()).abs()
            bound = most + 1e-6 * value.double().abs()
            assert bool((error <= bound).all()), (slice_, key, float((error - bound).max()))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_reads_single_uploads_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        BadInput, match=rf"{REFUSED[name]} reads single uploads, which secure_aggregation"
    ):
        server_after_a_round(name, True)


@pytest.mark.parametrize("name", sorted(SILENT))
def test_who_sends_nothing_has_nothing_to_mask(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} sends nothing, so secure_aggregation has nothing"):
        server_after_a_round(name, True)


def test_nobody_else_gathers() -> None:
    """Whoever reads single uploads declares what of them tells nothing, or is in the list."""
    for name in set(ALL) - REFUSED.keys():
        for part in case(name).method.parts:
            assert not part.gathers_model
            assert not part.gathers or part.in_the_clear
