"""States through a pipe, and how jobs are put together into messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.message import Down, Plan
from fedloom.core.tree import State, nbytes
from fedloom.engines import Job, bundle
from fedloom.engines.bundle import Bundle, opened, portions
from fedloom.engines.pipe_codec import SMALL, receive, send
from helpers import digest

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


class Counting:
    """One end of a pipe that counts the bytes written to it."""

    def __init__(self, link) -> None:
        self.link, self.written = link, 0

    def send(self, message: tuple) -> None:
        self.link.send(message)

    def send_bytes(self, data: memoryview) -> None:
        self.written += len(data)
        self.link.send_bytes(data)


def carried(states: Sequence[State]) -> tuple[list[State], int]:
    """What arrives, and how many bytes of tensors crossed."""
    ours, theirs = Pipe()
    counting = Counting(ours)
    sender = Thread(target=send, args=(counting, "head", states))
    sender.start()
    head, arrived = receive(theirs)
    sender.join()
    assert head == "head"
    return arrived, counting.written


@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES), st.sampled_from([(), (0,), (3,), (2, 0, 4), (5, 7), (90, 91)])
        ),
        max_size=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_every_bit_arrives(kinds: list[tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Scalars, empty tensors, all widths, on both sides of the size from which tensors go alone."""
    tree = {str(i): (torch.randn(shape) * 9).to(dtype) for i, (dtype, shape) in enumerate(kinds)}
    state = {"model": tree, "empty": {}}
    (arrived,), written = carried([state])
    assert digest(arrived) == digest(state)
    assert [(k, list(t)) for k, t in arrived.items()] == [(k, list(t)) for k, t in state.items()]
    assert written == nbytes(state)


def test_strides_do_not_matter() -> None:
    kernel = torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    (arrived,), _ = carried([{"model": {"k": kernel, "t": torch.randn(4, 6).T}}])
    assert arrived["model"]["k"].equal(kernel)
    assert arrived["model"]["k"].is_contiguous()


@pytest.mark.parametrize("numbers", [4, SMALL // 4, SMALL])
def test_what_states_share_crosses_once(numbers: int) -> None:
    """Three states with one common tensor of b bytes and one of 8 bytes each: b + 24 bytes. It is
    joined with others, or it goes alone: from exactly SMALL bytes on."""
    common = torch.randn(numbers)
    states = [{"model": {"common": common, "own": torch.randn(2)}} for _ in range(3)]
    arrived, written = carried(states)
    assert written == 4 * numbers + 24
    assert [digest(s) for s in arrived] == [digest(s) for s in states]
    a, b = arrived[0]["model"], arrived[1]["model"]
    assert a["common"] is b["common"]
    own = {s["model"]["own"].untyped_storage().data_ptr() for s in arrived}
    assert len(own) == 3  # a client's own memory is its own


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [0, 1], [1]])
def test_parts_of_stacks_arrive(order: list[int]) -> None:
    """Whole and in order they cross as the stack that they are; otherwise no other part does."""
    stack = torch.randn(3, 16)
    states = [{"model": {"w": stack[i], "more": torch.ones(16)}} for i in order]
    arrived, written = carried(states)
    assert [digest(s) for s in arrived] == [digest(s) for s in states]
    assert written == 2 * 64 * len(order)


# ------------------------------------------------------------------ portions

PLAN = Plan(1)


@pytest.mark.parametrize("own", [None, {}, {"model": {"w": torch.ones(1)}}])
def test_new_keeping_nothing_and_keeping_are_three_things(own: State | None) -> None:
    """Only who never answered before is given a first state."""
    job = Job(3, Down(PLAN, {"model": {"v": torch.zeros(2)}}), own)
    packed = Bundle.of([job], "client", None)
    assert opened(packed.head, packed.states) == [job]


def jobs_of(state: State, requested: list[int]):
    def job(cid: int) -> Job:
        requested.append(cid)
        return Job(cid, Down(PLAN, state), None)

    return job


def dealt(sizes: list[int], workers: int, numbers: int = 1) -> Iterator[list[int]]:
    requested: list[int] = []
    job = jobs_of({"model": {"w": torch.zeros(numbers)}}, requested)
    for portion in portions(range(len(sizes)), job, sizes.__getitem__, workers):
        yield [j.cid for j in portion]
    assert sorted(requested) == list(range(len(sizes)))  # everybody once


def test_longest_first_and_alone_when_long() -> None:
    """Rows 10, 80, 10, 10 on two workers: a portion is full with an eighth of what is left, 14 of
    110 rows at first, so client 1 goes alone; then 30 / 8 is 4 rows, and so on."""
    assert list(dealt([10, 80, 10, 10], workers=2)) == [[1], [0], [2], [3]]


def test_small_clients_share_a_message() -> None:
    """400 clients of 40 rows on two workers: an eighth of what is left each time."""
    counts = [len(p) for p in dealt([40] * 400, workers=2)]
    assert counts[:3] == [50, 44, 39]  # ceil(400/8), ceil(350/8), ceil(306/8)
    assert counts == sorted(counts, reverse=True)
    assert max(len(p) for p in dealt([1] * 5000, workers=2)) == bundle.MOST_CLIENTS


def test_very_small_clients_come_in_whole_blocks() -> None:
    """Of 18 rows: a quarter of what is left, rounded up to 8, 16, 32 or 64, in rounds where each of
    two workers can have 8; what is left in the end goes one by one."""
    counts = [len(p) for p in dealt([18] * 400, workers=2)]
    assert counts[:7] == [64, 64, 64, 64, 64, 32, 16]  # the last two from 80 / 4 and 48 / 4
    assert counts[-4:] == [8, 8, 8, 8]
    assert [len(p) for p in dealt([18] * 20, workers=2)] == [8, 8, *[1] * 4]
    assert next(iter(dealt([18] * 12, workers=2))) == [0, 1]  # too few for that


def test_large_answers_are_asked_for_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregation goes by id. Three answers of 400 bytes may wait, four may not."""
    monkeypatch.setattr(bundle, "MOST_WAITING", 1200)
    assert next(iter(dealt([1, 2, 3], workers=1, numbers=100))) == [2]
    assert next(iter(dealt([1, 2, 3, 4], workers=1, numbers=100)))[0] == 0


def test_a_message_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1000)
    assert max(len(p) for p in dealt([1] * 40, workers=1, numbers=100)) == 2  # of 400 bytes each


def test_nobody_is_asked() -> None:
    assert list(dealt([], workers=2)) == []


def test_a_bundle_keeps_first_visits_apart_from_empty_states() -> None:
    """`own=None` means never visited; {} that nothing was kept."""
    jobs = [Job(4, Down(PLAN, {"model": {}}), None), Job(2, Down(PLAN, {"model": {}}), {})]
    bundle = Bundle.of(jobs, "client", None)
    again = opened(bundle.head, bundle.states)
    assert [(j.cid, j.own) for j in again] == [(4, None), (2, {})]
    assert again[0].down.plan == PLAN
