"""Smaller uploads, worked by hand; and that a run with them is the same wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom import BadInput, FedloomError, run
from fedloom.core.compression import NONE, RESIDUAL, Compression, parse_compression
from fedloom.core.rng import generator
from fedloom.core.tree import State, Tree
from fedloom.engines.inline import Inline
from fedloom.launch.start import go_on, start
from fedloom.methods import register
from fedloom.observed_traffic import runnable
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account
from fedloom.verification.check import verify
from helpers import StopAt, digits, outcome

BOTH = ["quantize(bits=4)", "top_k(share=0.1)"]


def row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def encoded(text: str, change: Tensor) -> Tree:
    return parse_compression(text).encode(change, generator("test"))


def decoded(text: str, change: Tensor) -> list[float]:
    how = parse_compression(text)
    numbers: list[float] = how.decode(encoded(text, change), len(change)).tolist()
    return numbers


def long(*numbers: float) -> Tensor:
    """These and zeros, as many as it takes to be compressed."""
    return torch.tensor([*numbers, *[0.0] * (64 - len(numbers))])


def sent_by(
    how: Compression, value: Tensor, received: Tensor, left: Tree | None = None
) -> tuple[State, Tree]:
    up, start = {"model": {"w": value}}, {"model": {"w": received}}
    return how.compressed(up, start, {"w"}, left or {}, generator("test"))


# ------------------------------------------------------------------ fewer bits


def test_a_known_row_in_four_bits() -> None:
    """Four bits have the multiples -7 to 7, so the step of the largest change, 3.5, is 0.5. 1.75
    and -0.75 lie between two multiples and go to the even one, 4 and -2; 0.3 is nearest to 1. Seven
    added, these are 7, 11, 5, 8 and 0, two in a byte: 0x7B, 0x58, and 0x0 filled up."""
    change, text = row(0, 1.75, -0.75, 0.3, -3.5), "quantize(bits=4, stochastic=False)"
    parts = encoded(text, change)
    assert parts["levels"].tolist() == [0x7B, 0x58, 0x00]
    assert parts["scale"] == 0.5
    assert decoded(text, change) == [0.0, 2.0, -1.0, 0.5, -3.5]


def test_three_bits_lie_in_a_row() -> None:
    """The step is 1, the levels 6, 0, 4, 3, 2, 5, 3, 6: 110 000 100 011 010 101 011 110."""
    change = row(3, -3, 1, 0, -1, 2, 0, 3)
    assert encoded("quantize(bits=3)", change)["levels"].tolist() == [
        0b11000010,
        0b00110101,
        0b01011110,
    ]
    assert decoded("quantize(bits=3)", change) == change.tolist()


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    """A quarter of the step is 0 or 1 steps, 1 for a quarter of 40,000 numbers: their deviation is
    sqrt(0.25 * 0.75 / 40000) = 0.0022. To the nearest, all were 0."""
    change = torch.full((40_001,), 0.25, dtype=torch.float64)
    change[0] = 1.0
    numbers = torch.tensor(decoded("quantize(bits=2)", change))
    assert set(numbers.tolist()) == {0.0, 1.0}
    assert float(numbers[1:].mean()) == pytest.approx(0.25, abs=0.011)


@pytest.mark.parametrize("bits", range(2, 9))
def test_no_number_is_off_by_a_step(bits: int) -> None:
    change = torch.randn(997, generator=generator("change"), dtype=torch.float64)
    parts = encoded(f"quantize(bits={bits})", change)
    assert len(parts["levels"]) == -(-997 * bits // 8)
    off = torch.tensor(decoded(f"quantize(bits={bits})", change)) - change
    assert float(off.abs().max()) <= float(parts["scale"]) * (1 + 1e-6)


@pytest.mark.parametrize("text", ["quantize", "top_k(share=0.5)"])
def test_what_is_no_number_stays_to_be_seen(text: str) -> None:
    """Whoever reads the upload refuses it, as without compression; zeros come back as zeros."""
    assert not all(map(torch.isfinite, map(torch.tensor, decoded(text, row(1, float("nan"), 0)))))
    assert not all(map(torch.isfinite, map(torch.tensor, decoded(text, row(1, float("inf"), 0)))))
    assert decoded(text, row(0, 0, 0)) == [0.0, 0.0, 0.0]


# ------------------------------------------------------------------ fewer numbers


def test_of_equal_numbers_the_first_are_sent() -> None:
    """Two fifths of five are two. 2 is the largest, three times; the places 1 and 2 come first. The
    gaps count from before the first place."""
    change = row(1, -2, 2, 0, -2)
    parts = encoded("top_k(share=0.4)", change)
    assert parts["gaps"].tolist() == [2, 1]
    assert parts["values"].tolist() == [-2.0, 2.0]
    assert decoded("top_k(share=0.4)", change) == [0.0, -2.0, 2.0, 0.0, 0.0]
    assert decoded("top_k(share=0.41)", change) == [0.0, -2.0, 2.0, 0.0, -2.0]
    assert decoded("top_k(share=0.01)", change) == [0.0, -2.0, 0.0, 0.0, 0.0]
    assert decoded("top_k(share=1.0)", change) == change.tolist()


def test_seven_hundredths_of_a_hundred_are_seven() -> None:
    assert 0.07 * 100 > 7  # as computers count
    assert len(encoded("top_k(share=0.07)", torch.arange(100.0).double())["values"]) == 7


def test_what_was_left_out_is_sent_later() -> None:
    """One number is sent in a round. The changes are (4, 3), (1, 2), (1, 1.5). First goes 4, and 3
    is left. With it the second change is (1, 5): 5 goes, 1 is left. The third is (2, 1.5): 2 goes,
    1.5 is left. Sent and left are all that changed, (6, 6.5). Without feedback the second upload
    were 2, the third 1.5 in the second place."""
    how, left, server = parse_compression("top_k(share=0.015625)"), Tree(), long(10, 20)
    uploads = []
    for change in ((4, 3), (1, 2), (1, 1.5)):
        up, left = sent_by(how, server + long(*change), server, left)
        uploads.append(how.restored(up, {"model": {"w": server}})["model"]["w"] - server)
    assert [u[:2].tolist() for u in uploads] == [[4, 0], [0, 5], [2, 0]]
    assert left["w"][:2].tolist() == [0, 1.5]
    assert (sum(uploads) + left["w"])[:2].tolist() == [6, 6.5]


def test_places_that_a_tensor_does_not_have_are_refused() -> None:
    how = parse_compression("top_k")
    for gaps in ([6], [0], [3, -1], [3, 3]):
        values = torch.ones(len(gaps))
        with pytest.raises(BadInput, match="numbers that a tensor of 5 does not have"):
            how.decode({"gaps": torch.tensor(gaps), "values": values}, 5)


# ------------------------------------------------------------------ what is compressed


def test_the_change_is_compressed_and_not_the_value() -> None:
    """Around 1000 a step of 0.001 is far below what 8 bits have of the value."""
    how = parse_compression("quantize(bits=8, stochastic=False)")
    received = torch.full((64,), 1000.0)
    value = received + long(0.127, 0.064)
    up, _ = sent_by(how, value, received)
    assert list(up["model"]) == ["w@levels", "w@scale"]
    assert torch.allclose(how.restored(up, {"model": {"w": received}})["model"]["w"], value)


def test_what_is_no_large_change_of_a_parameter_travels_as_it_is() -> None:
    tree = {
        "w": torch.ones(8, 8),
        "few": torch.ones(63),
        "count": torch.ones(99, dtype=torch.int64),
        "variance": torch.ones(99),
        "not_sent": torch.ones(99),
        "other_shape": torch.ones(99),
    }
    received = {k: v for k, v in tree.items() if k != "not_sent"} | {"other_shape": torch.ones(98)}
    parameters = set(tree) - {"variance"}
    up = {"part": {"w": torch.ones(99)}, "model": tree}
    how = parse_compression("quantize")
    sent, left = how.compressed(up, {"model": received}, parameters, {}, generator("test"))
    assert list(sent["model"]) == ["w@levels", "w@scale", *list(tree)[1:]]
    assert sent["part"] is up["part"]
    assert not left
    assert list(how.restored(sent, {"model": received})["model"]) == list(tree)


def test_a_change_of_what_was_not_sent_cannot_be_restored() -> None:
    up, _ = sent_by(how := parse_compression("quantize"), long(1), long(0))
    with pytest.raises(BadInput, match="the change of 'w', which was not sent"):
        how.restored(up, {})


@pytest.mark.parametrize("text", ["none", "quantize", "quantize(bits=4)", "top_k(share=0.2)"])
def test_an_expression_reads_back(text: str) -> None:
    assert str(parse_compression(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("quantize(bits=1)", "bits is from 2 to 8, not 1"),
        ("top_k(share=0.0)", "share is above 0 and at most 1, not 0.0"),
        ("gzip", "unknown compression .gzip.; there are: none, quantize, top_k"),
    ],
)
def test_other_expressions_are_refused(text: str, why: str) -> None:
    with pytest.raises(FedloomError, match=why):
        parse_compression(text)


# ------------------------------------------------------------------ runs

FOUR = digits(((0, 1, 2), 30), ((3, 4), 17), ((4, 5, 6), 12), ((0, 9), 20))
SMALL: dict[str, Any] = {
    "clients": 8,
    "rounds": 3,
    "model": "mlp(hidden=[8])",
    "partition": "iid",
    "progress": False,
}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("none", 4 * (512 + 8 + 80 + 10)),
        ("quantize", 512 + 4 + 80 + 4 + 4 * (8 + 10)),
        ("quantize(bits=4)", 256 + 4 + 40 + 4 + 4 * (8 + 10)),
        ("top_k(share=0.1)", 6 * (52 + 8) + 4 * (8 + 10)),
    ],
)
def test_journal_and_ledger_have_the_bytes_that_leave(
    text: str, nbytes: int, tmp_path: Path
) -> None:
    """Of 64 inputs, 8 units and 10 classes: weights of 512 and 80 numbers; biases of 8 and 10
    stay as they are. A tenth of the weights is 51.2, so 52, and 8, with two bytes for a place."""
    result = run("fedavg", **{**SMALL, "rounds": 1}, compression=text, out=str(tmp_path / "run"))
    assert result.summary.bytes_up == 8 * nbytes
    account = Account.read(tmp_path / "run" / "ledger.jsonl")
    assert account.clients() == dict.fromkeys(range(8), (1, nbytes))


@pytest.mark.parametrize(("method", "text"), zip(["fedavg + dbe", "fedpac"], BOTH, strict=True))
def test_every_engine_gives_the_same_bytes(method: str, text: str) -> None:
    inline, *others = (
        run(method, **SMALL, compression=text, engine=engine).summary
        for engine in ("inline", "pool", "vectorized", "flower")
    )
    for other in others:
        assert (other.state_sha256, other.bytes_up) == (inline.state_sha256, inline.bytes_up)


@pytest.mark.parametrize("text", BOTH)
def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(text: str, tmp_path: Path) -> None:
    """Also with half of the clients in a round: what the others left out waits for them."""

    def build(out: str) -> Experiment:
        settings = {"rounds": 4, "participation": 0.5, "model": "mlp(hidden=[8])"}
        config = {**settings, "compression": text, "out": str(tmp_path / out)}
        return Experiment.build(RunConfig.checked({"method": "fedper", **config}), data=FOUR)

    whole = start(build("whole"), Inline())
    with pytest.raises(KeyboardInterrupt):
        start(build("run"), Inline(), [StopAt(2)])
    assert outcome(go_on(build("run"), Inline())) == outcome(whole)


def test_clients_keep_what_they_left_out_and_special_rounds_leave_it_alone() -> None:
    """DBE asks for means before the first round."""
    result = run("fedavg + dbe", **SMALL, compression="top_k(share=0.1)")
    kept = result.clients
    assert all(set(kept[cid][RESIDUAL]) == {"body.1.weight", "head.weight"} for cid in range(8))
    special = [record.bytes_up for record in result.records if record.kind == "special"]
    plain = run("fedavg + dbe", **SMALL)
    assert special == [r.bytes_up for r in plain.records if r.kind == "special"] != []
    assert not any(RESIDUAL in plain.clients[cid] for cid in range(8))


def test_somebody_else_can_verify_a_run_with_smaller_uploads(tmp_path: Path) -> None:
    run("fedrep", **SMALL, compression="top_k(share=0.1)", out=str(tmp_path / "run"))
    assert verify(tmp_path / "run", sample=0.5, seed=1).good


def test_with_eight_bits_a_run_learns_as_well() -> None:
    few = {**SMALL, "rounds": 5, "lr": 0.2, "model": "mlp(hidden=[32])"}
    plain, small = (run("fedavg", **few, compression=c) for c in ("none", "quantize"))
    assert small.accuracy > plain.accuracy - 0.02
    assert small.summary.bytes_up < 0.3 * plain.summary.bytes_up


def test_rules_and_hostile_clients_see_whole_uploads() -> None:
    few = {**SMALL, "rounds": 5, "lr": 0.2, "compression": "quantize"}
    lost, kept = (
        run("fedavg", **few, hostile="scaled(factor=-100)", aggregation=rule).accuracy
        for rule in ("mean", "median")
    )
    assert lost < 0.3 < kept - 0.2


def test_a_method_that_shares_no_parameters_refuses_it_by_name() -> None:
    with pytest.raises(BadInput, match="fedproto shares no parameters of this one"):
        run("fedproto", **SMALL, compression="quantize")


@pytest.mark.parametrize("name", sorted(register))
def test_every_method_runs_with_it_or_refuses_it(name: str) -> None:
    """Uploads are restored before a part reads them, whatever the part does with them."""
    few = {"method": runnable(name), "rounds": 1, "model": "mlp(hidden=[16], norm=batch)"}
    program = Experiment.build(RunConfig.checked(few), data=FOUR).program
    assert program.compression == NONE
    small = RunConfig.checked({**few, "compression": "top_k(share=0.5)"})
    trained = program.shared(0) & program.nets[0].params
    if all(program.nets[0].initial[k].numel() < 64 for k in trained):
        with pytest.raises(BadInput, match="shares no parameters"):
            Experiment.build(small, data=FOUR)
        return
    assert start(Experiment.build(small, data=FOUR), Inline()).summary.bytes_up > 0
