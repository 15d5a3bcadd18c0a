"""What nobody trains travels once, is stored once, and its outputs are computed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.client import client
from fedloom.core.frozen import FROZEN, Frozen
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Visit
from fedloom.core.tree import WeightedSum, nbytes
from fedloom.engines import Job
from fedloom.engines.flower.expected_upload import ExpectedUpload
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.ledger import Account
from helpers import digits, play, same

DATA = digits(((0, 1), 20), ((2, 3), 20))
BODY = (64 * 4 + 4) * 4
"""Bytes of the frozen body."""
HEAD = (4 * 10 + 10) * 4
MARK = 32 + 2
"""A digest, and a byte for each of the two frozen tensors."""


class Counted(nn.Linear):
    """Counts the rows it was run on."""

    rows = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.rows += len(x)
        return super().forward(x.flatten(1))


def program(method: str, frozen: str = "body.*", clients: int = 2, width: int = 4) -> Program:
    torch.manual_seed(0)
    net = Net((1, 8, 8), body=Counted(64, width), head=nn.Linear(width, 10))
    net.freeze(frozen).shape_of("head")  # worked out once, so that it is not counted below
    return Program(replace(parse_method(method), opt=Opt(lr=0.1, batch=5)), net, clients, seed=0)


def test_a_client_is_sent_it_once_and_sends_it_never() -> None:
    played = play(it := program("fedavg"), DATA, it.schedule(3))
    down = [nbytes(answer.down.state) for answer in played.answers if answer.cid == 0]
    up = [nbytes(answer.up.state) for answer in played.answers if answer.cid == 0]
    assert down == [BODY + HEAD, HEAD + MARK, HEAD + MARK]
    assert up == [HEAD + MARK] * 3
    body = it.nets[0].initial["body.weight"]
    assert torch.equal(played.server["model"]["body.weight"], body)


def test_statistics_that_stay_with_clients_are_left_out_beside_the_rest() -> None:
    """DualFed shares no statistics; those of a frozen body are nevertheless kept by nobody."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
    net = Net((1, 8, 8), body=body, head=nn.Linear(4, 10)).freeze("body.*")
    method = replace(parse_method("dualfed(hidden=3)"), opt=Opt(lr=0.1, batch=5))
    played = play(it := Program(method, net, 2), DATA, it.schedule(2))
    last = played.answers[-1]
    for state in (last.down.state, last.up.state, last.kept):
        assert not any(key.startswith("body.") for key in state["model"])
    assert it.net(0).match("body.* !@stats") <= it.frozen.put_back(last.up.state)["model"].keys()
    assert it.net(0).match("body.2.running*") <= it.frozen.put_back(last.kept)["model"].keys()


@pytest.mark.parametrize(
    ("method", "slice_", "rest"),
    [
        ("fedavg(shared='head.*')", "model", 0),
        ("fedavg(shared='')", "model", HEAD),
        ("ditto", "ditto", HEAD),
    ],
)
def test_no_client_stores_it(method: str, slice_: str, rest: int) -> None:
    """Neither as a personal part of the model nor in a second model."""
    played = play(it := program(method), DATA, it.schedule(2))
    kept = played.clients[0]
    assert nbytes(kept) == rest + MARK
    assert it.nets[0].match("body.*") <= set(it.frozen.put_back(kept)[slice_])


def test_training_is_the_same_as_with_all_of_it_in_every_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = play(it := program("ditto"), DATA, it.schedule(2))
    monkeypatch.setattr(Frozen, "left_out", lambda frozen, state: state)
    whole = play(it, DATA, it.schedule(2))
    assert same(short.server["model"], whole.server["model"])
    assert same(it.frozen.put_back(short.clients[1])["ditto"], whole.clients[1]["ditto"])


def test_running_statistics_stay_only_where_their_stage_is_not_trained() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
    net = Net((1, 8, 8), body=body, head=nn.Linear(4, 10))
    statistics = {"body.2.running_mean", "body.2.running_var", "body.2.num_batches_tracked"}
    half = Program(parse_method("fedavg"), net.freeze("body.1.*"), 2)
    assert half.frozen.keys == {"body.1.weight", "body.1.bias"}
    whole = Program(parse_method("fedavg"), net.freeze("body.*"), 2)
    assert whole.frozen.keys == net.match("body.*") >= statistics
    moving = Program(parse_method("dualfed(frozen_eval=false)"), net, 2)
    assert not moving.frozen.keys & statistics


def test_what_a_method_changes_by_hand_travels_again() -> None:
    """SphereFed's fixed head is calibrated after the last round."""
    it = program("spherefed", frozen="!*", width=12)
    assert it.frozen.keys == {"head.weight"}
    played = play(it, DATA, it.schedule(1))
    before = it.nets[0].initial["head.weight"]
    assert not torch.equal(played.server["model"]["head.weight"], before)
    assert FROZEN not in it.frozen.left_out(played.server)


def test_unlike_networks_keep_all_of_their_own() -> None:
    nets = [
        Net((1, 8, 8), body=Counted(64, n), head=nn.Linear(n, 10)).freeze("body.*") for n in (3, 4)
    ]
    assert not Program(parse_method("fedavg(shared='')"), nets, 2).frozen.keys


def test_other_frozen_tensors_here_are_refused() -> None:
    state = {"model": program("fedavg").nets[0].tree()}
    short = program("fedavg").frozen.left_out(state)
    other = program("fedavg")
    other.nets[0].initial["body.bias"].add_(1)
    with pytest.raises(BadInput, match="not those that this state was made with"):
        other.frozen.put_back(short)


