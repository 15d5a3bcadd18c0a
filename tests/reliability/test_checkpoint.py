"""Checkpoints come back bit for bit, and whatever happens to a writer or a file, one is found."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.core.digest import state_sha256
from fedloom.core.tree import State
from fedloom.errors import BadInput, CheckpointError
from fedloom.runs import checkpoint, store
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.store import records
from helpers import LIMIT

CLIENTS = 8
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["fedloom.runs.checkpoint", "pytest", "hypothesis"])


def snapshot_at(step: int) -> Snapshot:
    """A made-up run: in every step, the clients of `changed_at` and the server change."""
    clients: dict[int, State] = {}
    for cid in range(CLIENTS):
        last = step - (step - cid) % 4  # the latest step s <= step with s = cid modulo 4
        clients[cid] = {"model": {"head.weight": torch.full((50,), float(last))}}
    server = {"model": {"w": torch.full((2000,), float(step))}}
    return Snapshot(step, server, clients, 100 * step, {"bytes_up": 0.5 * step}, {"best": [step]})


def changed_at(step: int) -> set[int]:
    """Clients whose state differs between `snapshot_at(step - 1)` and `snapshot_at(step)`."""
    return {cid for cid in range(CLIENTS) if (step - cid) % 4 == 0}


def assert_equal(got: Snapshot, wanted: Snapshot) -> None:
    assert state_sha256(got.server, got.clients) == state_sha256(wanted.server, wanted.clients)
    assert got.clients.keys() == wanted.clients.keys()
    assert replace(got, server={}, clients={}) == replace(wanted, server={}, clients={})


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(snapshot_at(step), changed_at(step))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def odd_state() -> State:
    """Every kind of tensor a state may hold, in an order that is not alphabetical."""
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "model": {"z.last": torch.randn(2, 3), "a.first": torch.tensor(7), "": torch.ones(1)},
        "final/model": {"body/0 .weight\t'é\"\\": torch.randn(3, dtype=torch.float64)},
        "empty": {},
        "a": {"b/c": torch.tensor(True), "b": torch.tensor([True, False])},
        "a/b": {"c": torch.tensor(-0.0), "nan": torch.tensor([math.nan, math.inf])},
        "types": {str(t): torch.ones(3, dtype=t) for t in (torch.uint8, torch.int16, torch.int64)},
        "halves": {str(t): torch.ones(3, dtype=t) for t in (torch.float16, torch.bfloat16)},
        "none": {"x": torch.empty(0, 3), "y": torch.empty(0, dtype=torch.int32)},
        "views": {"t": base.t(), "row": base[1], "column": base[:, 1], "again": base.t()},
        "more": {"wide": torch.zeros(1).expand(5), "leaf": torch.ones(2, requires_grad=True)},
    }


def test_every_kind_of_tensor_comes_back_exactly_and_in_order(tmp_path: Path) -> None:
    state = odd_state()
    extra = {"best": -math.inf, "stopped": None, "rows": [1, {"a": 2.5}]}
    wanted = Snapshot(3, state, {70: {}, 5: state, 1_000_000: {"m": {}}}, 9, {"s": 0.1}, extra)
    Checkpoints(tmp_path / "new" / "checkpoints").save(wanted)
    got, warnings = Checkpoints(tmp_path / "new" / "checkpoints").load_latest()
    assert not warnings
    assert_equal(got, wanted)
    assert list(got.clients) == [5, 70, 1_000_000]
    for back in (got.server, got.clients[5]):
        layout = [(name, list(tree)) for name, tree in back.items()]
        assert layout == [(name, list(tree)) for name, tree in state.items()]
        for name, tree in state.items():
            for key, tensor in tree.items():
                assert_identical(back[name][key], tensor)
    assert got.clients[1_000_000] == {"m": {}}


def assert_identical(got: Tensor, wanted: Tensor) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(got.nan_to_num(nan=5.0), wanted.nan_to_num(nan=5.0))
    assert got.is_contiguous()
    assert not got.requires_grad
    assert got.numel() == 0 or got.data_ptr() % 64 == 0, "torch's own alignment"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"server": {"model": {"a\nb": torch.ones(1)}}},
            r"the server.*slice 'model' holds a line break",
        ),
        ({"clients": {4: {"m": {"a": torch.ones(2).to_sparse()}}}}, "the state of client 4"),
        ({"server": {"m": {"a": torch.ones(1, dtype=torch.complex128)}}}, "complex128"),
        ({"clients": {-1: {}}}, "client -1"),
        ({"extra": {"when": object()}}, "step 2.*not JSON"),
    ],
)
def test_what_cannot_be_saved_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.save(replace(snapshot_at(2), **changes))
    assert checkpoints.load_latest()[0].step == 1
    checkpoints.save(snapshot_at(2))
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 5, 9, keep=3)
    assert names(tmp_path) == ["step-000002", "step-000005", "step-000009"]
    assert checkpoints.steps() == [9, 5, 2]
    with pytest.raises(BadInput, match="at least one"):
        Checkpoints(tmp_path, keep=0)


def history(folder: Path, bytes_of_history: int, steps: range) -> list[int]:
    """The steps that are left of these, whose checkpoints are some 1 KB each."""
    checkpoints = Checkpoints(folder, history=bytes_of_history)
    for step in steps:
        checkpoints.save(Snapshot(step, {"model": {"w": torch.ones(100)}}, {}, 0, {}))
    return sorted(checkpoints.steps())


def test_earlier_ones_stay_within_their_bytes_spread_over_the_run(tmp_path: Path) -> None:
    assert history(tmp_path / "all", 10**6, range(1, 9)) == list(range(1, 9))
    some = history(tmp_path / "some", 6000, range(1, 33))
    *earlier, before, newest = some
    assert (before, newest) == (31, 32)
    gaps = [b - a for a, b in pairwise([0, *earlier, before])]
    assert 3 <= len(earlier) <= 8
    assert max(gaps) <= 3 * min(gaps)
    assert history(tmp_path / "none", 0, range(1, 9)) == [7, 8]


def test_earlier_ones_are_few_however_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_EARLIER", 4)
    assert len(history(tmp_path, 10**6, range(1, 20))) == 6


def test_files_that_earlier_ones_share_count_once(tmp_path: Path) -> None:
    """One segment of 100 KB that does not change: all fit into 200 KB."""
    checkpoints = Checkpoints(tmp_path, history=200_000)
    clients = {cid: {"m": {"w": torch.ones(5000)}} for cid in range(5)}
    for step in range(1, 9):
        checkpoints.save(Snapshot(step, {}, clients, 0, {}), set() if step > 1 else None)
    assert sorted(checkpoints.steps()) == list(range(1, 9))


def test_any_kept_step_can_be_loaded(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 5, keep=3)
    clients: dict[int, State] = {}
    assert_equal(checkpoints.load(2, clients), snapshot_at(2))
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        checkpoints.load(3, {})
    (tmp_path / "step-000001" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-000001.*damaged"):
        checkpoints.load(1, {})


def segments(folder: Path, step: int) -> dict[str, list[int]]:
    """Who is in which segment of a checkpoint, oldest first."""
    found = {}
    for path in sorted((folder / f"step-{step:06d}").glob("*.states")):
        with open(path, "rb") as file:
            found[path.name] = [cid for cid, _ in records(file)]
    return found


def linked(folder: Path, *steps: int) -> list[str]:
    """Segments that two checkpoints share."""
    one, other = (folder / f"step-{step:06d}" for step in steps)
    return [n for n in names(one) if (other / n).exists() and (one / n).samefile(other / n)]


def test_unchanged_clients_are_linked_and_changed_ones_written(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4, 5)
    first, second = "clients-000000.states", "clients-000001.states"
    assert segments(tmp_path, 4) == {first: list(range(CLIENTS))}
    assert segments(tmp_path, 5) == {first: list(range(CLIENTS)), second: [1, 5]}
    assert linked(tmp_path, 4, 5) == [first]
    checkpoints.save(snapshot_at(6))
    assert segments(tmp_path, 6) == {first: list(range(CLIENTS))}
    assert linked(tmp_path, 5, 6) == [], "None: any client may have changed"
    for step in (7, 8, 9):  # the oldest owner of a linked file is pruned on the way
        checkpoints.save(snapshot_at(step), changed_at(step))
        assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(step))


def test_nothing_of_the_clients_is_written_when_nothing_changed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4)
    checkpoints.save(replace(snapshot_at(4), step=5), set())
    assert (
        linked(tmp_path, 4, 5) == names(tmp_path / "step-000005")[:1] == ["clients-000000.states"]
    )
    assert_equal(checkpoints.load_latest()[0], replace(snapshot_at(4), step=5))


def test_segments_stay_few_and_mostly_current(tmp_path: Path) -> None:
    """One client of 32 changes per checkpoint. Each segment holds more than twice as many as the
    next, so there are at most 1 + log2(32) = 6 of them, with less than 64 states in all."""
    state: dict[int, State] = {cid: {"m": {"w": torch.zeros(1)}} for cid in range(32)}
    checkpoints = Checkpoints(tmp_path)
    written = 0
    for step in range(1, 41):
        state = {**state, step % 32: {"m": {"w": torch.full((1,), float(step))}}}
        checkpoints.save(Snapshot(step, {}, state, 0, {}), None if step == 1 else {step % 32})
        sizes = [len(ids) for ids in segments(tmp_path, step).values()]
        assert all(older > 2 * newer for older, newer in pairwise(sizes))
        assert sum(sizes) < 64
        written += sizes[-1]
    assert written < 40 * 6, "states written; all of them every time would be 1280"
    assert_equal(Checkpoints(tmp_path).load_latest()[0], Snapshot(40, {}, state, 0, {}))


def test_after_loading_only_changes_are_written(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    resumed = Checkpoints(tmp_path)
    resumed.load_latest()
    resumed.save(snapshot_at(5), changed_at(5))
    assert linked(tmp_path, 4, 5) == ["clients-000000.states"]
    assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(5))
    resumed = Checkpoints(tmp_path)
    resumed.load_latest()  # of two segments
    resumed.save(snapshot_at(6), changed_at(6))
    assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(6))


def test_a_client_without_a_change_is_never_read(tmp_path: Path) -> None:
    """So that states which lie on disk stay there."""

    class Watched(dict[int, State]):
        def __getitem__(self, cid: int) -> State:
            read.append(cid)
            return super().__getitem__(cid)

    read: list[int] = []
    checkpoints = saved(tmp_path, 4)
    checkpoints.save(replace(snapshot_at(5), clients=Watched(snapshot_at(5).clients)), {1, 5})
    assert read == [1, 5]


def test_without_a_known_previous_checkpoint_everything_is_written(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    Checkpoints(tmp_path).save(snapshot_at(9), changed=set())
    assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(9))


@pytest.mark.parametrize("gone", [(), (3,)])
@pytest.mark.parametrize("damage", ["short", "missing", "none"])
def test_a_client_that_is_new_or_gone_or_damaged_before(
    tmp_path: Path, gone: tuple[int, ...], damage: str
) -> None:
    checkpoints = saved(tmp_path, 4)
    segment = tmp_path / "step-000004" / "clients-000000.states"
    if damage == "short":
        segment.write_bytes(b"short")
    elif damage == "missing":
        segment.unlink()
    after = snapshot_at(4)
    clients = {cid: state for cid, state in after.clients.items() if cid not in gone}
    wanted = replace(after, step=5, clients={**clients, 99: {"m": {"a": torch.ones(1)}}})
    checkpoints.save(wanted, changed=set())
    assert_equal(Checkpoints(tmp_path).load_latest()[0], wanted)


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert_equal(saved(tmp_path, 1, 2, 3).load_latest()[0], snapshot_at(3))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["manifest.json", "server.safetensors", "clients-000001.states"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "bytes instead of|truncated"),
        (alter, "differs|altered"),
        (Path.unlink, "missing"),
    ],
)
def test_damage_is_noticed_and_the_one_before_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], None], reason: str
) -> None:
    saved(tmp_path, 4, 5)
    damage(tmp_path / "step-000005" / file)
    resumed = Checkpoints(tmp_path)
    got, warnings = resumed.load_latest()
    assert_equal(got, snapshot_at(4))
    assert len(warnings) == 1
    assert warnings[0].startswith(f"checkpoint step-000005 is damaged ({file}: ")
    assert warnings[0].endswith("; going on from step-000004")
    assert re.search(reason, warnings[0])
    resumed.save(snapshot_at(5), changed_at(5))
    assert names(tmp_path) == ["step-000004", "step-000005"]
    got, warnings = Checkpoints(tmp_path).load_latest()
    assert not warnings
    assert_equal(got, snapshot_at(5))


@pytest.mark.parametrize("entry", ["step", "journal_bytes", "totals"])
def test_a_changed_number_in_the_manifest_is_noticed(tmp_path: Path, entry: str) -> None:
    saved(tmp_path, 4, 5)
    manifest = tmp_path / "step-000005" / "manifest.json"
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(body | {entry: 6}))
    got, warnings = Checkpoints(tmp_path).load_latest()
    assert got.step == 4
    assert "manifest.json: sha256 differs" in warnings[0]


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{}", "\x00\x00"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    saved(tmp_path, 4, 5)
    (tmp_path / "step-000005" / "manifest.json").write_text(text)
    assert Checkpoints(tmp_path).load_latest()[0].step == 4


def test_damaged_ones_do_not_take_the_place_of_good_ones(tmp_path: Path) -> None:
    """Steps 6 and 8 are damaged; going on from 4 and saving 5 and 7 must keep 5 and 7."""
    saved(tmp_path, 4, 6, 8, keep=3)
    for step in (6, 8):
        alter(tmp_path / f"step-00000{step}" / "server.safetensors")
    resumed = Checkpoints(tmp_path)
    got, warnings = resumed.load_latest()
    assert got.step == 4
    assert ["step-000008" in warnings[0], "step-000006" in warnings[1]] == [True, True]
    resumed.save(snapshot_at(5), changed_at(5))
    assert names(tmp_path) == ["step-000004", "step-000005"]
    resumed.save(snapshot_at(7))
    assert names(tmp_path) == ["step-000005", "step-000007"]


def test_nothing_to_load_names_the_folder_and_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"in {tmp_path}/none: it has no step-"):
        Checkpoints(tmp_path / "none").load_latest()
    saved(tmp_path, 4, 5)
    for step in (4, 5):
        (tmp_path / f"step-00000{step}" / "server.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"in .*: .*step-000005.*missing.*step-000004"):
        Checkpoints(tmp_path).load_latest()


def test_another_format_stops_instead_of_falling_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 4)
    with monkeypatch.context() as newer:
        newer.setattr("fedloom.runs.checkpoint.FORMAT", 99)
        checkpoints.save(snapshot_at(5))
    with pytest.raises(CheckpointError, match="step-000005 is in format 99"):
        Checkpoints(tmp_path).load_latest()


def test_the_same_step_again_leaves_the_first_until_the_second_is_whole(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4, keep=1)
    again = replace(snapshot_at(4), extra={"again": True})
    assert checkpoints.save(again).name == "step-000004-1"
    assert names(tmp_path) == ["step-000004-1"]
    assert_equal(Checkpoints(tmp_path).load_latest()[0], again)
    checkpoints.save(snapshot_at(5))
    assert names(tmp_path) == ["step-000005"]


def test_an_earlier_step_gives_up_the_later_ones(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5).save(snapshot_at(2))
    assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(2))


def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"step 2 in .*No space left"):
            checkpoints.save(snapshot_at(2), changed_at(2))
    assert names(tmp_path) == ["step-000001"]
    checkpoints.save(snapshot_at(2), changed_at(2))
    assert_equal(Checkpoints(tmp_path).load_latest()[0], snapshot_at(2))


def save_forever(folder: Path, begun: Event) -> None:
    """The body of a process that is going to be killed."""
    checkpoints = Checkpoints(folder)
    first = checkpoints.load_latest()[0].step + 1
    for step in count(first):
        checkpoints.save(snapshot_at(step), changed_at(step))
        begun.set()


def save_until_call(folder: Path, fatal: int) -> None:
    """Save the next step, and die by SIGKILL at the given call that touches the disk."""
    checkpoints = Checkpoints(folder)
    step = checkpoints.load_latest()[0].step + 1
    calls = count()

    def die_at(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(module, name, call)

    for name in ("mkdir", "link", "fsync", "rename", "rmdir", "unlink"):
        die_at(os, name)
    die_at(store, "pack")  # half of a segment is written
    die_at(checkpoint, "_manifest")
    checkpoints.save(snapshot_at(step), changed_at(step))


def started(target: Callable[..., None], *args: object) -> BaseProcess:
    process = PROCESSES.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def test_kill_9_at_any_call_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "start", 4).save(snapshot_at(5))
    for fatal in count():
        folder = tmp_path / str(fatal)
        shutil.copytree(tmp_path / "start", folder)
        process = started(save_until_call, folder, fatal)
        process.join(timeout=LIMIT)
        got, warnings = Checkpoints(folder).load_latest()
        assert not warnings
        assert_equal(got, snapshot_at(got.step))
        assert got.step in (5, 6)
        resumed = Checkpoints(folder)
        resumed.load_latest()
        resumed.save(snapshot_at(7))
        assert names(folder) == [f"step-00000{got.step}", "step-000007"], "leftovers are gone"
        shutil.rmtree(folder)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    # mkdir; server, link, two clients, manifest; 3 files and the folder synced; rename, folder
    # synced; the oldest renamed, its 3 files and itself removed
    assert fatal >= 1 + 5 + 4 + 2 + 5, "the save was killed at every call it made"


def test_kill_9_at_any_time_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    chance = random.Random(0)
    before = 1
    for _ in range(20):
        begun = PROCESSES.Event()
        process = started(save_forever, tmp_path, begun)
        assert begun.wait(timeout=LIMIT)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join(timeout=LIMIT)
        got, warnings = checkpoints.load_latest()
        assert not warnings
        assert got.step > before
        assert_equal(got, snapshot_at(got.step))
        before = got.step


SMALL = st.sampled_from(
    [
        torch.zeros(2),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(1, 2),
        torch.zeros(()),
        torch.ones(()),
        torch.zeros(0),
        torch.zeros(0, 2),
        torch.tensor(-0.0),
    ]
)
NAMES = st.text('ab/\\"é\n', max_size=3)
KEYS = st.text('ab/\\"é', max_size=3)
STATES = st.dictionaries(NAMES, st.dictionaries(KEYS, SMALL, max_size=3), max_size=3)
CLIENT_STATES = st.dictionaries(st.integers(0, 12), STATES, max_size=3)


def content(server: State, clients: dict[int, State]) -> set[tuple[object, ...]]:
    """What the digest is about, spelled out."""
    return {
        (owner, name, key, str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
        for owner, state in [(None, server), *clients.items()]
        for name, tree in state.items()
        for key, tensor in tree.items()
    }


@given(STATES, CLIENT_STATES, STATES, CLIENT_STATES)
def test_digests_are_equal_exactly_when_the_content_is(
    server: State, clients: dict[int, State], server2: State, clients2: dict[int, State]
) -> None:
    same = content(server, clients) == content(server2, clients2)
    assert (state_sha256(server, clients) == state_sha256(server2, clients2)) == same


@given(STATES, CLIENT_STATES)
def test_digests_do_not_depend_on_order_or_strides(
    server: State, clients: dict[int, State]
) -> None:
    def turned(state: State) -> State:
        return {
            name: {key: strided(tensor) for key, tensor in reversed(tree.items())}
            for name, tree in reversed(state.items())
        }

    def strided(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor + 1], dim=-1)[..., 0]

    backwards = {cid: turned(state) for cid, state in reversed(clients.items())}
    assert state_sha256(turned(server), backwards) == state_sha256(server, clients)


def test_digest_tells_owners_and_names_apart() -> None:
    tree = {"w": torch.ones(2)}
    digests = [
        state_sha256({"m": tree}, {}),
        state_sha256({}, {0: {"m": tree}}),
        state_sha256({}, {1: {"m": tree}}),
        state_sha256({"m/w": {"": torch.ones(2)}}, {}),
        state_sha256({"": {"m/w": torch.ones(2)}}, {}),
        state_sha256({"m": {"w": torch.ones(2).long()}}, {}),
        state_sha256({"m": {"w": torch.ones(2, 1)}}, {}),
        state_sha256({}, {}),
    ]
    assert len(set(digests)) == len(digests)


@settings(deadline=None, max_examples=40)  # as fast as the disk
@given(STATES)
def test_any_state_comes_back(tmp_path_factory: pytest.TempPathFactory, state: State) -> None:
    folder = tmp_path_factory.mktemp("any")
    wanted = Snapshot(0, state, {3: state}, 0, {})
    Checkpoints(folder).save(wanted)
    assert_equal(Checkpoints(folder).load_latest()[0], wanted)
    shutil.rmtree(folder)
