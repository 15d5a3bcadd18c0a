"""`--policy site.toml`: a simulation plays by a site's rules, for every client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as library
from fedloom.data import FederatedData
from fedloom.errors import BadInput
from helpers import fedloom

HONEST: dict[str, Any] = {
    "rounds": 1,
    "min_clients": 2,
    "batch_size": 10,
    "drop_last": True,
    "model": "mlp(hidden=[8], norm=batch)",
}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A whole site.toml, of which only the table counts here."""
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\ndata = "rows.csv"\nstate = "kept"\n[policy]\nleast_rows = 30\n')
    return file


def federation(*rows: int) -> FederatedData:
    """Clients `a`, `b` ... with so many rows, of which three quarters train."""
    draw = np.random.default_rng(0)
    pairs = {
        name: (draw.normal(size=(n, 5)), np.arange(n) % 2)
        for name, n in zip("abcd", rows, strict=False)
    }
    return FederatedData.from_clients(pairs)


def test_a_permitted_run_has_the_bytes_it_has_without(policy: Path) -> None:
    data = federation(60, 64, 80)
    with_policy = library.run("fedavg", data, policy=policy, **HONEST)
    assert (
        with_policy.summary.state_sha256
        == library.run("fedavg", data, **HONEST).summary.state_sha256
    )


def test_a_refusal_names_client_and_rule_and_no_round_is_run(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(BadInput) as refused:
        library.run("fedavg", federation(60, 20, 80), policy=policy, out=str(out), **HONEST)
    assert "client b (15 rows): few_rows" in str(refused.value)
    assert "client a" not in str(refused.value)
    assert not out.exists()


def test_what_concerns_everybody_is_said_once(policy: Path) -> None:
    with pytest.raises(BadInput) as refused:
        library.run("fedavg + fedmix", federation(60, 64, 80), policy=policy, **HONEST)
    assert str(refused.value).count("row_means") == 1
    assert "every client: row_means" in str(refused.value)
    assert "by linear algebra" in str(refused.value)


def test_a_comparison_is_refused_before_its_first_run(policy: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "runs", federation(60, 64)
    with pytest.raises(BadInput, match="single_models"):
        library.compare(
            ["fedavg", "fedfomo"], data, seeds=[0], policy=policy, out=str(out), **HONEST
        )
    assert not out.exists()


def test_a_method_that_is_no_expression_is_judged_too(policy: Path) -> None:
    class Mine(library.Term):
        pass

    with pytest.raises(BadInput, match="unknown: mine does not declare"):
        library.run(library.FedAvg() + Mine(), federation(60, 64), policy=policy, **HONEST)


def test_the_commands(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["--rounds", "1", "--clients", "3", "--policy", str(policy), "--out", str(out)]
    for words in (["run"], ["compare", "fedavg", "--seeds", "1"]):
        done = fedloom(*words, *command)
        assert done.code != 0
        assert "few_participants" in done.err
        assert not out.exists()


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read the site's configuration"):
        library.run("fedavg", federation(60, 64), policy=tmp_path / "none.toml", **HONEST)
