"""A state as bytes and back, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.tree import State, plain
from fedloom.core.wire import pack, unpack

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def assert_same(a: State, b: State) -> None:
    assert [(n, list(t)) for n, t in a.items()] == [(n, list(t)) for n, t in b.items()]
    for name, tree in a.items():
        for k, v in tree.items():
            got = b[name][k]
            assert (got.dtype, got.shape) == (v.dtype, v.shape)
            assert (
                got.contiguous()
                .view(-1)
                .view(torch.uint8)
                .equal(plain(v).view(-1).view(torch.uint8))
            )


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1),
        st.dictionaries(
            st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1),
            st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
            max_size=4,
        ),
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_state_comes_back(layout: dict) -> None:
    """Names, order, types, shapes (empty and scalar too), empty slices."""
    state = {
        name: {k: torch.randn(shape).mul(9).to(dtype) for k, (dtype, shape) in tree.items()}
        for name, tree in layout.items()
    }
    assert_same(state, unpack(pack(state)))


def test_special_values_keep_their_bits() -> None:
    values = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, -0.0, 1e-45])
    assert_same({"s": {"v": values}}, unpack(pack({"s": {"v": values}})))


def test_views_transposed_and_tied_tensors_come_back_as_plain_ones() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"s": {"t": base.T, "row": base[1], "a": base, "again": base}}
    back = unpack(pack(state))
    assert torch.equal(back["s"]["t"], base.T)
    assert torch.equal(back["s"]["row"], base[1])
    assert back["s"]["a"].data_ptr() != back["s"]["again"].data_ptr()


def test_same_names_in_two_slices_are_two_tensors() -> None:
    back = unpack(pack({"a": {"w": torch.zeros(1)}, "b": {"w": torch.ones(1)}}))
    assert (back["a"]["w"].item(), back["b"]["w"].item()) == (0.0, 1.0)


def test_what_is_unpacked_is_writable_and_aligned_like_torchs_own() -> None:
    """The odd-sized first tensor shifts the others inside the buffer; kernels may round
    differently on unaligned memory. There are many, because one may be aligned by chance."""
    tree = {str(i): torch.ones(i) for i in range(1, 65)}
    back = unpack(pack({"s": {"odd": torch.zeros(3, dtype=torch.uint8), **tree}}))["s"]
    back["8"].add_(1)
    assert torch.ones(8).data_ptr() % 64 == 0
    assert [key for key, value in back.items() if value.data_ptr() % 64] == []


def test_a_graph_does_not_travel() -> None:
    w = torch.ones(2, requires_grad=True)
    assert not unpack(pack({"s": {"w": w * 2}}))["s"]["w"].requires_grad


def test_a_line_break_in_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        pack({"s": {"a\nb": torch.zeros(1)}})


def test_same_state_same_bytes() -> None:
    state = {"s": {"b": torch.ones(2), "a": torch.zeros(3)}}
    assert pack(state) == pack({"s": dict(state["s"])})
