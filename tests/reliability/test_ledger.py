"""The ledger says what left which client, on every engine, and survives a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.core.message import Plan, Up
from fedloom.core.score import ClientScore
from fedloom.engines import Engine, make_engine
from fedloom.errors import FedloomError
from fedloom.launch.start import go_on, start
from fedloom.record import RoundRecord, SharedSet, SharedTensor, dump, load
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account, Ledger, shared_in
from helpers import StopAt, digits, fedloom

CLIENTS = (((0, 1, 2), 30), ((3, 4), 17), ((4, 5, 6), 12))


def experiment(out: Path, method: str = "fedper", **settings: Any) -> Experiment:
    config = RunConfig(method=method, rounds=3, model="mlp(hidden=[8])", out=str(out), **settings)
    return Experiment.build(config, data=digits(*CLIENTS))


def account(folder: Path) -> Account:
    return Account.read(folder / "ledger.jsonl")


def test_an_upload_is_described_by_name_shape_type_and_bytes() -> None:
    score = ClientScore("trained", "test", 5, {"accuracy": 0.5}, "generic_head")
    state = {"model": {"w": torch.zeros(2, 3), "n": torch.tensor(1)}, "x": {}}
    shared = shared_in(Up(state, 7, {"loss": 0.5}, (score,)))
    assert shared.tensors == (
        SharedTensor("model/w", (2, 3), "float32", 24),
        SharedTensor("model/n", (), "int64", 8),
    )
    assert shared.numbers == (
        "rows",
        "loss",
        "trained/test (generic_head): accuracy",
        "trained/test (generic_head): rows",
    )
    assert shared.nbytes == 32
    assert load(SharedSet, dump(shared), "here") == shared


def test_personal_tensors_are_not_in_it_and_bytes_agree_with_the_journal(tmp_path: Path) -> None:
    """fedper on 64-8-10: the body's 64 x 8 + 8 numbers of 4 bytes leave, the head stays."""
    result = start(experiment(tmp_path / "run"), make_engine("inline"))
    found = account(tmp_path / "run")
    (shared,) = found.sets.values()
    assert {tensor.name.split(".")[0] for tensor in shared.tensors} == {"model/body"}
    assert shared.nbytes == (64 * 8 + 8) * 4 == 2080
    assert found.clients() == dict.fromkeys(range(3), (3, 3 * 2080))
    assert sum(sent for _, sent in found.clients().values()) == result.summary.bytes_up
    assert set(shared.numbers) >= {"rows", "loss"}


def test_special_rounds_and_rounds_with_half_of_the_clients(tmp_path: Path) -> None:
    start(experiment(tmp_path / "run", "fedavg + dbe", participation=0.7), make_engine("inline"))
    found = account(tmp_path / "run")
    kinds = [(s.kind, sum(len(by.clients) for by in s.shared)) for s in found.steps]
    assert kinds[0] == ("special", 3)
    assert [n for kind, n in kinds if kind == "train"] == [2, 2, 2]
    assert len(found.sets) == 2  # what the special round asks for, and what training gives


@pytest.mark.parametrize("name", ["pool", "vectorized", "flower"])
def test_every_engine_writes_the_same(name: str, tmp_path: Path) -> None:
    for engine_name in ("inline", name):
        engine: Engine = make_engine(engine_name)
        try:
            start(experiment(tmp_path / engine_name, participation=0.7), engine)
        finally:
            engine.close()
    assert account(tmp_path / name) == account(tmp_path / "inline")


def test_a_stopped_run_has_every_line_once(tmp_path: Path) -> None:
    engine = make_engine("inline")
    start(experiment(tmp_path / "whole"), engine)
    made = experiment(tmp_path / "run", checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        start(made, engine, [StopAt(3)])
    go_on(made, engine)
    assert account(tmp_path / "run") == account(tmp_path / "whole")


def test_what_left_in_a_round_that_was_given_up_stays_across_a_resume(tmp_path: Path) -> None:
    """A checkpoint after round 1, then a round that too few answered and one that counted: the run
    goes on from the checkpoint, and only what was sent in vain is still in the ledger."""
    path, first = tmp_path / "ledger.jsonl", Up({"model": {"w": torch.zeros(1)}}, 3)
    other, new = Up({"model": {"v": torch.zeros(2)}}, 3), Up({"model": {"u": torch.zeros(3)}}, 3)

    def counted(step: int, t: int) -> RoundRecord:
        return RoundRecord(step, t, "train", "model", (0,), None, 0, 0, 0.0, {}, ())

    with Ledger.open(path) as ledger:
        ledger.enter(0, first)
        ledger.end_step(counted(0, 1))
        checkpoint = ledger.sync()
        ledger.enter(0, other)
        ledger.give_up(1, Plan(2))
        ledger.enter(0, new)
        ledger.end_step(counted(1, 2))
    with Ledger.open(path, checkpoint) as ledger:
        ledger.enter(1, other)
        ledger.end_step(counted(1, 2))
    book = Account.read(path)
    assert [(s.round, s.counted, [by.clients for by in s.shared]) for s in book.steps] == [
        (1, True, [(0,)]),
        (2, False, [(0,)]),
        (2, True, [(1,)]),
    ]
    names = {number: [t.name for t in shared.tensors] for number, shared in book.sets.items()}
    assert names == {0: ["model/w"], 1: ["model/v"]}
    assert book.clients() == {0: (2, 4 + 8), 1: (1, 8)}


def test_a_number_that_stayed_is_not_given_twice(tmp_path: Path) -> None:
    """Sets 0 and 1 are cut away and 2 stays: what is shared next gets a number of its own."""
    path = tmp_path / "ledger.jsonl"
    ups = [Up({"model": {name: torch.zeros(1)}}, 3) for name in "abcd"]
    with Ledger.open(path) as ledger:
        ledger.enter(0, ups[0])
        ledger.enter(0, ups[1])
        ledger.end_step(RoundRecord(0, 1, "train", "model", (0,), None, 0, 0, 0.0, {}, ()))
        ledger.enter(0, ups[2])
        ledger.give_up(1, Plan(2))
    with Ledger.open(path) as ledger:
        ledger.enter(0, ups[3])
        ledger.enter(0, ups[0])
        ledger.enter(0, ups[1])
        ledger.end_step(RoundRecord(0, 1, "train", "model", (0,), None, 0, 0, 0.0, {}, ()))
    sets = Account.read(path).sets
    assert sorted(shared.tensors[0].name[-1] for shared in sets.values()) == list("abcd")


def test_the_command_prints_names_and_bytes(tmp_path: Path) -> None:
    start(experiment(tmp_path / "run"), make_engine("inline"))
    done = fedloom("ledger", tmp_path / "run")
    assert done.code == 0
    assert "Shared by all 3 clients: 3 times, rounds 1 to 3" in done.out
    assert "8x64" in done.out
    assert "head" not in done.out
    record = fedloom("ledger", tmp_path / "run", "--json").record
    assert record["clients"]["1"] == {"messages": 3, "bytes": 6240}
    missing = fedloom("ledger", tmp_path)
    assert missing.code == 1
    assert "has no ledger.jsonl; check the path" in missing.err


def test_no_ledger_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"has no ledger\.jsonl"):
        account(tmp_path)
