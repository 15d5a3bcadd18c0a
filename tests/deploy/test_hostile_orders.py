"""Servers that ask for what a site did not allow: other code, other settings, other orders.

Over Flower's own state, store and codec. In each case the app must not run.
"""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from gated_site import GatedSite, Left, gated_site, honest

from fedloom import extensions
from fedloom.audit import FIRST
from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate.decide import FAILED
from fedloom.deploy.gate.supernode import GatedNode
from fedloom.engines.message_bundle import RECORDS, bundled
from fedloom.errors import BadInput

WAITS = "waits for approval at the site"
REFUSED = "the site's policy refuses it: "
ROUNDS = 500


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedSite]:
    """One for all: what is refused changes nothing."""
    with gated_site(tmp_path_factory.mktemp("site"), f"most_rounds = {ROUNDS}") as made:
        made.approve()
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[GatedSite]:
    """One that a test may spoil."""
    with gated_site(tmp_path, "most_rounds = 3") as made:
        made.approve()
        yield made


@dataclass
class Watched:
    """An app that tells whether it ran."""

    ran: list[str] = field(default_factory=list)

    def __call__(self, message: Message, context: Context) -> Message:
        self.ran.append(message.metadata.message_type)
        return honest(None)(message, context)


run_ids = iter(range(100, 10_000))


def refused(site: GatedSite, content: RecordDict | None = None, **ask: Any) -> Left:
    """Ask as a run of its own; the app does not run."""
    watched = Watched()
    left = site.ask(content or site.order(), **{"run_id": next(run_ids), "client": watched, **ask})
    assert not watched.ran
    assert left.error
    return left


# ------------------------------------------------------------------ settings

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "one row a step": ({"batch_size": 1}, "small_batches"),
    "one step a round": ({"steps": 1}, "some_rows"),
    "one participant": ({"min_clients": 1}, "few_participants"),
    "a third of two participants": ({"participation": 0.34}, "few_participants"),
    "raw inputs": ({"normalize": "none"}, "raw_inputs"),
    "means of pairs of rows": ({"method": "fedavg + fedmix(means=71, of=2)"}, "row_means"),
    "means of FedBR": ({"method": "fedavg + fedbr"}, "row_means"),
    "a learning rate of almost nothing": ({"lr": 1e-30}, "small_moves"),
    "other training rows": ({"partition_seed": 7}, "other_rows"),
    "a file of the site": ({"start": "/etc/passwd"}, "local_files"),
    "too many rounds": ({"rounds": 100_000}, "most_rounds"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_reveal_rows_are_refused_whoever_approves(case: str, site: GatedSite) -> None:
    """By the site's policy, before anything waits for approval."""
    change, rule = SETTINGS[case]
    left = refused(site, override={"experiment": "other", **change})
    assert left.error.startswith(REFUSED)
    assert rule in site.rules()
    with pytest.raises(BadInput, match=rule):
        site.approve(experiment="other", **change)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "fedavg", "lr": 0.02},
        {"lr": 0.02},
        {"epochs": 3},
        {"seed": 4},
        {"experiment": "second"},
        {"sites": "clinic,other,third"},
        {"lost_state": "restart"},
    ],
    ids=str,
)
def test_changed_settings_wait_for_a_new_approval(change: Any, site: GatedSite) -> None:
    """Also those that would have the personal head sent under an experiment's old name."""
    assert refused(site, override=change).error == WAITS


@pytest.mark.parametrize("change", [{"nonsense": 1}, {"data": "digits"}, {"method": "fed("}])
def test_settings_that_make_no_sense_are_refused(change: Any, site: GatedSite) -> None:
    assert refused(site, override=change).error


# ------------------------------------------------------------------ code


