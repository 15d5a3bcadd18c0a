"""`fedloom deploy approve | try` and `fedloom audit verify`, as a site's operator uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from gated_site import SITE, GatedSite, assess_here, gated_site
from served_order import served_order
from typer.testing import CliRunner, Result

from fedloom.cli import app
from fedloom.deploy.consent import cli as consent_cli
from fedloom.deploy.consent import decision, text
from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate.attempt import attempt
from fedloom.deploy.gate.decide import Gate
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.project.folder import Project, run_configuration
from fedloom.deploy.settings import Settings
from fedloom.engines.message_bundle import bundled
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.policy.training import numbers_used

WAITS = "waits for approval at the site"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedSite]:
    """It was asked once; assessments are computed in this process."""

    def here(self: decision.Desk, digest: str, with_app: bool, how: object = None) -> Assessment:
        return assess_here(self.file, digest, with_app)

    monkeypatch.setattr(decision.Desk, "assess", here)
    with gated_site(tmp_path) as made:
        made.ask(made.order())
        yield made


def fedloom(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def answers(monkeypatch: pytest.MonkeyPatch, *texts: str) -> list[str]:
    """Somebody sits at the terminal; returns what was asked."""
    asked: list[str] = []
    replies = iter(texts)

    def says_yes(question: str) -> bool:
        asked.append(question)
        return next(replies) == "yes"

    monkeypatch.setattr(consent_cli, "_says_yes", says_yes)
    return asked


def test_what_would_run_and_leave_is_shown_and_approved(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    (digest,) = site.desk.waiting()
    asked = answers(monkeypatch, "yes")
    done = fedloom("deploy", "approve", site.file)
    assert done.exit_code == 0, done.output
    assert asked == [f"Approve {digest[:12]}? Type yes: "]
    for words in (
        f"{SITE} is asked to take part in 'first'",
        f"app sha256 {site.app.sha256}",
        "federation/client_app.py",
        "fedloom's own",
        "starts federation.client_app:app",
        "The server may ask again",
        "method fedper",
        "epochs 1\n",
        "batch_size 16\n",
        "lr 0.05\n",  # which nobody wrote
        "It would train with epochs 1, batch_size 16, lr 0.05",
        "a round of training (3 times)",
        "model/body.1.weight [8, 64] float32, 2048 bytes",
        "What that can reveal",
        f"approved {digest}",
    ):
        assert words in done.output
    assert "head." not in done.output  # which FedPer keeps at the site
    assert "Nobody declared" not in done.output  # FedPer declares that it reveals nothing more
    assert not site.ask(site.order()).error
    assert digest in fedloom("deploy", "approve", site.file, "--list").output


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        ({"method": "fedper(lr=0.2)"}, {"epochs": "1", "batch_size": "16", "lr": "0.2"}),
        ({"lr": 0.1}, {"epochs": "1", "batch_size": "16", "lr": "0.1"}),
        ({"steps": 7}, {"epochs": "7 steps instead", "batch_size": "16", "lr": "0.05"}),
        ({"method": "nobody_knows"}, {}),
    ],
)
def test_the_numbers_are_those_that_are_used(
    site: GatedSite, change: dict[str, str], numbers: dict[str, str]
) -> None:
    """A method's own wins over the run's, and one that nobody wrote has a default."""
    assert text._numbers_used(Settings.read(site.configuration(**change))) == numbers


def test_phases_with_numbers_of_their_own_are_named() -> None:
    used = numbers_used(parse_method("fedrep(head_epochs=4)"))
    assert used == {"epochs": "head 4, body 1", "batch_size": "10", "lr": "0.05"}


def lines(site: GatedSite, event: str) -> list[dict[str, Any]]:
    return [line for line in Gate(site.file, assess_here).audit.lines() if line["event"] == event]


def test_who_says_no_lets_it_wait(site: GatedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "no")
    assert "not approved; it waits" in fedloom("deploy", "approve", site.file).output
    assert site.ask(site.order()).error == WAITS
    (declined,) = lines(site, "declined")
    assert (declined["digest"],) == tuple(site.desk.waiting())
    assert (declined["run"], declined["method"]) == ("1", "fedper")
    assert declined["settings"]["lr"] is None
    assert declined["by"]


def test_every_decision_has_a_line_with_run_and_method(site: GatedSite) -> None:
    (digest,) = site.desk.waiting()
    fedloom("deploy", "approve", site.file, "--yes", digest)
    fedloom("deploy", "approve", site.file, "--revoke", digest)
    fedloom("deploy", "approve", site.file, "--revoke", digest)
    for event in ("approved", "revoked", "forgotten"):
        (line,) = lines(site, event)
        told = (line["digest"], line["run"], line["method"], line["experiment"])
        assert told == (digest, "1", "fedper", "first")
    assert lines(site, "approved")[0]["settings"]["batch_size"] == 16
    assert fedloom("audit", "verify", site.file).exit_code == 0


def test_a_damaged_proposal_is_forgotten_and_that_recorded(site: GatedSite) -> None:
    (digest,) = site.desk.waiting()
    (site.desk.proposals.folder / f"{digest}.json").write_text("{")
    fedloom("deploy", "approve", site.file, "--revoke", digest)
    assert "is damaged" in lines(site, "forgotten")[0]["sentence"]
    assert not site.desk.proposals.digests()


def test_a_script_names_the_digest_and_may_revoke_it(site: GatedSite) -> None:
    (digest,) = site.desk.waiting()
    assert fedloom("deploy", "approve", site.file, "--yes", digest).exit_code == 0
    assert not site.ask(site.order()).error
    assert f"revoked {digest}" in fedloom("deploy", "approve", site.file, "--revoke", digest).output
    assert site.ask(site.order()).error == WAITS
    assert f"forgot the proposal {digest}" in (
        fedloom("deploy", "approve", site.file, "--revoke", digest[:10]).output
    )


def test_nobody_at_the_terminal_approves_nothing(site: GatedSite) -> None:
    done = fedloom("deploy", "approve", site.file)
    assert isinstance(done.exception, BadInput)
    assert "give --yes DIGEST" in str(done.exception)
    assert not site.desk.holding()


def test_what_the_policy_refuses_cannot_be_approved(site: GatedSite) -> None:
    (digest,) = site.desk.waiting()
    assessment = assess_here(site.file, digest, True)
    site.say("least_rows = 1000")
    with pytest.raises(BadInput, match="policy or software was another"):
        site.desk.approve(digest, assessment)
    assert site.ask(site.order(), run_id=2).error.startswith("the site's policy refuses it")
    assert "few_rows" in site.rules()


def test_a_proposal_that_was_altered_is_not_approved(site: GatedSite) -> None:
    """Nobody approves one digest and gets another app."""
    (digest,) = site.desk.waiting()
    fab = site.desk.proposals.folder / f"{digest}.fab"
    fab.write_bytes(fab.read_bytes() + b" ")
    with pytest.raises(BadInput, match="was altered"):
        site.desk.proposals.read(digest)


def test_code_of_the_federation_runs_only_after_its_files_were_agreed_to(
    tmp_path: Path, site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (site.project.root / "study_method.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    text = (site.project.root / "pyproject.toml").read_text()
    include = '"federation/**/*.py"'
    (site.project.root / "pyproject.toml").write_text(
        text.replace(include, f'{include}, "/study_method.py"')
    )
    from fedloom.deploy.processes.federation import app_of

    changed: App = app_of(Project.read(site.project.root))
    site.desk.proposals.remove(site.desk.waiting()[0])
    site.ask(site.order(), run_id=2, app=changed, override={"imports": "study_method"})
    asked = answers(monkeypatch, "no")
    done = fedloom("deploy", "approve", site.file)
    assert "code of the federation (study_method) has to run" in asked[0]
    assert "study_method.py" in done.output
    assert "code of the federation" in done.output
    assert not ran.exists()
    answers(monkeypatch, "yes", "yes")
    done = fedloom("deploy", "approve", site.file)
    assert "approved" in done.output
    assert ran.exists()


def tried_here(
    self: decision.Desk, digest: str, project: object, with_code: bool, out: Path | None = None
) -> object:
    """`Desk.attempt` without a process of its own."""
    return attempt(self.site, Settings.read(self.proposals.read(digest).configuration), out)


def test_a_try_computes_what_would_be_sent_and_leaves_no_trace(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its tensors, scores, bytes and sha256 are those of the answer to the server's first order,
    which the server itself writes, and those that the audit log has of it."""
    monkeypatch.setattr(decision.Desk, "attempt", tried_here)
    before = sorted(site.desk.site.state.rglob("*"))
    done = fedloom("deploy", "try", site.file)
    assert done.exit_code == 0, done.output
    assert "Nothing of this was sent" in done.output
    assert sorted(site.desk.site.state.rglob("*")) == before
    site.approve()
    content = site.ask(served_order(site, tmp_path / "served"), run_id=3).reply.content
    for key, array in content.array_records["state/model"].items():
        values = array.numpy()
        line = f"model/{key} {list(values.shape)} {values.dtype}, {values.nbytes} bytes, values"
        assert f"{line} {values.min():.6g} to {values.max():.6g}" in done.output
    assert "head." not in done.output
    (score,) = (record for name, record in content.config_records.items() if "score/" in name)
    numbers = zip(score["names"], score["values"], strict=True)
    told = ", ".join(f"{name} {value:.6g}" for name, value in numbers)
    line = f"score of the personal model, trained, on {score['rows']} test rows: {told}"
    assert line in " ".join(done.output.split())
    assert f"sha256 of the state that stays here: {content['head']['own']}" in done.output
    (sent,) = (x for x in Gate(site.file, assess_here).audit.lines() if x["event"] == "sent")
    assert f"it would send {sent['bytes']} bytes, sha256 {sent['sha256']}" in done.output


