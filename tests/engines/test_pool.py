"""The pool gives the reference engine's bytes with any number of workers, and breaks loudly."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedloom.core.method import Method
from fedloom.data import FederatedData
from fedloom.engines import make_engine
from fedloom.engines.inline import Inline
from fedloom.engines.pool import Pool
from fedloom.engines.worker import failure, rebuilt
from fedloom.errors import BadInput, HookError, UnknownName, WorkerLost
from fedloom.launch.start import start
from fedloom.methods import parse_method
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import digits, outcome

# Unequal clients, one of a single row, classes missing everywhere.
HOLDINGS = (((0, 1, 2), 30), ((3,), 1), ((4, 5), 17), ((6, 7, 8, 9), 40), ((0, 9), 8))


@dataclass(frozen=True, kw_only=True)
class Faulty(Method):
    """Has a programming error in its loss, at client 2."""

    name: ClassVar[str] = "faulty"

    def loss(self, b: Any, s: Any) -> Any:
        loss = super().loss(b, s)
        return loss if s.cid != 2 else loss + {}["no such key"]


@dataclass(frozen=True, kw_only=True)
class Deadly(Method):
    """Ends the process that trains client 2, as the kernel does when memory runs out."""

    name: ClassVar[str] = "deadly"

    def loss(self, b: Any, s: Any) -> Any:
        if s.cid == 2:
            os._exit(77)
        return super().loss(b, s)


def build(method: str | Method, **settings: Any) -> Experiment:
    """Five clients of digits, two rounds."""
    config = RunConfig.checked({"rounds": 2, "model": "mlp(hidden=[8])", **settings})
    experiment = parse_method(method) if isinstance(method, str) else method
    return Experiment.build(config, experiment, digits(*HOLDINGS))


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One pool for many runs, as a comparison uses it."""
    experiment = Pool(request.param)
    yield experiment
    experiment.close()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedrep(adapt_epochs=2) + control_variates", {"participation": 0.6}),
        ("ditto + model_contrast", {"newcomers": 1, "protocol": "fedpac"}),
        ("fedavg + dbe", {"augment": "flip", "protocol": "dbe"}),
        ("local", {"model": "mlp(hidden=[8]) | mlp(hidden=[6, 5])"}),
    ],
)
def test_any_number_of_workers_gives_the_same_bytes_and_numbers(
    method: str, settings: dict[str, Any], pool: Pool
) -> None:
    """Two rounds with final adaptation, partial cohorts, newcomers, augmentation, unlike nets; and
    a pool that has done other runs before gives what a fresh reference engine gives."""
    experiment = build(method, **settings)
    assert outcome(start(experiment, pool)) == outcome(start(experiment, Inline()))


@pytest.mark.skipif("FEDLOOM_DATA" not in os.environ, reason="needs FEDLOOM_DATA/fashion_mnist")
def test_images_and_convolutions_agree(pool: Pool) -> None:
    """Convolutions choose their algorithm at run time; one thread per process keeps the bytes."""
    config = RunConfig(
        method="fedavg + proximal(mu=0.01)",
        data="fashion_mnist",
        partition="dirichlet(alpha=0.5) + scarce(size=40)",
        clients=4,
        model="cnn4",
        rounds=1,
        protocol="dbe",
    )
    experiment = Experiment.build(config)
    assert outcome(start(experiment, pool)) == outcome(start(experiment, Inline()))


def test_arrays_in_memory_reach_the_workers(pool: Pool) -> None:
    rng = np.random.default_rng(0)
    sites = [
        (rng.normal(size=(12 + i, 3)).astype(np.float32), np.arange(12 + i) % 2) for i in range(3)
    ]
    config = RunConfig(method="fedper", rounds=2, model="mlp(hidden=[4])")
    experiment = Experiment.build(config, data=FederatedData.from_clients(sites))
    assert outcome(start(experiment, pool)) == outcome(start(experiment, Inline()))


def test_a_program_error_arrives_with_its_trace_and_the_pool_goes_on() -> None:
    """Client 2 fails while another worker still computes. Were that answer left in its pipe, the
    next run would take it for its own. Then the workers stay, and end when the pool closes."""
    pool = Pool(2)
    try:
        with pytest.raises(HookError) as caught:
            start(build(Faulty()), pool)
        assert str(caught.value) == (
            "faulty.loss at client 2, round 1 (phase 'local'): KeyError: 'no such key'"
        )
        trace = str(caught.value.__cause__)
        assert 'return loss if s.cid != 2 else loss + {}["no such key"]' in trace
        experiment = build("fedper")
        assert outcome(start(experiment, pool)) == outcome(start(experiment, Inline()))
        pids = {p.pid for p in pool._processes.values()}
        start(build("fedavg", rounds=1), pool)
        workers = list(pool._processes.values())
        assert {p.pid for p in workers} == pids
    finally:
        pool.close()
    assert not any(p.is_alive() for p in workers)
    pool.close()  # twice is fine


def test_a_lost_worker_is_named_and_the_folder_can_be_resumed(tmp_path: Path) -> None:
    experiment = build(Deadly(), out=str(tmp_path / "run"), engine="pool")
    pool = Pool(2)
    with pytest.raises(WorkerLost, match=r"exit code 77\) at client 2; .*then resume"):
        start(experiment, pool)
    workers = list(pool._processes.values())
    pool.close()
    assert not any(p.is_alive() for p in workers)
    assert (tmp_path / "run" / "checkpoints" / "step-000000" / "manifest.json").exists()


def test_what_workers_try_with_blocks_of_clients_is_logged_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """40 equal clients for one worker come ten in a message, which has a block of eight."""
    data = digits(*(((i % 10,), 6) for i in range(40)))
    config = RunConfig(method="fedavg", rounds=2, model="mlp(hidden=[8])")
    pool = Pool(1)
    try:
        with caplog.at_level(logging.INFO, "fedloom"):
            start(Experiment.build(config, data=data), pool)
    finally:
        pool.close()
    assert re.search(
        "a worker: 8 clients of 6 rows as one computation, (accepted|refused): ", caplog.text
    )


@pytest.mark.parametrize(
    ("name", "message"), [("pol", "did you mean 'pool'"), ("horovod", "inline, pool")]
)
def test_unknown_engines(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        make_engine(name)


def test_an_error_in_a_hook_still_tells_where_from_what_after_the_pipe() -> None:
    """The reason may quote data, so whoever passes on only the place must be able to."""
    try:
        raise HookError("mine.loss at client 2, round 1", "ValueError: row 17")
    except HookError as error:
        received = rebuilt(failure(error))
    assert isinstance(received, HookError)
    assert received.where == "mine.loss at client 2, round 1"
    assert str(received) == "mine.loss at client 2, round 1: ValueError: row 17"


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(BadInput, match="at least one worker, got 0"):
        Pool(0)


def test_a_device_that_is_not_here() -> None:
    with pytest.raises(BadInput, match="device 'nowhere' cannot be used here"):
        make_engine("inline", device="nowhere")
