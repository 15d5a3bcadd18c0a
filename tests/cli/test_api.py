"""The same from Python: what README and tutorials do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from helpers import LIMIT, fedloom

SMALL = {"rounds": 2, "clients": 4, "partition": "iid"}


def test_a_sum_of_objects_is_its_expression() -> None:
    made = fl.run(fl.FedAvg() + fl.Proximal(mu=0.5), "digits", **SMALL)
    written = fl.run("fedavg + proximal(mu=0.5)", fl.load("digits"), **SMALL)
    assert made.summary.method == "fedavg + proximal(mu=0.5)"
    assert made.summary.state_sha256 == written.summary.state_sha256
    assert made.accuracy == written.summary.accuracy
    assert made.summary.run is None


def test_a_path_is_written_down_like_its_text(tmp_path: Path) -> None:
    """So that a run on a `Path` can be resumed without giving it again."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(40, 3)), y=np.arange(40) % 2)
    run = fl.run("local", tmp_path / "own.npz", rounds=1, clients=2, out=str(tmp_path / "run"))
    assert fl.resume(tmp_path / "run").accuracy == run.accuracy


def test_nothing_is_written_without_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fl.run("local", **{**SMALL, "rounds": 1})
    fl.compare(["local", "fedavg"], seeds=[0], **{**SMALL, "rounds": 1})
    assert list(tmp_path.iterdir()) == []


def test_comparing_objects_and_expressions() -> None:
    found = fl.compare(["local", fl.Ditto(lam=0.1)], "digits", seeds=[0, 2], **SMALL)
    assert [row.label for row in found.rows] == ["local", "ditto(lam=0.1)"]
    assert [s.seed for s in found.rows[1].summaries] == [0, 2]
    alone = fl.run(fl.Ditto(lam=0.1), "digits", seed=2, **SMALL)
    assert found.rows[1].summaries[1].state_sha256 == alone.summary.state_sha256


def test_a_module_of_ones_own_is_split_before_its_last_layer() -> None:
    """FedPer shares the body only: 64 * 6 + 6 = 390 float32 from 4 clients in 2 rounds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = fl.run("fedper", "digits", model=model, **SMALL)
    assert result.summary.bytes_up == 390 * 4 * 4 * 2
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    again = fl.run("fedper", "digits", model=model, **SMALL)
    assert again.summary.state_sha256 == result.summary.state_sha256


def test_clients_that_bring_their_own_arrays() -> None:
    """Three sites that call opposite halves of the plane by the same name: one model for all is
    right for two of them, personal models for each."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(80, 2)).astype(np.float32) for _ in range(3)]
    y = [(a[:, 0] > 0).astype(int) for a in x]
    y[2] = 1 - y[2]
    data = fl.FederatedData.from_clients(list(zip(x, y, strict=True)))
    local = fl.run("local", data, rounds=20, lr=0.2)
    shared = fl.run("fedavg", data, rounds=20, lr=0.2)
    assert local.accuracy > 0.9
    assert shared.accuracy < 0.8


def test_a_method_of_ones_own_in_a_script_with_worker_processes(tmp_path: Path) -> None:
    """Defined and registered in `__main__`, used as an object and by its name, on the pool."""
    script = tmp_path / "mine.py"
    script.write_text(
        dedent(
            '''
            from dataclasses import dataclass
            from typing import ClassVar
            import fedloom as fl

            @fl.register
            @dataclass(frozen=True, kw_only=True)
            class Doubled(fl.Method):
                """FedAvg with a loss of twice the size."""
                name: ClassVar[str] = "doubled"
                times: float = 2.0

                def loss(self, b, s):
                    return self.times * super().loss(b, s)

            if __name__ == "__main__":
                small = dict(rounds=1, clients=3, partition="iid")
                runs = [
                    fl.run("doubled", **small),
                    fl.run(Doubled(times=2.0), **small, engine="pool", workers=1),
                    fl.run("fedavg", **small, lr=0.1),
                    fl.run("fedavg", **small, lr=0.05),
                ]
                print(*(r.summary.state_sha256 for r in runs))
            '''
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    by_name, on_pool, twice, once = done.stdout.split()
    # Doubling the loss is doubling the learning rate, exactly: a power of two.
    assert by_name == on_pool == twice != once


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="FedAvgg"):
        _ = fl.FedAvgg
    assert {"run", "compare", "resume", "FedAvg", "Proximal", "register"} <= set(dir(fl))


@pytest.mark.slow
@pytest.mark.skipif("FEDLOOM_DATA" not in os.environ, reason="needs FEDLOOM_DATA/fashion_mnist")
def test_the_long_example(tmp_path: Path) -> None:
    """The issue's command, with fewer rows per client."""
    done = fedloom(
        *("run", "--method", "fedavg + proximal(mu=0.01)", "--data", "fashion_mnist"),
        *("--partition", "dirichlet(alpha=0.1) + scarce(size=20)", "--clients", "20"),
        *("--model", "cnn4", "--rounds", "1", "--epochs", "1", "--batch-size", "10"),
        *("--lr", "0.005", "--protocol", "dbe", "--engine", "pool", "--workers", "2"),
        *("--seed", "0", "--out", tmp_path / "first", "--json"),
    )
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    assert done.record["protocol"] == "dbe"
    assert done.record["clients"] == 20
    assert done.record["bytes_up"] == 20 * 582_026 * 4  # cnn4's parameters
    assert 0 <= done.record["result"]["value"] <= 1