def test_a_try_keeps_the_answers_to_the_last_byte_in_a_new_folder(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decision.Desk, "attempt", tried_here)
    out = tmp_path / "tried"
    done = fedloom("deploy", "try", site.file, "--out", out)
    assert f"kept in {out} alone" in " ".join(done.output.split())
    site.approve()
    left = site.ask(served_order(site, tmp_path / "served"), run_id=3).reply
    told = json.loads((out / "1" / "content.json").read_text())
    bundle = bundled(left.content)
    assert told["sha256"] == bundle.object_id
    objects = {file.name: file.read_bytes() for file in (out / "1" / "objects").iterdir()}
    assert objects == {k: v.deflate() for k, v in get_all_nested_objects(bundle).items()}
    assert told["bytes"] == sum(map(len, objects.values()))
    for key, file in told["records"]["state/model"].items():
        sent = left.content.array_records["state/model"][key].numpy()
        assert (np.load(out / "1" / file) == sent).all()


def test_a_try_overwrites_no_folder(site: GatedSite, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = fedloom("deploy", "try", site.file, "--out", tmp_path / "there")
    assert "is there already; name a new folder" in str(done.exception)


def test_scores_after_the_round_are_announced_where_the_protocol_has_them(site: GatedSite) -> None:
    """They depend on the other sites, so that a try cannot show them."""
    settings = Settings.read(site.configuration(protocol="cohort(moment=received)"))
    lines = "\n".join(text.attempted(attempt(site.desk.site, settings)))
    assert "After a round the server also asks for scores" in lines
    assert "received" in lines
    assert "score of the" not in lines


def test_a_try_of_a_project_is_judged_by_the_policy_in_the_gates_words(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed for a run that would be refused."""
    project = site.project.root

    def here(
        self: decision.Desk, digest: str, project: Path, with_code: bool, out: object
    ) -> object:
        return attempt(self.site, Settings.read(run_configuration(project)))

    monkeypatch.setattr(decision.Desk, "attempt", here)
    assert fedloom("deploy", "try", site.file, "--project", project).exit_code == 0
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace("min-clients = 2", "min-clients = 1"))
    done = fedloom("deploy", "try", site.file, "--project", project)
    assert done.exit_code == 1
    told = site.ask(site.order(), run_id=5, override={"min_clients": 1}).error
    sentence = told.removeprefix("the site's policy refuses it: ")
    assert f"few_participants: {sentence}" in done.output
    assert "would send" not in done.output


def test_names_from_the_server_do_not_act_on_the_terminal(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    consent_cli._show(["  app \x1b[2Jevil\r\nfedloom: approved"])
    assert capsys.readouterr().out == "  app ?[2Jevil fedloom: approved\n"


def test_the_audit_log_of_a_site_is_verified_by_its_file(site: GatedSite) -> None:
    site.approve()
    done = fedloom("audit", "verify", site.file)
    assert done.exit_code == 0, done.output
    assert "audit.jsonl: 2 lines, unbroken" in done.output
    assert "approvals.jsonl: 1 lines, unbroken" in done.output
    log = site.desk.site.state / "audit.jsonl"
    log.write_text(log.read_text().replace("waiting", "approved", 1))
    done = fedloom("audit", "verify", log)
    assert "line 2: it does not follow the line before it" in str(done.exception)


@pytest.mark.slow
def test_assessments_and_tries_run_in_processes_of_their_own(tmp_path: Path) -> None:
    with gated_site(tmp_path) as site:
        site.ask(site.order())
        (digest,) = site.desk.waiting()
        done = fedloom("deploy", "approve", site.file, "--yes", digest)
        assert f"approved {digest}" in done.output
        out = tmp_path / "tried"
        done = fedloom("deploy", "try", site.file, "--proposal", digest, "--out", out)
        assert "model/body.1.weight" in done.output
        assert (out / "1" / "content.json").exists()
        done = fedloom("deploy", "try", site.file, "--project", site.project.root)
        assert "model/body.1.weight" in done.output
