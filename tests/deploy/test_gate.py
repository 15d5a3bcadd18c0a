"""A site's gate over Flower's own state, store and codec: what it lets in, what it lets out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, MessageType, RecordDict
from flwr.supercore.run import RunNotRunningException
from gated_site import OTHER, SITE, GatedSite, LostMessage, assess_here, gated_site

from fedloom.audit import verify
from fedloom.core.message import Plan
from fedloom.core.round import Round, initial_server, send
from fedloom.deploy.consent.approvals import data_version
from fedloom.deploy.consent.proposal import code_refusals, propose
from fedloom.deploy.gate.counters import Counters
from fedloom.deploy.gate.decide import Gate
from fedloom.deploy.gate.supernode import GatedNode
from fedloom.deploy.processes.federation import app_of
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order
from fedloom.engines.zstd_arrays import STYPE, squeeze, unpacked
from fedloom.policy import Policy, limits


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GatedSite]:
    with gated_site(tmp_path) as made:
        yield made


def test_what_nobody_approved_waits_and_runs_nothing(site: GatedSite) -> None:
    left = site.ask(kind=MessageType.QUERY)
    assert left.error == "waits for approval at the site"
    assert site.ask(site.order()).error == "waits for approval at the site"
    assert site.events() == ["waiting"]
    assert len(site.desk.waiting()) == 1


def test_what_was_approved_runs_and_its_answers_leave(site: GatedSite) -> None:
    site.approve()
    hello = site.ask(kind=MessageType.QUERY).reply.content.config_records["hello"]
    assert hello["site"] == SITE
    for t in (1, 2):
        assert "state/model" in site.ask(site.order(t=t)).reply.content.array_records
    assert list(site.ask(site.order("evaluate")).reply.content) == ["head", "score/0"]
    assert list(site.ask(site.order("save")).reply.content) == ["head"]
    assert site.events() == ["approved", *["received", "sent"] * 5]
    count = Counters(site.desk.site.state).of("first")
    assert count.orders == {"client train": 2, "evaluate train": 1, "save train": 1}
    assert count.bytes > 0
    verify(site.desk.site.state / "audit.jsonl")


def test_an_answer_leaves_with_the_values_that_the_app_gave(site: GatedSite) -> None:
    site.approve()
    seen = []
    left = site.ask(site.order(), spoil=lambda records: seen.append(records) or records)
    mine, theirs = seen[0].array_records, left.reply.content.array_records
    assert {n: {k: a.data for k, a in t.items()} for n, t in mine.items()} == {
        n: {k: a.data for k, a in t.items()} for n, t in theirs.items()
    }


def test_an_answer_leaves_in_fewer_bytes_where_that_pays(site: GatedSite) -> None:
    """The gate writes it, after it has looked: an app that did would be refused."""

    def zeros(records: RecordDict) -> RecordDict:
        for tree in records.array_records.values():
            for key, array in list(tree.items()):
                tree[key] = Array(np.zeros_like(array.numpy()))
        return records

    def squeezed_zeros(records: RecordDict) -> RecordDict:
        squeeze(zeros(records))
        return records

    site.approve()
    sent = site.ask(site.order(), spoil=zeros).reply.content.array_records["state/model"]
    weights = sent["body.1.weight"]
    assert weights.stype == STYPE
    assert len(weights.data) < 200
    assert len(unpacked(weights)) > 4 * 8 * 64
    assert "(form)" in site.ask(site.order(t=2), spoil=squeezed_zeros).error


def test_compressed_uploads_have_a_form_of_their_own(site: GatedSite) -> None:
    def whole(records: RecordDict) -> RecordDict:
        """As without compression."""
        tree = records.array_records["state/model"]
        del tree["body.1.weight@levels"], tree["body.1.weight@scale"]
        tree["body.1.weight"] = Array(np.zeros((8, 64), dtype=np.float32))
        return records

    changes = {"compression": "quantize(bits=4)"}
    site.approve(**changes)
    left = site.ask(site.order(), override=changes)
    sent = left.reply.content.array_records["state/model"]
    levels, scale = sent["body.1.weight@levels"], sent["body.1.weight@scale"]
    assert (levels.dtype, levels.shape) == ("uint8", (8 * 64 // 2,))
    assert (scale.dtype, scale.shape) == ("float32", ())
    assert "(form)" in site.ask(site.order(t=2), override=changes, spoil=whole).error


def test_whatever_changes_asks_again(site: GatedSite) -> None:
    site.approve()
    for run_id, change in enumerate(({"lr": 0.02}, {"rounds": 4}, {"experiment": "second"}), 2):
        left = site.ask(site.order(), run_id=run_id, override=change)
        assert left.error == "waits for approval at the site"
    deadline = {"deadline": 7, "patience": 9, "out": "elsewhere"}  # matters of the server alone
    assert not site.ask(site.order(), run_id=9, override=deadline).error
    site.say("most_rounds = 500")
    assert site.ask(site.order(), run_id=10).error == "waits for approval at the site"


def test_no_more_rounds_are_answered_than_were_approved(site: GatedSite) -> None:
    """Three were; the server calls the fourth round 1, with another model, at a gate that was
    started again."""
    digest = site.approve()
    orders = [site.order(t=t) for t in (1, 2, 3)]
    assert not any(site.ask(order).error for order in orders)
    site.node = GatedNode(Gate(site.file, assess_here))
    another = with_other_weights(site.order(t=1))
    assert "3 rounds were approved" in site.ask(another).error
    assert site.rules() == ["rounds"]
    assert "is none of the 3 that were agreed on" in site.ask(site.order(t=4)).error
    assert not site.ask(orders[0]).error  # what it got already tells it nothing new
    site.desk.revoke(digest)
    site.approve()
    assert "3 rounds were approved" in site.ask(another).error
    site.desk.approve(digest, assess_here(site.file, digest, True))
    assert not site.ask(another).error


def test_a_repeated_round_is_none_of_the_policy_s_rounds(site: GatedSite) -> None:
    """A run of as many rounds as the site permits, whose server was killed on the way, comes to its
    end; another round than these does not count as a repeated one."""
    site.say("most_rounds = 3")
    site.approve()
    orders = [site.order(t=t) for t in (1, 2, 2, 3, 3)]
    assert not any(site.ask(order).error for order in orders)
    another = with_other_weights(site.order(t=1))
    assert "3 different orders were answered, most_rounds = 3" in site.ask(another).error
    assert site.rules() == ["most_rounds"]
    assert not site.ask(orders[0]).error


def test_what_a_method_does_after_its_last_round_is_answered(site: GatedSite) -> None:
    """SphereFed's calibration is a step of round 4 of 3, and the only one of its kind."""
    site.say('allow = ["class_means", "class_counts"]')
    changes = {"method": "spherefed", "model": "mlp(hidden=[16], norm=batch)"}
    site.approve(**changes)
    settings = Settings.read(site.configuration(**changes))
    program = SiteData(site.desk.site, settings).experiment().program

    def asked(plan: Plan) -> str:
        r = Round(program, plan, initial_server(program), [0, 1])
        order = Order(0, "client", send(r, 0), None, None)
        return site.ask(codec.write_order(order, {}), override=changes).error

    first, calibration = program.schedule(3)[0], program.schedule(3)[-1]
    assert (calibration.kind, calibration.t) == ("special", 4)
    assert asked(first) == ""
    assert asked(calibration) == ""
    assert "round 4 is none of the 3" in asked(replace(first, t=4))
    assert "round 5 is none of the 3" in asked(replace(calibration, t=5))