def test_a_server_refuses_an_answer_for_other_frozen_tensors() -> None:
    it = program("fedavg")
    expected = ExpectedUpload(it, classes=10, tokens=False)
    r = Round(it, it.schedule(1)[0], initial_server(it), [0, 1])
    job = Job(0, send(r, 0), None)
    up, _ = client(Visit(it, 0, DATA.client(0), job.down))
    assert expected.objection_to(job, up) == ""
    up.state[FROZEN]["model/"] += 1
    assert "others at this site than at the server" in expected.objection_to(job, up)


# ------------------------------------------------------------------ outputs


def test_outputs_are_computed_once_in_all_rounds_and_tests() -> None:
    """2 clients of 20 training rows and what they have of test rows."""
    it = program("fedavg + proximal")
    Counted.rows = 0
    play(it, DATA, it.schedule(3))
    assert Counted.rows == 40


def test_they_are_computed_again_where_memory_is_short() -> None:
    it, short = program("ditto"), program("ditto")
    short.outputs.budget = 0
    one, other = (play(p, DATA, p.schedule(2)) for p in (it, short))
    assert same(one.server["model"], other.server["model"])
    assert same(one.clients[0]["ditto"], other.clients[0]["ditto"])
    assert not short.outputs._held


def test_the_budget_is_kept() -> None:
    it = program("fedavg", clients=4)
    each = 20 * 4 * 4
    it.outputs.budget = 2 * each
    play(it, digits(*[((0, 1), 20)] * 4), it.schedule(1))
    assert [key[0] for key in it.outputs._held] == [(2, "train"), (3, "train")]


def test_on_the_disk_they_outlive_a_process(tmp_path: Path) -> None:
    """Until rows or frozen tensors are others, or the file is damaged."""
    folder = tmp_path / "outputs"

    def rows_run(rows: str = "rows", width: int = 4) -> int:
        it = program("fedavg", width=width)
        it.outputs.keep_on_disk(folder, rows)
        Counted.rows = 0
        play(it, DATA, it.schedule(1))
        return Counted.rows

    assert [rows_run(), rows_run(), rows_run("others"), rows_run(width=5)] == [40, 0, 40, 40]
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert rows_run() == 40


def test_known_outputs_are_of_one_input_and_one_model_only() -> None:
    net = program("fedavg").nets[0]
    w, x = net.tree(), torch.rand(2, 1, 8, 8)
    known = {"body": torch.ones(2, 4)}
    plain = net(w, x)["body"]
    with net.knowing(x, known, lambda tree: tree is w):
        assert torch.equal(net(w, x)["body"], known["body"])
        assert torch.equal(net(w, x, train=True)["body"], plain)
        assert torch.equal(net(w, x.clone())["body"], plain)
        assert torch.equal(net(dict(w), x)["body"], plain)
        x.add_(0)
        assert torch.equal(net(w, x)["body"], plain)
    assert torch.equal(net(w, x)["body"], plain)


# ------------------------------------------------------------------ runs

FROZEN_BODY = {"model": "mlp(hidden=[4], frozen='body.*')", "clients": 4, "rounds": 3}


def test_journal_ledger_and_checkpoints_show_it(tmp_path: Path) -> None:
    result = fl.run("ditto", out=str(tmp_path / "run"), **FROZEN_BODY)
    per_round = [record.bytes_down for record in result.records]
    assert per_round == [4 * (BODY + HEAD), 4 * (HEAD + MARK), 4 * (HEAD + MARK)]
    assert {record.bytes_up for record in result.records} == {4 * (HEAD + MARK)}
    tensors = [
        t.name
        for s in Account.read(tmp_path / "run" / "ledger.jsonl").sets.values()
        for t in s.tensors
    ]
    assert tensors == ["model/head.weight", "model/head.bias", f"{FROZEN}/model/"]
    states: dict[int, Any] = {}
    Checkpoints(tmp_path / "run" / "checkpoints").load_latest(states)
    assert {nbytes(state) for state in states.values()} == {HEAD + MARK}


@pytest.mark.parametrize(
    "engine", ["vectorized", "flower", pytest.param("pool", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("fedavg + dbe", "mlp(hidden=[4], frozen='body.*')"),
        ("fedavg(shared='*lora* head.*')", "mlp(hidden=[4], lora=2)"),
    ],
)
def test_engines_agree(method: str, model: str, engine: str) -> None:
    settings: Any = {**FROZEN_BODY, "model": model, "rounds": 2}
    here = fl.run(method, **settings).summary
    there = fl.run(method, engine=engine, **settings).summary
    assert there.digest == here.digest
    assert there.state_sha256 == here.state_sha256


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    settings: Any = {**FROZEN_BODY, "rounds": 2, "out": str(tmp_path / "run")}
    fl.run("ditto", **settings)
    resumed = fl.resume(tmp_path / "run", rounds=3)
    assert fl.verify(tmp_path / "run", sample=1.0).good
    assert resumed.summary.state_sha256 == fl.run("ditto", **FROZEN_BODY).summary.state_sha256


# ------------------------------------------------------------------ sums


def test_a_sum_of_the_same_tensor_is_that_of_equal_ones() -> None:
    """1 * 3 + 2 * 3 = 9, a third of it 3; then another tensor comes: (9 + 3 * 7) / 6 = 5."""
    one = torch.tensor([3.0])
    total = WeightedSum()
    total.fold({"a": one}, 1)
    total.fold({"a": one}, 2)
    assert total.sum()["a"] == 9
    assert total.mean()["a"] == 3
    total.fold({"a": torch.tensor([7.0])}, 3)
    assert total.mean()["a"] == 5
