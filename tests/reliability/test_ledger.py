"""The ledger says what left which client, on every engine, and survives a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.core.message import Up
from fedloom.engines import Engine, make_engine
from fedloom.errors import FedloomError
from fedloom.launch.start import go_on, start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account, Shared
from helpers import StopAt, digits, fedloom

CLIENTS = (((0, 1, 2), 30), ((3, 4), 17), ((4, 5, 6), 12))


def experiment(out: Path, method: str = "fedper", **settings: Any) -> Experiment:
    config = RunConfig(method=method, rounds=3, model="mlp(hidden=[8])", out=str(out), **settings)
    return Experiment.build(config, data=digits(*CLIENTS))


def account(folder: Path) -> Account:
    return Account.read(folder / "ledger.jsonl")


def test_an_upload_is_described_by_name_shape_type_and_bytes() -> None:
    up = Up({"model": {"w": torch.zeros(2, 3), "n": torch.tensor(1)}, "x": {}}, 7, {"loss": 0.5})
    shared = Shared.of(up)
    assert shared.tensors == (("model/w", (2, 3), "float32", 24), ("model/n", (), "int64", 8))
    assert shared.numbers == ("rows", "loss")
    assert shared.nbytes == 32
    assert Shared.from_record(json.loads(json.dumps(shared.as_record(0)))) == shared


def test_personal_tensors_are_not_in_it_and_bytes_agree_with_the_journal(tmp_path: Path) -> None:
    """fedper on 64-8-10: the body's 64 x 8 + 8 numbers of 4 bytes leave, the head stays."""
    result = start(experiment(tmp_path / "run"), make_engine("inline"))
    found = account(tmp_path / "run")
    (shared,) = found.sets.values()
    assert {name.split(".")[0] for name, *_ in shared.tensors} == {"model/body"}
    assert shared.nbytes == (64 * 8 + 8) * 4 == 2080
    assert found.clients() == dict.fromkeys(range(3), (3, 3 * 2080))
    assert sum(sent for _, sent in found.clients().values()) == result.summary.bytes_up
    assert set(shared.numbers) >= {"rows", "loss"}


def test_special_rounds_and_rounds_with_half_of_the_clients(tmp_path: Path) -> None:
    start(experiment(tmp_path / "run", "fedavg + dbe", participation=0.7), make_engine("inline"))
    found = account(tmp_path / "run")
    kinds = [(s["kind"], sum(len(g["clients"]) for g in s["shared"])) for s in found.steps]
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