def test_a_round_that_was_asked_for_again_counts_where_the_data_is_another(site: GatedSite) -> None:
    """The difference of two answers to one order would be the rows that were added."""
    site.approve(rounds=1)
    assert not site.ask(site.order(), override={"rounds": 1}).error
    assert not site.ask(site.order(), override={"rounds": 1}).error
    file = site.file.parent / "data.npz"
    held = np.load(file)
    np.savez(file, x=held["x"][:-1], y=held["y"][:-1])
    assert "1 rounds were approved" in site.ask(site.order(), override={"rounds": 1}).error


def test_an_answer_that_did_not_leave_is_none_of_the_rounds(site: GatedSite) -> None:
    site.approve(rounds=1)
    one = {"rounds": 1}
    assert site.ask(site.order(), override=one, spoil=lambda _: RecordDict()).error
    assert not site.ask(with_other_weights(site.order()), override=one).error
    assert site.ask(site.order(), override=one).error


def test_scores_are_asked_for_twice_a_round_at_most(site: GatedSite) -> None:
    site.approve(rounds=1)
    orders = [site.order("evaluate"), with_other_weights(site.order("evaluate"))]
    assert not any(site.ask(order, override={"rounds": 1}).error for order in orders)
    third = with_other_weights(site.order("evaluate"), add=2.0)
    assert "1 rounds were approved" in site.ask(third, override={"rounds": 1}).error


