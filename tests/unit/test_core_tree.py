"""Trees: copies that share nothing, the one weighted mean, devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.core.tree import (
    WeightedSum,
    clone,
    clone_state,
    nbytes,
    place_state,
    plain_states,
    select,
    unstacked,
    with_own_memory,
)


def test_a_clone_shares_no_storage_and_no_graph() -> None:
    w = torch.ones(3, requires_grad=True)
    tree = {"a": w * 2, "b": torch.zeros(2)}
    copies = clone(tree)
    copies["a"].add_(1)
    copies["b"].add_(1)
    assert tree["a"].tolist() == [2, 2, 2]
    assert tree["b"].tolist() == [0, 0]
    assert not copies["a"].requires_grad
    assert clone_state({"s": tree})["s"]["b"].data_ptr() != tree["b"].data_ptr()


def test_select_keeps_the_trees_order_and_ignores_unknown_keys() -> None:
    tree = {k: torch.zeros(1) for k in "cab"}
    assert list(select(tree, ["b", "c", "missing"])) == ["c", "b"]


@pytest.mark.parametrize(("numbers", "parts_of_it"), [(16, True), (10, False)])
def test_parts_of_a_stack_are_aligned(numbers: int, parts_of_it: bool) -> None:
    """16 float32 are 64 bytes; the second of rows of 40 bytes would begin amid a cache line."""
    stack = torch.randn(3, numbers)
    parts = unstacked(stack)
    assert torch.equal(torch.stack(tuple(parts)), stack)
    assert (parts[1].data_ptr() == stack[1].data_ptr()) == parts_of_it
    assert all(part.data_ptr() % 64 == 0 for part in parts)


def test_plain_states_share_nothing_with_the_given_ones() -> None:
    """Alike ones are stacked, others copied one by one; types are not mixed."""
    alike = [{"model": {"w": torch.full((16,), float(i))}, "e": {}} for i in range(3)]
    unlike = [*alike, {"model": {"w": torch.ones(16, dtype=torch.float64)}}]
    for given in (alike, unlike, []):
        made = plain_states(given)
        for state in given:
            state["model"]["w"].add_(10)
        for state, other in zip(given, made, strict=True):
            assert torch.equal(other["model"]["w"] + 10, state["model"]["w"])
            assert other["model"]["w"].dtype == state["model"]["w"].dtype
            assert list(other) == list(state)


def test_with_own_memory_lets_go_of_stacks() -> None:
    stack, alone = torch.randn(3, 16), torch.randn(2)
    tree = with_own_memory({"s": {"part": stack[1], "alone": alone}})["s"]
    assert tree["part"].untyped_storage().nbytes() == 64
    assert torch.equal(tree["part"], stack[1])
    assert tree["alone"] is alone


def test_nbytes_counts_every_type() -> None:
    """3 float32 + 2 int64 + 1 bool = 12 + 16 + 1."""
    tree = {"f": torch.zeros(3), "i": torch.zeros(2, dtype=torch.int64), "b": torch.tensor(True)}
    assert nbytes({"model": tree, "empty": {}}) == 29


def test_weighted_sum_against_numpy_in_float64() -> None:
    """Float32 accumulation would miss by about 1e-7 relative: 1000 trees, values of 1e4 among
    values of 1e-3. Rounded once at the end, the mean is numpy's to the last bit."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(1000, 17)).astype(np.float32) * 1e-3
    values[::100] *= 1e7
    weights = draw.integers(1, 500, size=1000)
    total = WeightedSum()
    for row, weight in zip(values, weights, strict=True):
        total.fold({"w": torch.from_numpy(row)}, float(weight))
    exact = (values.astype(np.float64) * weights[:, None]).sum(0)
    np.testing.assert_allclose(total.sum()["w"].numpy(), exact.astype(np.float32), rtol=1e-7)
    np.testing.assert_array_equal(
        total.mean()["w"].numpy(), (exact / weights.sum()).astype(np.float32)
    )


@pytest.mark.parametrize("weight", [13.0, 0.7])
@pytest.mark.parametrize("shape", [(64, 64), (7,), (33, 3), (1,), (), (0, 3)])
def test_small_trees_have_the_bits_of_single_sums(shape: tuple[int, ...], weight: float) -> None:
    """They are added several at once, in groups that end where a weight changes."""
    rows = [torch.randn(shape) for _ in range(75)]
    weights = [weight] * 40 + [2.0] * 35
    total = WeightedSum()
    for row, w in zip(rows, weights, strict=True):
        total.fold({"w": row}, w)
    one_by_one = rows[0].double() * weights[0]
    for row, w in zip(rows[1:], weights[1:], strict=True):
        one_by_one.add_(row, alpha=w)
    assert torch.equal(total.sum()["w"], one_by_one.float())


def test_weighted_sum_leaves_what_it_folds_alone() -> None:
    first, second = torch.tensor([1.0]), torch.tensor([4.0])
    total = WeightedSum()
    total.fold({"w": first}, 2.0)
    total.fold({"w": second}, 1.0)
    assert (total.mean()["w"].item(), total.mean()["w"].item()) == (2.0, 2.0)
    assert (first.item(), second.item()) == (1.0, 4.0)


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    # (3*1 + 4*3) / 4 = 3.75 -> 4; (3*3 + 4*1) / 4 = 3.25 -> 3: rounded, not cut off.
    [((3, 4), (1.0, 3.0), 4), ((3, 4), (3.0, 1.0), 3)],
)
def test_integers_stay_integers(values: tuple[int, int], weights: tuple, mean: int) -> None:
    total = WeightedSum()
    for value, weight in zip(values, weights, strict=True):
        total.fold({"num_batches_tracked": torch.tensor(value)}, weight)
    found = total.mean()["num_batches_tracked"]
    assert found.dtype == torch.int64
    assert found.item() == mean


def test_half_precision_comes_back_as_half_precision() -> None:
    """1 + 2^-11 is not a float16: accumulating in float16 would lose the small one 2048 times."""
    total = WeightedSum()
    total.fold({"w": torch.tensor([1.0], dtype=torch.float16)}, 1.0)
    for _ in range(2048):
        total.fold({"w": torch.tensor([2.0**-11], dtype=torch.float16)}, 1.0)
    assert total.sum()["w"].dtype == torch.float16
    assert total.sum()["w"].item() == 2.0


def test_a_tree_with_a_missing_key_is_an_error() -> None:
    total = WeightedSum()
    total.fold({"a": torch.zeros(1), "b": torch.zeros(1)}, 1.0)
    with pytest.raises(KeyError, match="b"):
        total.fold({"a": torch.zeros(1)}, 1.0)


def test_to_device_moves_every_tensor_and_copies_none_that_is_there() -> None:
    here = {"model": {"w": torch.ones(2)}, "dbe": {"n": torch.tensor(1)}}
    away = place_state(here, torch.device("meta"))
    tensors: list[Tensor] = [v for tree in away.values() for v in tree.values()]
    assert [v.device.type for v in tensors] == ["meta", "meta"]
    assert list(away) == ["model", "dbe"]
    assert place_state(here, torch.device("cpu"))["model"]["w"] is here["model"]["w"]
