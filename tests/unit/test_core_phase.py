"""Phases on top of what the run says, and the order of batches that follows."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.phase import Opt, Phase
from fedloom.core.rng import generator
from fedloom.errors import BadInput


def batches(opt: Opt, n: int, phase: Phase | None = None, key: int = 0) -> list[list[list[int]]]:
    """Row indices by epoch and batch."""
    schedule = (phase or Phase()).over(opt)
    return [[b.tolist() for b in epoch] for epoch in schedule.epochs(n, generator(key))]


# ------------------------------------------------------------------ Phase.over


def test_none_is_what_the_run_says() -> None:
    opt = Opt(lr=0.3, epochs=4, batch=7, momentum=0.9, weight_decay=0.1, clip=2.0, drop_last=True)
    assert Phase().over(opt).opt == opt


def test_a_phase_says_it_instead() -> None:
    phase = Phase(epochs=2, lr=0.1, batch=3, momentum=0.0, weight_decay=0.0, clip=0.0)
    opt = Opt(lr=9, epochs=9, batch=9, momentum=0.9, weight_decay=0.9, clip=9, replacement=True)
    assert phase.over(opt).opt == Opt(
        lr=0.1, epochs=2, batch=3, momentum=0.0, weight_decay=0.0, clip=0.0, replacement=True
    )


def test_epochs_of_a_phase_beat_steps_of_the_run() -> None:
    """FedRep's four head epochs stay four epochs when the run says `steps=5`."""
    opt = Opt(epochs=9, steps=5)
    assert Phase().over(opt).opt.steps == 5
    assert Phase(epochs=4).over(opt).opt.steps is None
    assert Phase(epochs=4).over(opt).opt.epochs == 4
    assert Phase(epochs=4, steps=3).over(opt).opt.steps == 3
    assert Phase(steps=3).over(Opt(epochs=9)).opt.steps == 3


def test_the_learning_rate_decays_once_per_round_from_round_1() -> None:
    """0.8 * 0.5^(t-1): 0.8, 0.8, 0.4, 0.2 in rounds 0 (special), 1, 2, 3; a phase's own too."""
    opt = Opt(lr=0.8, decay=0.5)
    assert [Phase().over(opt, t).opt.lr for t in (0, 1, 2, 3)] == [0.8, 0.8, 0.4, 0.2]
    assert Phase(lr=0.4).over(opt, 3).opt.lr == 0.1


@pytest.mark.parametrize(
    "wrong",
    [{"lr": -1}, {"epochs": -1}, {"batch": 0}, {"clip": -0.1}, {"decay": -1}, {"steps": 0}],
)
def test_impossible_settings_are_named(wrong: dict) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Opt(**wrong)


# ------------------------------------------------------------------ batches


def test_an_epoch_is_every_row_once() -> None:
    found = batches(Opt(epochs=2, batch=3), 7)
    assert [[len(b) for b in epoch] for epoch in found] == [[3, 3, 1], [3, 3, 1]]
    for epoch in found:
        assert sorted(i for b in epoch for i in b) == list(range(7))
    assert found[0] != found[1]


def test_the_order_follows_from_the_generator() -> None:
    assert batches(Opt(), 30, key=1) == batches(Opt(), 30, key=1) != batches(Opt(), 30, key=2)


def test_drop_last_leaves_out_an_incomplete_batch() -> None:
    assert [len(b) for b in batches(Opt(batch=3, drop_last=True), 7)[0]] == [3, 3]
    assert [len(b) for b in batches(Opt(batch=3, drop_last=True), 6)[0]] == [3, 3]


def test_drop_last_keeps_the_only_batch_of_a_small_client() -> None:
    """Otherwise a client with fewer rows than a batch would train on nothing."""
    found = batches(Opt(batch=10, drop_last=True, epochs=2), 4)
    assert [[len(b) for b in epoch] for epoch in found] == [[4], [4]]


@pytest.mark.parametrize(("steps", "lengths"), [(2, [2]), (3, [3]), (5, [3, 2]), (7, [3, 3, 1])])
def test_steps_count_batches_over_as_many_epochs_as_needed(steps: int, lengths: list) -> None:
    """Seven rows in threes are three batches an epoch."""
    found = batches(Opt(batch=3, steps=steps, epochs=99), 7)
    assert [len(epoch) for epoch in found] == lengths


def test_steps_begin_as_epochs_do() -> None:
    whole, cut = batches(Opt(batch=3, epochs=2), 7), batches(Opt(batch=3, steps=4), 7)
    assert cut[0] == whole[0]
    assert cut[1] == whole[1][:1]


def test_replacement_draws_whole_batches_from_all_rows() -> None:
    """ceil(5/4) = 2 batches of 4 an epoch, with repeats and omissions over 50 epochs."""
    found = batches(Opt(batch=4, epochs=50, replacement=True), 5)
    assert all([len(b) for b in epoch] == [4, 4] for epoch in found)
    assert {i for epoch in found for b in epoch for i in b} == set(range(5))
    assert any(len(set(b)) < 4 for epoch in found for b in epoch)
    assert any(len({i for b in epoch for i in b}) < 5 for epoch in found)


def test_zero_epochs_is_no_batch() -> None:
    assert batches(Opt(epochs=0), 5) == []


def test_batches_index_rows_as_torch_does() -> None:
    (epoch,) = Phase().over(Opt(batch=2)).epochs(3, generator(0))
    assert all(b.dtype == torch.int64 and b.device.type == "cpu" for b in epoch)