def with_other_weights(order: RecordDict, add: float = 1.0) -> RecordDict:
    """As a server writes it that goes on from another model."""
    weights = order.array_records["state/model"]
    for key, array in list(weights.items()):
        if array.dtype == "float32":
            weights[key] = Array(array.numpy() + np.float32(add))
    return order


def test_a_revoked_approval_holds_no_longer(site: GatedSite) -> None:
    digest = site.approve()
    assert not site.ask(site.order()).error
    site.desk.revoke(digest[:8])
    assert site.ask(site.order()).error == "waits for approval at the site"


@pytest.mark.parametrize("change", ["approval", "policy"])
def test_an_answer_that_was_being_computed_is_held_back_too(site: GatedSite, change: str) -> None:
    digest = site.approve()

    def meanwhile(records: RecordDict) -> RecordDict:
        if change == "approval":
            site.desk.revoke(digest)
        else:
            site.say("most_rounds = 500")
        return records

    left = site.ask(site.order(), spoil=meanwhile)
    assert left.error == "the site's gate does not let the answer out (approval)"
    assert "sent" not in site.events()


def test_a_file_that_a_run_begins_with_is_not_read_before_the_policy_allows_it(
    site: GatedSite, tmp_path: Path
) -> None:
    """A device would never end, and whether there is such a file is the site's own matter."""
    device, missing = "/dev/zero", str(tmp_path / "missing.safetensors")
    answers = [
        site.ask(site.order(), run_id=number, override={"start": start}).error
        for number, start in enumerate((device, missing), 2)
    ]
    assert answers[0].replace(device, missing) == answers[1]
    assert site.rules() == ["local_files", "local_files"]
    site.say('allow = ["local_files"]')
    site.ask(site.order(), run_id=4, override={"start": device})
    assert site.rules()[2:] == ["proposal"]


@pytest.mark.parametrize("policy", ["", 'allow = ["local_files"]'])
def test_weights_that_a_package_brings_can_be_proposed(site: GatedSite, policy: str) -> None:
    """They are no file that the server chooses, and no path is read for the proposal."""
    site.say(policy)
    configuration = site.configuration(start="pretrained:efficientnet_lite0")
    assert propose(site.desk.site, site.app, configuration).weights == {}
    assert not list(limits(site.desk.site.policy, Settings.read(configuration).run))


def test_a_run_that_passes_by_policy_leaves_its_settings_and_form(site: GatedSite) -> None:
    """Once, also where the node is started again; every other line leads there by its digest."""
    site.say(f'approval = "policy"\napps = ["{site.app.sha256}"]')
    assert not site.ask(site.order()).error
    site.node = GatedNode(Gate(site.file, assess_here))
    assert not site.ask(site.order(t=2)).error
    lines = list(Gate(site.file, assess_here).audit.lines())
    assert [x["event"] for x in lines] == ["admitted", *["received", "sent"] * 2]
    assert {x["proposal"] for x in lines} == {lines[0]["proposal"]}
    assert lines[0]["settings"]["batch_size"] == 16
    (uploads,) = lines[0]["form"]["uploads"].values()
    assert uploads[0]["model"]["body.1.weight"]["shape"] == [8, 64]


def test_what_is_refused_as_a_whole_leaves_its_settings(site: GatedSite) -> None:
    site.say("least_rows = 1000")
    assert site.ask(site.order(), override={"lr": 0.02}).error
    (line,) = Gate(site.file, assess_here).audit.lines()
    assert (line["event"], line["settings"]["lr"]) == ("refused", 0.02)


def test_a_pinned_app_passes_by_policy_without_asking(site: GatedSite) -> None:
    site.say(f'approval = "policy"\napps = ["{site.app.sha256}"]')
    assert not site.ask(kind=MessageType.QUERY).error
    assert not site.ask(site.order(), run_id=2, override={"lr": 0.02}).error
    assert site.desk.waiting() == []
    refused = site.ask(site.order(), run_id=3, override={"lr": 0.02, "min_clients": 1})
    assert "few_participants" in site.rules()
    assert refused.error.startswith("the site's policy refuses it: ")


