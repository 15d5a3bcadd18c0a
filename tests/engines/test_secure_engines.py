"""Secure aggregation on several engines, after a resume, and computed again by somebody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import StopAt

pytest.importorskip("flwr")

import fedloom as fl
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.engines import Absent, JobOf
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 5,
    "partition": "iid",
    "model": "mlp(hidden=[8])",
    "rounds": 3,
    "participation": 0.8,
    "secure_aggregation": "pairwise",
}
METHOD = "fedavg + dbe"


def made(out: Path, **settings: Any) -> fl.Result:
    return fl.run(METHOD, **{**SETTINGS, **settings}, out=str(out))


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("secure") / "inline"
    made(out)
    return out


def digests(out: Path) -> bytes:
    return (out / "digests.jsonl").read_bytes()


@pytest.mark.parametrize("engine", ["pool", "vectorized", "flower"])
def test_engines_give_the_same_bytes(engine: str, inline: Path, tmp_path: Path) -> None:
    """Also over Flower's messages, with what clients keep at the nodes: of four members of a round
    every message and every kept state has the digest that it has in one process."""
    made(tmp_path / "run", engine=engine)
    assert digests(tmp_path / "run") == digests(inline)


def test_a_resumed_run_gives_the_same_bytes(inline: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        made(out, watchers=[StopAt(2)])
    fl.resume(out)
    assert digests(out) == digests(inline)


def test_the_ledger_tells_of_every_message_and_of_no_rows(inline: Path) -> None:
    account = Account.read(inline / "ledger.jsonl")
    names = {tensor.name for shared in account.sets.values() for tensor in shared.tensors}
    assert {f"{SECURE}/public", f"{SECURE}/sealed", f"{SECURE}/shares"} <= names
    assert all(
        tensor.dtype == "uint8" for shared in account.sets.values() for tensor in shared.tensors
    )
    assert not any("rows" in shared.numbers for shared in account.sets.values())
    sent = sum(bytes_ for _, bytes_ in account.clients().values())
    records = fl.open(inline).records
    assert sent == sum(record.bytes_up for record in records)
    assert all(record.rows == {} for record in records)


@pytest.mark.parametrize("sample", [0.3, 1.0])
def test_a_run_is_computed_again(sample: float, inline: Path) -> None:
    """Single answers, whose masks follow from the keys of all, and whole steps."""
    result = fl.verify(inline, sample=sample)
    assert result.good, result.sentence
    assert result.checked["answers"] > 0


class OneLeaves(Inline):
    """Client 2 sends its shares in round 2, and no upload."""

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        jobs = {cid: job(cid) for cid in ids}
        for cid, asked in jobs.items():
            plan = asked.down.plan
            if cid == 2 and plan.t == 2 and plan.kind == "train":
                yield cid, Absent("it slept"), {}
            else:
                yield from super().clients([cid], jobs.__getitem__, ask)


def test_a_run_from_which_a_client_went_is_computed_again(tmp_path: Path) -> None:
    config = {**SETTINGS, "method": METHOD, "participation": 1.0, "out": str(tmp_path / "run")}
    result = start(Experiment.build(RunConfig.checked(config)), OneLeaves())
    assert [record.absent for record in result.records if record.round == 2] == [{2: "it slept"}]
    verdict = fl.verify(tmp_path / "run", sample=1.0)
    assert verdict.good, verdict.sentence