def rebuilt(app: App, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> App:
    """The app with other files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in change(dict(app.sources)).items():
            archive.writestr(path, data)
    return App(stream.getvalue())


def with_file(path: str, data: bytes = b"raise SystemExit\n") -> Any:
    return lambda files: {**files, path: data}


def test_other_code_under_the_same_settings_waits(site: GatedSite) -> None:
    evil = rebuilt(site.app, with_file("federation/client_app.py", b"import os\n"))
    assert refused(site, app=evil).error == WAITS
    assert len(site.desk.waiting()) >= 1


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../evil.py",
            "/etc/evil.py",
            "a/../../evil.py",
            "federation//client_app.py",
            "./evil.py",
        ),
        *("torch.py", "fedloom/__init__.py", "json.py"),
        "federation/__pycache__/client_app.cpython-312.pyc",  # Python prefers it to the source
        "federation/client_app.abi3.so",
        "federation/other.pyc",
    ],
)
def test_an_app_stays_in_its_folder_and_under_its_own_names(path: str, site: GatedSite) -> None:
    evil = rebuilt(site.app, with_file(path))
    assert refused(site, app=evil).error != WAITS


def test_an_app_that_unpacks_to_too_much_is_refused(site: GatedSite) -> None:
    bomb = rebuilt(site.app, with_file("zeros.bin", bytes(60_000_000)))
    assert len(bomb.content) < 1_000_000
    assert refused(site, app=bomb).error != WAITS


@pytest.mark.parametrize(
    "info",
    [
        {"fab_hash": "0" * 64},
        {"fab_version": "../../../../tmp/evil"},
        {"fab_id": "fedloom/other"},
        {"primary_task_type": TaskType.AGENT_APP},
    ],
    ids=["hash", "version", "id", "agent"],
)
def test_a_run_that_describes_another_app_is_refused(info: Any, site: GatedSite) -> None:
    assert refused(site, info=info).error != WAITS


def test_an_app_s_version_is_no_path(site: GatedSite) -> None:
    """Flower makes the folder from it in which it unpacks the app."""

    def elsewhere(files: dict[str, bytes]) -> dict[str, bytes]:
        project = files["pyproject.toml"].decode()
        written = re.sub(r"(?m)^version = .*$", 'version = "1/../../../../tmp/evil"', project)
        return {**files, "pyproject.toml": written.encode()}

    evil = rebuilt(site.app, elsewhere)
    info = {"fab_version": "1/../../../../tmp/evil"}
    assert refused(site, app=evil, info=info).error == FAILED
    with pytest.raises(BadInput, match="as a name or version"):
        _ = evil.names


def test_an_app_that_is_not_pinned_is_refused(own: GatedSite) -> None:
    own.say(f'apps = ["{"0" * 64}"]')
    assert refused(own).error.startswith(REFUSED)
    assert own.rules()[-1] == "apps"


def test_a_module_of_the_site_that_changed_asks_again(
    own: GatedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_modules", {})  # the tests after this one do without it
    module = tmp_path / "installed" / "hospital_methods.py"
    module.parent.mkdir()
    module.write_text("")
    monkeypatch.syspath_prepend(str(module.parent))
    change = {"imports": "hospital_methods", "experiment": "modules"}
    own.approve(**change)
    assert not own.ask(own.order(), run_id=3, override=change).error
    module.write_text("SENDS = 'everything'\n")
    assert refused(own, override=change).error == WAITS


def test_code_of_the_federation_does_not_run_before_it_is_approved(own: GatedSite) -> None:
    """Nor is what it would send computed, for which it would have to run."""
    shutil.rmtree(own.folder / "ran", ignore_errors=True)
    code = f"import pathlib\npathlib.Path({str(own.folder / 'ran')!r}).mkdir()\n".encode()
    app = rebuilt(own.app, with_file("my_method_of_the_server.py", code))
    change = {"imports": "my_method_of_the_server"}
    assert refused(own, app=app, override=change).error == WAITS
    assert not (own.folder / "ran").exists()


# ------------------------------------------------------------------ orders


def changed(records: RecordDict, name: str, **values: Any) -> RecordDict:
    records[name] = ConfigRecord({**dict(records.config_records[name]), **values})
    return records


ORDERS: dict[str, Callable[[GatedSite], RecordDict]] = {
    "a round after the last": lambda site: site.order(t=5),
    "a round of another run": lambda site: site.order(seed=99),
    "a step that the method has not": lambda site: site.order(kind="special", owner="fedmix.means"),
    "an order for another client": lambda site: site.order(cid=1),
    "an order for nobody": lambda site: site.order(cid=7),
    "another number of clients": lambda site: site.order(clients=1),
    "an unknown task": lambda site: changed(site.order(), "head", task="send everything"),
    "an unknown entry": lambda site: changed(site.order(), "head", path="/etc/passwd"),
    "a digest that is a path": lambda site: changed(site.order(), "head", own="../../secret"),
    "scores on training rows": lambda site: changed(
        site.order("evaluate"), "ask", splits=["train"]
    ),
    "scores of nothing known": lambda site: changed(site.order("evaluate"), "ask", model="mine"),
    "a million scores": lambda site: changed(site.order("evaluate"), "ask", splits=["test"] * 9),
    "no plan": lambda site: RecordDict({k: v for k, v in site.order().items() if k != "plan"}),
    "one more record": lambda site: RecordDict(
        {**site.order(), "code": ConfigRecord({"run": "import os"})}
    ),
    "arrays of no slice": lambda site: RecordDict({**site.order(), "rows": ArrayRecord({})}),
    "nothing": lambda site: RecordDict({"x": ConfigRecord({})}),
}


@pytest.mark.parametrize("case", ORDERS)
def test_an_order_that_is_none_of_the_run_is_refused(case: str, site: GatedSite) -> None:
    left = refused(site, ORDERS[case](site), run_id=1)
    assert site.rules()[-1] == "order"
    assert left.error != WAITS


def test_messages_of_another_kind_are_refused(site: GatedSite) -> None:
    assert refused(site, kind=MessageType.EVALUATE, run_id=1)
    assert refused(site, site.order(), kind=MessageType.QUERY, run_id=1)


def test_objects_that_are_not_what_was_announced_are_refused(site: GatedSite) -> None:
    left = refused(site, run_id=1, lie=lambda object_id, data: data.replace(b"client", b"server"))
    assert left.error == FAILED


UNKNOWN_FIELD = b"\xfa\x7f\x01A"
"""Of a protobuf: number 2047, one byte."""


@pytest.mark.parametrize("more", [UNKNOWN_FIELD, b"\x0a\x06\x0a\x04note"])
def test_an_order_with_bytes_beside_what_is_looked_at_is_refused(
    more: bytes, site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app is handed the whole message: bytes that no reader of fedloom sees, a record of no
    kind."""

    def padded(records: RecordDict) -> RecordDict:
        bundle = bundled(records)
        data = bundle.config_records[RECORDS][RECORDS]
        assert isinstance(data, bytes)
        bundle[RECORDS] = ConfigRecord({RECORDS: data + more})
        return bundle

    assert not site.ask(site.order()).error
    monkeypatch.setattr("gated_site.bundled", padded)
    refused(site, site.order(t=2))
    assert site.rules()[-1] == "message"


def test_replayed_rounds_have_an_end(own: GatedSite) -> None:
    """A server that was killed asks for a round again. A policy of three rounds serves six orders,
    as many of them repeated ones as are new."""
    assert not any(own.ask(own.order()).error for _ in range(6))
    assert "6 orders were served, repeated ones too, most_rounds = 3" in refused(own).error
    assert not own.ask(own.order("evaluate")).error


def test_nothing_runs_out_of_hours(own: GatedSite) -> None:
    now = datetime.now()
    soon, later = now + timedelta(hours=2), now + timedelta(hours=3)
    own.say(f'hours = "{soon:%H:%M}-{later:%H:%M}"')
    own.approve()
    assert "trains from" in refused(own).error
    assert own.rules()[-1] == "hours"


def test_experiments_are_counted(own: GatedSite) -> None:
    own.say("most_experiments = 1")
    own.approve()
    own.approve(experiment="second")
    assert not own.ask(own.order(), run_id=1).error
    assert refused(own, override={"experiment": "second"}).error
    assert own.rules()[-1] == "most_experiments"


# ------------------------------------------------------------------ the gate itself


def damaged_approvals(site: GatedSite) -> None:
    file = site.desk.site.state / "approvals.jsonl"
    file.write_text(file.read_text().replace(FIRST, "1" * 64))


def damaged_counters(site: GatedSite) -> None:
    (site.desk.site.state / "counters.json").write_text('{"first": {"bytes": "few"}}')


def no_audit_log(site: GatedSite) -> None:
    file = site.desk.site.state / "audit.jsonl"
    file.unlink()
    file.mkdir()


def no_data(site: GatedSite) -> None:
    (site.file.parent / "data.npz").unlink()


def no_site_file(site: GatedSite) -> None:
    site.file.unlink()


def unknown_rule(site: GatedSite) -> None:
    site.say("least_bacth = 1")


@pytest.mark.parametrize(
    "damage",
    [damaged_approvals, damaged_counters, no_audit_log, no_data, no_site_file, unknown_rule],
    ids=lambda damage: damage.__name__,
)
def test_whatever_fails_in_the_gate_is_a_refusal(
    damage: Callable[[GatedSite], None], own: GatedSite
) -> None:
    order = own.order()
    damage(own)
    assert refused(own, order, run_id=1).error == FAILED


def test_an_answer_that_cannot_be_recorded_is_not_sent(own: GatedSite) -> None:

    def client(message: Message, context: Context) -> Message:
        reply = honest(None)(message, context)
        no_audit_log(own)
        return reply

    assert own.ask(own.order(), client=client).error == FAILED


def test_an_app_cannot_change_its_configuration_for_the_next_message(
    own: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower lets an app hand back its context; the gate sets it anew for every message."""
    set_context = InMemoryNodeState.set_run_series_context
    monkeypatch.setattr(InMemoryNodeState, "set_run_series_context", set_context)
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    own.node = GatedNode(own.node.gate)
    own.node.install()

    def client(message: Message, context: Context) -> Message:
        reply = honest(None)(message, context)
        context.run_config["lr"] = 1e-30
        own.state.set_run_series_context(1, context)
        return reply

    for t in (1, 2):
        assert not own.ask(own.order(t=t), client=client).error
    assert not own.ask(own.order(t=3)).error
    assert own.seen.run_config["lr"] != 1e-30


def test_the_server_cannot_fill_the_disk_with_proposals(site: GatedSite) -> None:
    for i in range(25):
        refused(site, override={"experiment": f"e{i}"})
    assert len(site.desk.waiting()) <= 20
