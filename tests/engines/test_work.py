"""Speed, guarded by counting: forward passes, models built, rows read, bytes copied and sent.

Seconds vary with the machine; these counts do not, and each is what the seconds are made of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.core.client import client
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Visit
from fedloom.core.tree import nbytes
from fedloom.data.federated import Inputs
from fedloom.engines import pipe_codec, pool
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.methods import parse_method
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import digits

SIZES = (30, 1, 17, 40)
DATA = digits(((0, 1, 2), 30), ((3,), 1), ((4, 5), 17), ((6, 7, 8, 9), 40))

RECEIVED = "fedloom(moment=received, also=none)"
"""One evaluation of test and of validation rows at each client."""
HOW_WIDE = 1
"""Passes of made-up rows, before the first evaluation of a network."""


def build(method: str, **settings: Any) -> Experiment:
    values = {"rounds": 2, "model": "mlp(hidden=[8])", "batch_size": 10, **settings}
    return Experiment.build(RunConfig.checked({"method": method, **values}), data=DATA)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How often a stage is run, a net is made, and how many rows are read."""
    counts: Counter = Counter()
    run, make, read = Net._run, Net.__init__, Inputs.__call__

    def counting_run(self: Net, w: Any, name: str, z: Any, train: Any) -> Any:
        counts[name] += 1
        return run(self, w, name, z, train)

    def counting_make(self: Net, *args: Any, **stages: nn.Module) -> None:
        counts["nets"] += 1
        make(self, *args, **stages)

    def counting_read(self: Inputs, rows: torch.Tensor, gen: Any) -> torch.Tensor:
        counts["rows"] += len(rows)
        counts["reads"] += 1
        return read(self, rows, gen)

    monkeypatch.setattr(Net, "_run", counting_run)
    monkeypatch.setattr(Net, "__init__", counting_make)
    monkeypatch.setattr(Inputs, "__call__", counting_read)
    return counts


def test_a_round_runs_the_net_once_per_batch_and_reads_every_row_once(calls: Counter) -> None:
    """Batches of 10 of 30, 1, 17 and 40 rows: 3 + 1 + 2 + 4 = 10 steps a round, 20 in two. The one
    evaluation, of 6 test and 6 validation rows each, is 8 more, received and trained: 16. One pass
    of made-up rows tells how wide the network is. Every row is read once an epoch, all of a
    client's at a time; no net is made after the program's."""
    experiment = build("fedavg", eval_every=2)
    calls.clear()
    start(experiment, Inline())
    assert calls["body"] == calls["head"] == 20 + 16 + HOW_WIDE
    assert calls["rows"] == 2 * sum(SIZES) + 2 * 4 * (6 + 6)
    assert calls["reads"] == 2 * 4 + 2 * 8
    assert calls["nets"] == 0


def test_a_frozen_body_runs_once_per_fit(calls: Counter) -> None:
    """FedRep, 4 head epochs and 1 of the body: 10 steps and 4 scans for the body instead of 50."""
    method = "fedrep(head_epochs=4, body_epochs=1, adapt_epochs=0)"
    experiment = build(method, rounds=1, protocol=RECEIVED)
    calls.clear()
    start(experiment, Inline())
    evaluated = 4 + 4 + HOW_WIDE
    assert calls["body"] == 4 + 10 + evaluated
    assert calls["head"] == 4 * 10 + 10 + evaluated


def test_features_that_were_just_looked_at_are_not_computed_again(calls: Counter) -> None:
    """FedPAC scans the received body for its statistics; the head's epoch reads the same features.
    A client: that scan, its body's steps (10 in all), a scan of the trained body."""
    experiment = build("fedpac", rounds=1, protocol=RECEIVED)
    calls.clear()
    start(experiment, Inline())
    evaluated = 4 + 4 + HOW_WIDE
    assert calls["body"] == 4 + 10 + 4 + evaluated
    assert calls["head"] == 10 + 10 + evaluated


class Copies(TorchDispatchMode):
    """Bytes that torch copies from tensor to tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("clone", "copy_", "_to_copy", "contiguous"):
            out_bytes = out.numel() * out.element_size()
            self.bytes += out_bytes if out_bytes > 4096 else 0  # weights; not labels and scalars
        return out


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("fedavg", 3),  # the model to train, the fit's copy of it, what leaves the site
        ("ditto", 8),  # the same, and for the second model: kept, its fit, its clone, what is kept
    ],
)
def test_a_visit_copies_the_model_few_times(method: str, models: int) -> None:
    net = Net((64,), body=nn.Linear(64, 256), head=nn.Linear(256, 64))
    program = Program(replace(parse_method(method), opt=Opt(batch=8)), net, 1)
    data = build("fedavg").data.client(0)
    plan = program.schedule(1)[-1]
    r = Round(program, plan, initial_server(program), [0])
    visit = Visit(program, 0, _flat(data), send(r, 0), None)
    with Copies() as copied:
        client(visit)
    weights = nbytes({"model": {k: v for k, v in net.initial.items() if v.ndim == 2}})
    assert copied.bytes <= models * weights


def _flat(data: Any) -> Any:
    """Images as vectors."""

    class Flat:
        y, augmented = data.train.y, False

        def __len__(self) -> int:
            return len(data.train)

        def x(self, idx: torch.Tensor, gen: Any = None) -> torch.Tensor:
            return data.train.x(idx).flatten(1)

    return replace(data, train=Flat())


def test_a_pool_sends_the_model_once_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 equal clients on one worker: a message is full with half of the rows that are left, small
    clients by 8, 16, 32 or 64: 32 and 8, 2 messages. Each carries the model once."""
    messages: list[int] = []

    def counting_send(link: Any, head: Any, states: Any = ()) -> None:
        distinct = {id(v): v for s in states for tree in s.values() for v in tree.values()}
        messages.append(nbytes({"all": dict(enumerate(distinct.values()))}))
        pipe_codec.send(link, head, states)

    monkeypatch.setattr(pool, "send", counting_send)
    data = digits(*[((i % 10,), 12) for i in range(40)], held_out=1)
    protocol = "fedloom(moment=trained, also=none)"
    config = RunConfig(rounds=1, model="mlp(hidden=[8])", protocol=protocol)
    experiment = Experiment.build(config, data=data)
    engine = pool.Pool(1)
    try:
        result = start(experiment, engine)
    finally:
        engine.close()
    assert messages == [0] + [nbytes(result.server)] * 2  # first the program