def test_data_written_anew_is_judged_anew(site: GatedSite) -> None:
    """Of 30 rows the site sends nothing, whatever was approved when it had 240."""
    site.approve()
    assert not site.ask(site.order()).error
    file = site.file.parent / "data.npz"
    held = np.load(file)
    np.savez(file, x=held["x"][:30], y=held["y"][:30])
    assert "the site's policy refuses it" in site.ask(site.order(t=2)).error
    assert "few_rows" in site.rules()


def test_a_folder_of_data_has_a_version_too(tmp_path: Path) -> None:
    """Else images that were added would not be judged before the gate is started again."""
    for name in ("ill/1.png", "well/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"image")
    site = SiteConfig(name="a", data=tmp_path, state=tmp_path.parent / "state")
    before = data_version(site)
    assert data_version(site) == before
    assert data_version(site.model_copy(update={"label": "outcome"})) != before
    (tmp_path / "well" / "2.png").write_bytes(b"image")
    assert data_version(site) != before


@pytest.mark.parametrize("kind", ["file", "folder", "saved"])
def test_images_that_a_table_names_have_a_version_too(kind: str, tmp_path: Path) -> None:
    import datasets

    (tmp_path / "images").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "images" / name).write_bytes(b"image")
    names = [{"bytes": None, "path": f"../images/{i}.png"} for i in (1, 2)]
    table = datasets.Dataset.from_dict({"scan": names, "label": [0, 1]})
    data = tmp_path / "rows"
    if kind == "saved":
        table.save_to_disk(data)
    else:
        data.mkdir()
        table.to_parquet(data / "rows.parquet")
    data = data / "rows.parquet" if kind == "file" else data
    site = SiteConfig(name="a", data=data, state=tmp_path / "state")
    before = data_version(site)
    assert data_version(site) == before
    (tmp_path / "images" / "2.png").write_bytes(b"another image")
    assert data_version(site) != before


def test_a_module_of_the_app_is_compared_with_the_policy_too(site: GatedSite) -> None:
    """An app must not bring another module under a name that the site has pinned."""
    (site.project.root / "study_method.py").write_text("x = 1\n")
    file = site.project.root / "pyproject.toml"
    include = '"federation/**/*.py"'
    file.write_text(file.read_text().replace(include, f'{include}, "/study_method.py"'))
    app = app_of(site.project)
    configuration = site.configuration(imports="study_method")
    pinned = {"study_method": sha256(b"x = 1\n").hexdigest()}
    assert code_refusals(Policy.checked(modules=pinned), app, configuration) == []
    other = Policy.checked(modules={"study_method": "0" * 64})
    assert [refusal.rule for refusal in code_refusals(other, app, configuration)] == ["modules"]


def test_the_gate_needs_no_torch() -> None:
    code = (
        "import sys, fedloom.deploy.gate.supernode, fedloom.deploy.gate.assess,"
        " fedloom.deploy.consent.decision; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_flower_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import flwr

    from fedloom.deploy.gate import supernode
    from fedloom.errors import BadInput

    monkeypatch.setattr(flwr, "__version__", "1.42.0")
    with pytest.raises(BadInput, match=r"made for Flower 1\.41\.0, and 1\.42\.0 is installed"):
        supernode.replaceable_functions()


def test_other_sites_answers_are_none_of_this_one(site: GatedSite) -> None:
    """The server's order names client 1, which is the other site."""
    site.approve()
    assert "client 1 is not this site" in site.ask(site.order(cid=1)).error
    assert OTHER in site.project.settings().sites


@pytest.mark.parametrize("why", [RunNotRunningException(), ConnectionError("no link")])
def test_a_run_that_ends_while_its_message_comes_leaves_nothing_behind(
    site: GatedSite, why: BaseException
) -> None:
    """Flower raises amid its own function, which left a message for an app to answer: every later
    answer was then taken for that to the message before, and none was sent any more."""

    def ended(run_id: int, message_id: str) -> None:
        raise why

    site.approve()
    with pytest.raises(LostMessage):
        site.ask(site.order(), confirm=ended)
    assert not site.state.get_messages_legacy()
    assert not site.state.get_tasks()
    assert not site.ask(site.order(t=2)).error
