"""Runs with privacy: the same bytes on every engine and after resume; epsilon in journal, summary,
report and dossier; the end at a budget; and a site's rules about it."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.core.message import Plan
from fedloom.core.privacy import ClientPrivacy, ExamplePrivacy
from fedloom.core.program import Program
from fedloom.deploy.operations.dossier import dossier_of_run
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.models import build_model
from fedloom.policy import Policy, facts_of, refusals
from fedloom.record import RoundRecord
from fedloom.report.page import report
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import federated
from fedloom.runs.journal import read_records
from fedloom.runs.privacy_account import PrivacyAccount

SETTINGS: dict[str, Any] = {
    "model": "mlp(hidden=[8])",
    "clients": 8,
    "partition": "iid",
    "rounds": 3,
    "batch_size": 64,
    "progress": False,
}
LEVELS = ["client(clip=0.5, noise=0.5)", "example(clip=0.5, noise=0.5)"]


def run(method: str = "fedavg", **settings: Any) -> fl.Result:
    return fl.run(method, "digits", **{**SETTINGS, **settings})


@pytest.mark.parametrize("privacy", LEVELS)
@pytest.mark.parametrize("engine", ["vectorized", "pool"])
def test_engines_give_the_same_bytes(privacy: str, engine: str) -> None:
    plain, other = run(privacy=privacy), run(privacy=privacy, engine=engine)
    assert other.summary.state_sha256 == plain.summary.state_sha256
    assert other.summary.digest == plain.summary.digest


@pytest.mark.parametrize("privacy", LEVELS)
def test_a_run_that_goes_on_ends_with_the_same_bytes_and_the_same_epsilon(
    privacy: str, tmp_path: Path
) -> None:
    """Counted on, not anew."""
    whole = run(privacy=privacy, out=str(tmp_path / "whole"))
    run(privacy=privacy, out=str(tmp_path / "short"), rounds=2)
    resumed = fl.resume(tmp_path / "short", rounds=3, progress=False)
    assert resumed.summary.state_sha256 == whole.summary.state_sha256
    assert resumed.summary.privacy == whole.summary.privacy


def test_epsilon_is_counted_by_client_and_by_the_mean(tmp_path: Path) -> None:
    """Four of eight clients a round. Towards the server a client with k uploads has k mechanisms of
    noise 2; in the mean of four, the noise of all four is on the sum: noise 2 sqrt 4 = 4."""
    result = run(privacy="client(noise=2)", participation=0.5, out=str(tmp_path / "run"))
    uploads = dict.fromkeys(range(8), 0)
    for record in result.records:
        for cid in record.cohort:
            uploads[cid] += 1
        most = max(uploads.values())
        assert record.privacy is not None
        assert record.privacy.epsilon == ClientPrivacy(noise=2.0).epsilon_after(most)
        assert record.privacy.epsilon_of_mean == pytest.approx(
            ClientPrivacy(noise=4.0).epsilon_after(most)
        )
        assert record.loss is None
        assert set(record.rows.values()) == {1}
    spent = result.summary.privacy
    assert spent is not None
    assert spent.mechanisms == {cid: n for cid, n in uploads.items() if n}

    stored = read_records(tmp_path / "run" / "metrics.jsonl", RoundRecord)
    assert [r.privacy for r in stored] == [r.privacy for r in result.records]
    assert "epsilon" in report([tmp_path / "run"], tmp_path / "report.html").read_text()
    page = dossier_of_run(tmp_path / "run", "0").write(tmp_path / "dossier").read_text()
    own = ClientPrivacy(noise=2.0).epsilon_after(uploads[0])
    assert f"epsilon is {own:.4g}" in page


def test_epochs_are_counted_for_rows() -> None:
    """Head and body: FedRep goes over the rows five times a round, two rounds."""
    result = run("fedrep(head_epochs=4, body_epochs=1)", privacy="example", rounds=2)
    assert result.summary.privacy is not None
    assert result.summary.privacy.epsilon == ExamplePrivacy().epsilon_after(10)
    assert result.summary.privacy.epsilon_of_mean is None


def test_special_rounds_count() -> None:
    """DBE's mean of features is an upload before the first round."""
    result = run("fedavg + dbe", privacy="client", rounds=2)
    assert result.summary.privacy is not None
    assert set(result.summary.privacy.mechanisms.values()) == {3}


def test_a_method_that_reads_single_uploads_is_promised_no_epsilon_of_means() -> None:
    spent = run("fedpac", privacy="client", rounds=1).summary.privacy
    assert spent is not None
    assert spent.epsilon_of_mean is None


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "top_k(share=0.1)"},
        {"secure_aggregation": True},
        {"model": "mlp(hidden=[8], norm=batch)"},
    ],
)
def test_what_is_done_to_single_uploads_leaves_no_epsilon_of_means(
    settings: dict[str, Any],
) -> None:
    """It could not be done to the sum of the noisy uploads; and releases are counted all the same,
    also where nobody says how many rows there are."""
    spent = run(privacy="client", rounds=2, **settings).summary.privacy
    assert spent is not None
    assert spent.epsilon_of_mean is None
    assert spent.mechanisms == dict.fromkeys(range(8), 2)
    assert spent.epsilon == ClientPrivacy().epsilon_after(2)


