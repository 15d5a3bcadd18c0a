"""A site's states are used with the settings they began with, and with no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context
from gated_site import GatedSite, assess_here, gated_site
from sites import write_rows

from fedloom.deploy.consent.proposal import propose
from fedloom.deploy.gate.bindings import Bindings
from fedloom.deploy.settings import Settings
from fedloom.deploy.site import state_binding
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.state_binding import FILE, OtherSettings, bind, settings_digest
from fedloom.engines.flower.node import Node, client_app
from fedloom.engines.flower.site_store import SiteStore

CONFIG = {
    "experiment": "first",
    "method": "fedper",
    "model": "mlp(hidden=[8])",
    "sites": "a,b",
    "class-names": "0,1,2",
}


def settings(**changes: Any) -> Settings:
    return Settings.read({**CONFIG, **changes})


@pytest.fixture
def site(tmp_path: Path) -> SiteConfig:
    write_rows(tmp_path / "rows.npz", (0, 1, 2))
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\ndata = "rows.npz"\nstate = "kept"\n')
    return SiteConfig.read(file)


def test_another_method_does_not_get_the_states_of_the_first(site: SiteConfig) -> None:
    """What FedPer keeps, FedAvg would send."""
    SiteData(site, settings()).node()
    SiteData(site, settings()).node()
    with pytest.raises(OtherSettings, match=r"other settings \(lr, method\)"):
        SiteData(site, settings(method="fedavg", lr=1e-30)).node()
    SiteData(site, settings(method="fedavg", experiment="second")).node()


@pytest.mark.parametrize(
    "change",
    [
        {"method": "fedper(shared='*')"},
        {"model": "mlp(hidden=[9])"},
        {"seed": 1},
        {"split": "merged(train=0.5)"},
        {"normalize": "none"},
        {"steps": 1},
        {"protocol": "fedloom"},
        {"class-names": "2,1,0"},
    ],
)
def test_whatever_a_site_acts_on_is_bound(change: dict[str, Any], tmp_path: Path) -> None:
    bind(tmp_path / "first", settings())
    with pytest.raises(OtherSettings):
        bind(tmp_path / "first", settings(**change))


@pytest.mark.parametrize(
    "change",
    [{"rounds": 99}, {"sites": "a,c"}, {"lost-state": "restart"}, {"deadline": 9}, {"out": "x"}],
)
def test_what_no_state_depends_on_may_change(change: dict[str, Any], tmp_path: Path) -> None:
    bind(tmp_path / "first", settings())
    record = (tmp_path / "first" / FILE).read_bytes()
    bind(tmp_path / "first", settings(**change))
    assert (tmp_path / "first" / FILE).read_bytes() == record


def test_the_record_says_what_it_is(tmp_path: Path) -> None:
    bind(tmp_path / "first", settings())
    record = json.loads((tmp_path / "first" / FILE).read_text())
    assert record["settings"]["method"] == "fedper"
    assert len(record["sha256"]) == 64
    assert [file.name for file in tmp_path.iterdir()] == ["first"]


def test_states_without_a_record_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "first" / "states").mkdir(parents=True)
    with pytest.raises(OtherSettings, match="nobody recorded"):
        bind(tmp_path / "first", settings())


def test_an_experiment_named_as_a_file_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text("{}\n")
    with pytest.raises(OtherSettings):
        bind(tmp_path / "audit.jsonl", settings(experiment="audit.jsonl"))


def written_by_another_version(
    folder: Path, without: str = "", more: dict[str, Any] | None = None, default: bool = True
) -> None:
    """A binding to the usual settings, by a fedloom that lacks a key or has others."""
    bind(folder, settings())
    record = json.loads((folder / FILE).read_text())
    record["settings"].pop(without, None)
    record["settings"] |= more or {}
    record["defaults"] += list(more or {}) if default else []
    record["sha256"] = settings_digest(record["settings"])
    (folder / FILE).write_text(json.dumps(record))


def test_a_key_that_an_older_version_lacked_had_its_default(tmp_path: Path) -> None:
    written_by_another_version(tmp_path / "first", without="encoder")
    bind(tmp_path / "first", settings())
    with pytest.raises(OtherSettings, match=r"other settings \(encoder\)"):
        bind(tmp_path / "first", settings(encoder="efficientnet_lite0/stage4"))


def test_a_default_that_is_not_what_was_before_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_binding, "OLD_BEHAVIOUR", {"keep_rounds": 2})
    written_by_another_version(tmp_path / "first", without="keep_rounds")
    bind(tmp_path / "first", settings(**{"keep-rounds": 2}))
    with pytest.raises(OtherSettings, match="keep_rounds"):
        bind(tmp_path / "first", settings())


def test_a_binding_of_the_first_version_holds(tmp_path: Path) -> None:
    """It said nothing of defaults."""
    written_by_another_version(tmp_path / "first", without="keep_rounds")
    record = json.loads((tmp_path / "first" / FILE).read_text())
    del record["defaults"]
    (tmp_path / "first" / FILE).write_text(json.dumps(record))
    bind(tmp_path / "first", settings())
    with pytest.raises(OtherSettings, match="method"):
        bind(tmp_path / "first", settings(method="fedavg"))


def test_a_key_that_only_a_newer_version_has_must_be_at_its_default(tmp_path: Path) -> None:
    written_by_another_version(tmp_path / "first", more={"dropout": 0.0})
    bind(tmp_path / "first", settings())
    written_by_another_version(tmp_path / "second", more={"dropout": 0.5}, default=False)
    with pytest.raises(OtherSettings, match=r"other settings \(dropout\)"):
        bind(tmp_path / "second", settings())


def test_a_key_that_was_cut_out_is_damage_and_no_older_version(tmp_path: Path) -> None:
    """Without its method the record would fit FedAvg, which sends what FedPer keeps."""
    bind(tmp_path / "first", settings())
    record = json.loads((tmp_path / "first" / FILE).read_text())
    del record["settings"]["method"]
    (tmp_path / "first" / FILE).write_text(json.dumps(record))
    with pytest.raises(OtherSettings, match="damaged"):
        bind(tmp_path / "first", settings(method="fedavg"))


def without_looking(site: GatedSite, asked: list[Settings]) -> Any:
    """An app of fedloom that binds nothing: it answers with whatever states there are."""

    def node(context: Context) -> Node:
        settings = Settings.read(context.run_config)
        asked.append(settings)
        own = SiteData(site.desk.site, settings)
        store = SiteStore(site.desk.site.state / settings.experiment / "states")
        return Node(own.experiment().program, own.divided.client(0), store)

    return client_app(node, lambda context: {})


def test_the_gate_keeps_states_from_other_settings_whatever_the_app_does(tmp_path: Path) -> None:
    """FedPer's head would leave with FedAvg. Nothing of the app runs, approved or not, because the
    gate's own record says so; it lies where no app writes."""
    with gated_site(tmp_path) as site:
        asked: list[Settings] = []
        app = without_looking(site, asked)
        site.approve()
        assert not site.ask(site.order(), client=app).error
        state = site.desk.site.state
        assert not (state / "first" / FILE).exists()
        fedavg = site.configuration(method="fedavg")
        proposal = propose(site.desk.site, site.app, fedavg)
        site.desk.proposals.add(proposal, site.app, fedavg)
        (shown,) = site.desk.assess(proposal.digest, True, assess_here).refusals
        assert (shown.rule, "(method)" in shown.in_full) == ("state", True)
        assessment = assess_here(site.file, proposal.digest, True)
        site.desk.approvals.approve(proposal, assessment, "by mistake")
        left = site.ask(site.order(), run_id=2, override={"method": "fedavg"}, client=app)
        assert left.error.startswith("experiment 'first' began at this site with other settings")
        assert [each.run.method for each in asked] == ["fedper"]
        assert site.rules() == ["state"]
        assert not site.ask(site.order(t=2), run_id=3, client=app).error  # the first one goes on


def test_a_binding_that_only_an_earlier_app_recorded_counts_for_the_gate(tmp_path: Path) -> None:
    bind(tmp_path / "first", settings())
    Bindings(tmp_path).check(settings())
    with pytest.raises(OtherSettings, match=r"other settings \(method\)"):
        Bindings(tmp_path).bind(settings(method="fedavg"))


@pytest.mark.parametrize("damaged", ["", "[1]", '{"settings": 3}', "{}"])
def test_a_damaged_record_is_not_taken_for_a_match(damaged: str, tmp_path: Path) -> None:
    bind(tmp_path / "first", settings())
    (tmp_path / "first" / FILE).write_text(damaged)
    with pytest.raises(OtherSettings):
        bind(tmp_path / "first", settings())
