"""States on disk are the states in memory, bit for bit, and leave nothing behind."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom import resume
from fedloom.core.digest import state_sha256
from fedloom.core.tree import State, nbytes
from fedloom.errors import CheckpointError
from fedloom.launch.start import run
from fedloom.runs import store
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.store import TENSOR_BYTES, ClientStates
from helpers import StopAt

IDS = st.integers(0, 12)
PUTS = st.tuples(st.just("put"), IDS, st.integers(0, 600))
OPERATIONS = st.lists(
    st.one_of(
        PUTS,
        st.tuples(st.just("delete"), IDS, st.just(0)),
        st.tuples(st.just("read"), IDS, st.just(0)),
        st.tuples(st.just("accept"), st.just(0), st.just(0)),
        st.tuples(st.just("drop"), st.just(0), st.just(0)),
        st.tuples(st.just("draft"), IDS, st.integers(0, 600)),
    ),
    max_size=40,
)


def state_of(size: int, value: float) -> State:
    """A state of so many numbers; an empty one for size 0."""
    return {} if size == 0 else {"model": {"w": torch.full((size,), value)}, "none": {}}


def assert_same(got: State | None, wanted: State | None) -> None:
    assert (got is None) == (wanted is None)
    assert got is None or [*got] == [*(wanted or {})]
    assert state_sha256(got or {}, {}) == state_sha256(wanted or {}, {})


def in_files(folder: Path) -> int:
    """Bytes that open files without a name hold in a folder."""
    held = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself was an open file
            held += link.stat().st_size * os.readlink(link).startswith(f"{folder}/")
    return held


class Model:
    """The store beside the dictionaries it stands for."""

    def __init__(self, budget: int, folder: Path) -> None:
        self.states, self.wanted = ClientStates(budget, folder), dict[int, State]()
        self.draft, self.wanted_draft = self.states.draft(), dict[int, State]()

    def apply(self, what: str, cid: int, state: State) -> None:
        if what == "put":
            self.states[cid] = self.wanted[cid] = state
        elif what == "draft":
            self.draft[cid] = self.wanted_draft[cid] = state
        elif what == "delete":
            assert (self.states.pop(cid, None) is None) == (self.wanted.pop(cid, None) is None)
        elif what == "read":
            assert_same(self.states.get(cid), self.wanted.get(cid))
        else:
            if what == "accept":
                self.states.accept(self.draft)
                self.wanted |= self.wanted_draft
            self.draft, self.wanted_draft = self.states.draft(), {}

    def check(self) -> None:
        for got, wanted in ((self.states, self.wanted), (self.draft, self.wanted_draft)):
            assert len(got) == len(wanted)
            assert list(got) == sorted(wanted)
            assert [cid in got for cid in range(13)] == [cid in wanted for cid in range(13)]
            assert got.held_bytes <= got.budget // 2
            assert got.held_bytes == sum(
                nbytes(s) + TENSOR_BYTES * sum(map(len, s.values())) for s in got._held.values()
            )


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([0, 3000, 8000, 1 << 20]), OPERATIONS)
def test_a_store_is_a_dictionary_whatever_the_budget(
    tmp_path_factory: pytest.TempPathFactory, budget: int, operations: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    model = Model(budget, folder)
    for number, (what, cid, size) in enumerate(operations):
        model.apply(what, cid, state_of(size, float(number)))
        model.check()
    for cid in range(13):
        assert_same(model.states.get(cid), model.wanted.get(cid))
        assert_same(model.draft.get(cid), model.wanted_draft.get(cid))
    assert list(folder.iterdir()) == []


def test_every_kind_of_tensor_comes_back_from_the_disk(tmp_path: Path) -> None:
    state: State = {
        "model": {"z": torch.randn(2, 3), "a": torch.tensor(7), "": torch.ones(1)},
        "final/model": {"n": torch.tensor([float("nan"), -0.0])},
        "empty": {},
        "halves": {"b": torch.ones(3, dtype=torch.bfloat16), "x": torch.empty(0, 3)},
    }
    states = ClientStates(0, tmp_path)
    states[3] = state
    assert states.held_bytes == 0
    back = states[3]
    assert [(n, list(t)) for n, t in back.items()] == [(n, list(t)) for n, t in state.items()]
    assert state_sha256(back, {}) == state_sha256(state, {})
    for tree in back.values():
        for tensor in tree.values():
            assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0, "torch's own alignment"


def test_memory_stays_under_the_budget_and_the_rest_is_on_disk(tmp_path: Path) -> None:
    """100 states of 4000 bytes; half of 100 kB is for what counts, so at most 10 stay."""
    states = ClientStates(100_000, tmp_path)
    for cid in range(100):
        states[cid] = state_of(1000, float(cid))
    held = states.held_bytes // (4000 + TENSOR_BYTES)
    assert 8 <= held <= 10
    assert list(states._held) == list(range(100 - held, 100)), "the oldest went"
    if Path("/proc/self/fd").exists():
        assert 4000 * (100 - held) < in_files(tmp_path) < 4500 * (100 - held)
    for cid in range(100):  # nothing comes back into memory by being read
        assert torch.equal(states[cid]["model"]["w"], torch.full((1000,), float(cid)))
    assert states.held_bytes == held * (4000 + TENSOR_BYTES)


def test_empty_states_take_no_place_on_disk() -> None:
    states = ClientStates(0)
    for cid in range(50):
        states[cid] = {}
    assert len(states._held) == len(states) == 50


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into Linux's /proc")
def test_the_file_holds_at_most_twice_what_counts_and_goes_with_the_store(tmp_path: Path) -> None:
    states = ClientStates(0, tmp_path)
    for number in range(100):
        one_round(states, number)
        states.draft()[0] = state_of(1000, -1.0)  # of a round that broke down
        assert in_files(tmp_path) <= 4400 * (2 * len(states) + 1)
    for cid in range(20):
        assert states[cid]["model"]["w"][0] == 95 + cid % 5, "the last five rounds"
    del states
    gc.collect()
    assert in_files(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def one_round(states: ClientStates, number: int) -> None:
    """Every fifth client."""
    draft = states.draft()
    for cid in range(number % 5, 20, 5):
        draft[cid] = state_of(1000, float(number))
    states.accept(draft)


def test_a_draft_that_is_dropped_never_was() -> None:
    states = ClientStates(0)
    states[1] = state_of(10, 1.0)
    draft = states.draft()
    draft[1], draft[2] = state_of(10, 2.0), state_of(10, 2.0)
    assert draft[1]["model"]["w"][0] == 2
    assert states[1]["model"]["w"][0] == 1
    assert list(states) == [1]
    with pytest.raises(KeyError):
        del states[2]


def test_a_full_disk_is_said_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ClientStates(0, tmp_path)
    states[1] = state_of(10, 1.0)

    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(store, "record", full)
        with pytest.raises(CheckpointError, match=f"{tmp_path}.*No space left.*more memory"):
            states[2] = state_of(10, 2.0)
    assert states[1]["model"]["w"][0] == 1
    assert states[2]["model"]["w"][0] == 2
    states[3] = state_of(10, 3.0)
    assert [states[cid]["model"]["w"][0].item() for cid in states] == [1, 2, 3]
    assert states.held_bytes == 0


def test_a_state_that_cannot_be_packed_names_its_client() -> None:
    with pytest.raises(CheckpointError, match="the state of client 4"):
        ClientStates(0)[4] = {"m": {"a": torch.ones(2).to_sparse()}}


def test_a_checkpoint_goes_into_a_store_one_state_at_a_time(tmp_path: Path) -> None:
    clients = {cid: state_of(1000, float(cid)) for cid in range(50)}
    Checkpoints(tmp_path).save(Snapshot(1, {}, clients, 0, {}))
    states = ClientStates(40_000)
    got, _ = Checkpoints(tmp_path).load_latest(states)
    assert got.clients is states
    assert states.held_bytes <= 20_000
    assert state_sha256({}, states) == state_sha256({}, clients)


SETTINGS: dict[str, Any] = {
    "partition": "dirichlet(alpha=0.3) + scarce(size=60)",
    "clients": 6,
    "participation": 0.5,
    "model": "mlp(hidden=[16])",
    "rounds": 8,
    "checkpoint_every": 2,
    "seed": 3,
}


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The states that go to disk."""
    spilled: list[int] = []
    append = store._Log.append

    def counted(log: store._Log, items: Any) -> dict[int, int]:
        places = append(log, items)
        spilled.extend(places)
        return places

    monkeypatch.setattr(store._Log, "append", counted)
    return spilled


@pytest.mark.parametrize("method", ["fedper", "ditto", "fedavg_ft"])
def test_a_run_without_memory_is_the_same_run_also_when_resumed(
    method: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """fedavg_ft keeps nothing until everybody adapts in the last round."""
    straight = run(method, **SETTINGS)
    spilled = request.getfixturevalue("spilling")
    none = {"memory": 1e-6}  # MB
    without = run(method, **SETTINGS, **none, out=str(tmp_path / "whole"))
    assert spilled
    assert without.summary.state_sha256 == straight.summary.state_sha256
    assert without.summary.accuracy == straight.summary.accuracy
    assert state_sha256({}, without.clients) == state_sha256({}, straight.clients)
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(method, **SETTINGS, **none, out=str(out), watchers=[StopAt(5)])
    again = resume(out)
    assert again.summary.state_sha256 == straight.summary.state_sha256
    assert [r.scores for r in again.records] == [r.scores for r in straight.records]
    assert not [p for p in out.iterdir() if p.name.startswith(("tmp", "."))], "nothing is left"
