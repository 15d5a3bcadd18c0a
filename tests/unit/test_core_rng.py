"""Every draw has a key: the same key the same draw, whatever happened before."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedloom.core.message import Plan
from fedloom.core.rng import generator, rng_scope, seed_of


def draw(gen: torch.Generator) -> list[float]:
    return torch.rand(4, generator=gen).tolist()


def test_seed_of_is_fixed_for_all_time() -> None:
    """The first 7 bytes of sha256("(0, 'batches')"); a change would change every run."""
    assert seed_of(0, "batches") == 0x254E1A10996860
    assert seed_of(0, "batches") != seed_of("0", "batches")
    assert seed_of(1, 23) != seed_of(12, 3)


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    code = "from fedloom.core.rng import seed_of; print(seed_of(0, 'a', ('b', 1)))"
    env = {"PYTHONHASHSEED": "123", "PATH": ""}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True
    )
    assert int(out.stdout) == seed_of(0, "a", ("b", 1))


def test_same_key_same_draw() -> None:
    assert draw(generator(1, "x")) == draw(generator(1, "x"))


@pytest.mark.parametrize(
    "other",
    [
        Plan(2, seed=5).gen(3, "batches"),
        Plan(1, seed=6).gen(3, "batches"),
        Plan(1, "adapt", seed=5).gen(3, "batches"),
        Plan(1, owner="dbe.mean", seed=5).gen(3, "batches"),
        Plan(1, seed=5).gen(4, "batches"),
        Plan(1, seed=5).gen(-1, "batches"),
        Plan(1, seed=5).gen(3, "augment"),
        Plan(1, seed=5).gen(3, ("batches", 1)),
    ],
)
def test_round_seed_kind_owner_client_and_purpose_separate(other: torch.Generator) -> None:
    assert draw(Plan(1, seed=5).gen(3, "batches")) != draw(other)
    assert draw(Plan(1, seed=5).gen(3, "batches")) == draw(Plan(1, seed=5).gen(3, "batches"))


def test_the_number_of_clients_does_not_move_a_clients_draws() -> None:
    one, many = Plan(1, seed=5, clients=2), Plan(1, seed=5, clients=99)
    assert draw(one.gen(0, "batches")) == draw(many.gen(0, "batches"))


def test_a_scope_is_seeded_and_restores_the_stream() -> None:
    torch.manual_seed(0)
    unbroken = torch.rand(4)
    torch.manual_seed(0)
    first = torch.rand(2)
    with rng_scope("a"):
        inside = torch.rand(3)
    assert torch.equal(torch.cat([first, torch.rand(2)]), unbroken)
    with rng_scope("a"):
        assert torch.equal(torch.rand(3), inside)
    with rng_scope("b"):
        assert not torch.equal(torch.rand(3), inside)


def test_a_scope_restores_the_stream_after_an_error() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError), rng_scope("a"):
        1 / 0  # noqa: B018
    assert torch.equal(torch.rand(1), wanted)