def test_a_run_without_privacy_writes_what_it_always_did(tmp_path: Path) -> None:
    run(out=str(tmp_path / "run"), rounds=1)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert "privacy" not in json.loads(line)
    assert "privacy" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_answers_to_a_round_that_is_given_up_count() -> None:
    """Client 0 answered twice: two releases towards the server. The mean over both clients was seen
    once, with the noise of both: one release of noise sqrt 2."""
    net = build_model("mlp(hidden=[8])", (1, 8, 8), 10, seed=0)
    program = Program(parse_method("fedavg"), net, 2, privacy=ClientPrivacy())
    account = PrivacyAccount.of(program)
    assert account is not None
    account.give_up(Plan(1), {0: 1})
    spent = account.after(Plan(1), {0: 1, 1: 1})
    assert (spent.mechanisms, spent.repeated) == ({0: 1, 1: 1}, {0: 1})
    assert spent.epsilon == ClientPrivacy().epsilon_after(2)
    assert spent.epsilon_of_mean == pytest.approx(ClientPrivacy(noise=sqrt(2)).epsilon_after(1))
    account.accept(spent)
    assert account.mechanisms == {0: 2, 1: 1}
    assert account.after(Plan(2, "adapt"), {0: 1}).epsilon == spent.epsilon


# ------------------------------------------------------------------ the budget


def test_the_training_ends_before_the_round_that_would_be_too_much() -> None:
    """Of noise 1, three rounds come to an epsilon under 9, four to one over it."""
    three, four = (ClientPrivacy().epsilon_after(k) for k in (3, 4))
    budget = (three + four) / 2
    result = run(privacy=f"client(budget={budget})", rounds=6)
    assert result.summary.rounds == 3
    assert result.summary.stopped is not None
    assert "budget" in result.summary.stopped
    assert result.summary.privacy is not None
    assert result.summary.privacy.epsilon == three


def test_a_run_that_its_budget_ended_takes_no_more_rounds_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    budget = (ClientPrivacy().epsilon_after(2) + ClientPrivacy().epsilon_after(3)) / 2
    ended = run(privacy=f"client(budget={budget})", rounds=6, out=str(tmp_path / "run"))
    with pytest.raises(BadInput, match="because of its budget"):
        fl.resume(tmp_path / "run", rounds=8, progress=False)
    assert fl.open(tmp_path / "run").summary.digest == ended.summary.digest


def test_a_budget_leaves_room_for_the_rounds_that_measure_at_the_end() -> None:
    """With evaluations every fourth round the last one is evaluated all the same."""
    budget = (ClientPrivacy().epsilon_after(3) + ClientPrivacy().epsilon_after(4)) / 2
    result = run(privacy=f"client(budget={budget})", rounds=6, eval_every=4)
    assert result.summary.rounds == 3
    assert result.accuracy >= 0


def test_a_budget_for_no_round_at_all_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(BadInput, match="over the budget"):
        run(privacy="client(budget=0.1)", out=str(out))
    assert not out.exists()


# ------------------------------------------------------------------ a site's rules


def refused(policy: dict[str, Any], **settings: Any) -> set[str]:
    base = {"clients": 4, "min_clients": 4, "partition": "iid", "batch_size": 16, "rounds": 10}
    config = RunConfig.checked({**base, "epochs": 4, **settings})
    facts = facts_of(federated(config))
    allow = ("dense_layers", "rare_classes", "small_batches")
    return {r.rule for r in refusals(Policy.checked(allow=allow, **policy), config, facts)}


def test_a_site_may_demand_noise_and_bound_epsilon() -> None:
    wanted = {"privacy": "client", "least_noise": 1.0, "most_epsilon": 20.0}
    assert refused({}) == set()
    assert refused(wanted) == {"privacy", "least_noise"}
    assert refused(wanted, privacy="client") == set()
    assert refused(wanted, privacy="client(noise=0.5)") == {"least_noise", "most_epsilon"}
    assert refused(wanted, privacy="client", rounds=20) == {"most_epsilon"}
    assert refused(wanted, privacy="client(budget=1)", rounds=20) == {"most_epsilon"}
    assert refused(wanted, privacy="client(delta=0.01)") == {"most_delta"}


def test_a_site_takes_the_level_that_it_wants() -> None:
    """An epsilon of the one is none of the other: a row that is exchanged can move a clipped change
    by twice its length."""
    wanted = {"privacy": "example"}
    assert refused(wanted) == {"privacy"}
    assert refused(wanted, privacy="example") == set()
    assert refused(wanted, privacy="client") == {"privacy"}
    assert refused({"privacy": "client"}, privacy="example") == {"privacy"}


def test_epochs_count_at_a_site_too() -> None:
    """40 epochs of noise 4 tell as much as 10 of noise 2."""
    bound = ExamplePrivacy(noise=2.0).epsilon_after(10)
    assert refused({"most_epsilon": bound + 0.01}, privacy="example(noise=4)") == set()
    assert refused({"most_epsilon": bound - 0.01}, privacy="example(noise=4)") == {"most_epsilon"}
