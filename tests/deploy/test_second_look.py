"""Attacks by somebody who did not write the defence; docs/attacks.md tells what came of each."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from gated_site import GatedSite, Left, _message, _objects, assess_here, gated_site, honest
from test_hostile_orders import rebuilt, with_file

from fedloom.core import metrics
from fedloom.deploy.consent import cli as consent_cli
from fedloom.deploy.consent.decision import Desk
from fedloom.deploy.consent.proposal import module_sha256
from fedloom.deploy.gate import confined, judged
from fedloom.deploy.guard.connections import Connections
from fedloom.deploy.guard.local_peer import Address, LocalPeers
from fedloom.deploy.guard.requests import HERE, Guard, Rules
from fedloom.deploy.operations.backup import back_up, restore
from fedloom.deploy.operations.copies import copies_of_site
from fedloom.deploy.processes import superexec
from fedloom.deploy.project.folder import Project
from fedloom.deploy.site.state_binding import OtherSettings, bind
from fedloom.errors import BadInput
from helpers import fedloom

WAITS = "waits for approval at the site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedSite]:
    """One for all tests that change nothing; its run is approved."""
    with gated_site(tmp_path_factory.mktemp("site")) as made:
        made.approve()
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[GatedSite]:
    """One that a test may spoil."""
    with gated_site(tmp_path) as made:
        yield made


def delivered(
    site: GatedSite, message: Message, tree: Any, objects: dict[str, bytes], ran: list[str]
) -> Left:
    """What leaves when a server announces this message with this tree of objects."""
    run, waiting = site.info(1, site.app, {}), [(message, tree)]
    site.node.pull(
        state=site.state,
        object_store=site.store,
        node_config={"site": str(site.file)},
        receive=lambda: waiting.pop() if waiting else None,
        get_run=lambda _: run,
        get_fab=lambda *_: Fab(site.app.sha256, site.app.content, {}),
        pull_object=lambda _, object_id: objects[object_id],
        confirm_message_received=lambda *_: None,
        trusted_entities=None,
    )
    if site.node._let_in:
        ran.append(message.metadata.message_id)
        site._answer(honest(None), lambda records: records, lambda reply, parts: None)
    return site.push()


# ------------------------------------------------------------------ what an app is handed


def another_of_the_tree(site: GatedSite) -> tuple[Message, Any, dict[str, bytes]]:
    """The tree is that of an order of round 1; the message's id is that of one of round 2, which
    hangs in the tree too, and which Flower would hand to the app."""
    shown = _message(site.order(t=1), MessageType.TRAIN, 1)
    other = _message(site.order(t=2), MessageType.TRAIN, 1)
    tree = get_object_tree(shown)
    tree.children.append(get_object_tree(other))
    return make_message(other.metadata, RecordDict()), tree, _objects(shown) | _objects(other)


def another_kind(site: GatedSite) -> tuple[Message, Any, dict[str, bytes]]:
    """Announced as an order to train; the message itself asks for something else."""
    inner = _message(site.order(), MessageType.EVALUATE, 1)
    announced = _message(site.order(), MessageType.TRAIN, 1).metadata
    announced.__dict__["_message_id"] = inner.metadata.message_id
    return make_message(announced, RecordDict()), get_object_tree(inner), _objects(inner)


def another_run(site: GatedSite) -> tuple[Message, Any, dict[str, bytes]]:
    """Announced for a run that was approved; the message itself is of another."""
    inner = _message(site.order(), MessageType.TRAIN, 2)
    announced = _message(site.order(), MessageType.TRAIN, 1).metadata
    announced.__dict__["_message_id"] = inner.metadata.message_id
    return make_message(announced, RecordDict()), get_object_tree(inner), _objects(inner)


def text_for_the_terminal(site: GatedSite) -> tuple[Message, Any, dict[str, bytes]]:
    """Flower prints the name of a message's group."""
    message = _message(site.order(), MessageType.TRAIN, 1)
    message.metadata.group_id = "\x1b[2J"
    message.metadata.__dict__["_message_id"] = message.object_id
    announced = make_message(message.metadata, RecordDict())
    return announced, get_object_tree(message), _objects(message)


@pytest.mark.parametrize(
    "lie", [another_of_the_tree, another_kind, another_run, text_for_the_terminal]
)
def test_an_app_is_handed_what_the_gate_looked_at(
    lie: Callable[[GatedSite], tuple[Message, Any, dict[str, bytes]]], site: GatedSite
) -> None:
    ran: list[str] = []
    left = delivered(site, *lie(site), ran)
    assert not ran
    assert left.error
    assert site.rules()[-1] == "message"


# ------------------------------------------------------------------ data that changes meanwhile


def few_rows(site: GatedSite) -> None:
    """Write data anew that the policy would refuse."""
    file = site.file.parent / "data.npz"
    with np.load(file) as data:
        np.savez(file, x=data["x"][:20], y=data["y"][:20])


def test_data_that_changes_while_the_operator_looks_is_judged_anew(own: GatedSite) -> None:
    assert own.ask(own.order()).error == WAITS
    (digest,) = own.desk.waiting()
    assessment = own.desk.assess(digest, False, assess_here)
    few_rows(own)
    own.desk.approve(digest, assessment)
    assert "few_rows" not in own.rules()
    assert own.ask(own.order()).error.startswith("the site's policy refuses it: ")
    assert "few_rows" in own.rules()


def test_data_that_changes_while_an_answer_is_computed_is_not_sent(own: GatedSite) -> None:
    own.approve()

    def client(message: Message, context: Context) -> Message:
        answer: Message = honest(None)(message, context)
        few_rows(own)
        return answer

    assert own.ask(own.order(), client=client).error.endswith("(data)")
    assert own.rules() == ["data"]


# ------------------------------------------------------------------ asking again and again


def test_a_server_is_told_of_few_proposals_before_somebody_looks(
    own: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By batches of another size each time it would find how many rows there are."""
    monkeypatch.setattr(judged, "MOST_JUDGED", 2)
    refusals = [
        own.ask(own.order(), run_id=i, override={"batch_size": 60 + i}).error for i in range(4)
    ]
    assert [error == WAITS for error in refusals] == [False, False, True, True]
    again = own.ask(own.order(), run_id=0, override={"batch_size": 60}).error
    assert again == refusals[0]
    own.desk.judged.forget()
    assert own.ask(own.order(), run_id=3, override={"batch_size": 63}).error != WAITS


# ------------------------------------------------------------------ code that nobody looked at


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> Path:
    """A module of the site's own installation."""
    file = folder / "installed_here.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return file


def test_a_pinned_app_brings_in_no_module_that_is_not_pinned(
    own: GatedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app's sha256 says nothing of what else is installed at the site."""
    installed(tmp_path, monkeypatch)
    pinned = f'approval = "policy"\napps = ["{own.app.sha256}"]'
    own.say(pinned)
    change = {"imports": "installed_here", "experiment": "imports"}
    assert not own.ask(own.order()).error
    assert own.ask(own.order(), run_id=2, override=change).error == WAITS
    own.say(f'{pinned}\nmodules = {{installed_here = "{module_sha256("installed_here")}"}}')
    assert own.ask(own.order(), run_id=3, override=change).error != WAITS


def test_a_metric_of_the_runs_own_is_code_of_which_nothing_is_known(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could pack labels, digit by digit, into its number."""
    packing = metrics.Metric("packed", function=lambda prediction, y: float(y.sum()))
    monkeypatch.setitem(metrics._KNOWN, "packed", packing)
    left = site.ask(site.order(), run_id=50, override={"metrics": "auroc"})
    assert left.error == WAITS
    left = site.ask(site.order(), run_id=51, override={"metrics": "auroc, packed"})
    assert "'packed' is code of the run's own" in left.error


def test_every_file_of_an_app_is_shown(site: GatedSite) -> None:
    """Only Flower's list of files is left out, not all that lies beside it."""
    hiding = rebuilt(site.app, with_file(".info/payload.py"))
    assert ".info/payload.py" in {file.path for file in hiding.files}
    assert ".info/CONTENT" not in {file.path for file in hiding.files}


def test_compiled_modules_of_a_package_belong_to_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_here"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = module_sha256("package_here")
    (package / "__pycache__" / "__init__.pyc").write_bytes(b"what Python made")
    assert module_sha256("package_here") == before
    (package / "fast.so").write_bytes(b"machine code")
    assert module_sha256("package_here") != before


def test_an_outdated_proposal_does_not_keep_others_from_being_approved(
    own: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could leave one behind for ever."""
    own.ask(own.order(), override={"experiment": "old"})
    own.say("least_batch = 9")
    own.ask(own.order(), run_id=2)
    monkeypatch.setattr(consent_cli, "_says_yes", lambda question: True)
    monkeypatch.setattr(Desk.assess, "__defaults__", (assess_here,))
    done = fedloom("deploy", "approve", own.file)
    assert done.code == 1
    assert "was made when this site's policy or software was another" in done.out
    assert [approval.experiment for approval in own.desk.holding()] == ["first"]


# ------------------------------------------------------------------ the record


@pytest.mark.parametrize(("kept", "missing"), [(-1, "bytes of 'first'"), (0, "bytes"), (2, None)])
def test_lines_cut_off_at_the_end_are_seen_by_what_was_counted(
    kept: int, missing: str | None, own: GatedSite
) -> None:
    own.approve()
    for _ in range(2):
        assert not own.ask(own.order()).error
    log = own.desk.site.state / "audit.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert own.events()[-1] == "sent"
    log.write_text("".join(lines[:kept] if missing else lines))
    done = fedloom("audit", "verify", own.file)
    assert done.code == (1 if missing else 0)
    assert (missing or "unbroken") in done.out + done.err


def test_an_approval_that_only_the_approvals_have_is_seen(own: GatedSite) -> None:
    own.approve()
    (own.desk.site.state / "audit.jsonl").write_text("")
    done = fedloom("audit", "verify", own.file)
    assert "has an approval of" in done.err
    fedloom("dossier", own.file, "--out", own.folder / "dossier")
    assert "BROKEN" in (own.folder / "dossier" / "index.html").read_text()


def test_a_revocation_that_was_cut_off_is_seen(own: GatedSite) -> None:
    """Without its line the approval would hold again."""
    own.desk.revoke(own.approve())
    approvals = own.desk.site.state / "approvals.jsonl"
    approvals.write_text(approvals.read_text().splitlines(keepends=True)[0])
    assert own.desk.holding()
    assert "was revoked; revoke it again" in fedloom("audit", "verify", own.file).err


# ------------------------------------------------------------------ names


def test_an_experiment_cannot_be_called_as_the_folder_of_proposals(own: GatedSite) -> None:
    """It is empty where the policy alone decides, and a record in it would pass for a proposal."""
    folder = own.desk.site.state / "proposals"
    folder.mkdir(parents=True)
    with pytest.raises(OtherSettings, match="name another experiment"):
        bind(folder, own.site.settings)
    assert not any(folder.iterdir())


@pytest.mark.parametrize("experiment", ["logs", "trial.tmp", "trial-wal"])
def test_an_experiment_of_any_name_is_in_a_backup(
    experiment: str, own: GatedSite, tmp_path: Path
) -> None:
    state = own.desk.site.state / experiment / "states"
    state.mkdir(parents=True)
    (state / "kept.safetensors").write_bytes(b"state")
    back_up(own.file, tmp_path / "site.tar.gz")
    restore(tmp_path / "site.tar.gz", tmp_path / "restored")
    kept = tmp_path / "restored" / "state" / experiment / "states" / "kept.safetensors"
    assert kept.read_bytes() == b"state"


def test_a_backup_that_lacks_a_file_writes_none(own: GatedSite, tmp_path: Path) -> None:
    back_up(own.file, tmp_path / "site.tar.gz")
    shortened = tmp_path / "shortened.tar.gz"
    with tarfile.open(tmp_path / "site.tar.gz") as whole, tarfile.open(shortened, "w:gz") as out:
        for member in whole:
            if member.name != "schema.toml":
                out.addfile(member, whole.extractfile(member))
    with pytest.raises(BadInput, match=r"lacks 'schema\.toml'"):
        restore(shortened, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_backup_that_unpacks_to_more_than_the_disk_holds_writes_none(
    own: GatedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(own.file, tmp_path / "site.tar.gz")
    full = SimpleNamespace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: full)
    with pytest.raises(BadInput, match=r"more than .* has room for"):
        restore(tmp_path / "site.tar.gz", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("name", ["..", "link", "first/.."])
def test_a_purge_stays_within_the_site(name: str, own: GatedSite, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "states").mkdir(parents=True)
    state = own.desk.site.state
    (state / "first" / "states").mkdir(parents=True)
    (state / "link").symlink_to(elsewhere)
    (state.parent / "states").mkdir()
    with pytest.raises(BadInput, match="no experiment"):
        copies_of_site(own.desk.site, name, models=True)


# ------------------------------------------------------------------ checks at the site


def test_a_check_runs_no_code_of_the_project_unasked(own: GatedSite) -> None:
    from fedloom.deploy.check import check, report
    from fedloom.deploy.settings import Settings

    project = own.project.root
    (project / "not_read.py").write_text("raise SystemExit('it ran')\n")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace('imports = ""', 'imports = "not_read"'))
    assert isinstance(report(own.file, project), bool)
    settings = Settings.read(own.configuration(imports="not_read"))
    results = {r.subject: r for r in check(own.file, settings, project, code_may_run=False)}
    assert results["policy"].ok is None
    assert "not_read" in results["policy"].message
    assert "--yes" in results["policy"].message
    assert results["data"].ok
    assert "not_read" not in sys.modules


def test_checks_and_tries_compare_the_digests_of_code(own: GatedSite) -> None:
    from fedloom.deploy.check import check
    from fedloom.deploy.settings import Settings

    project, settings = own.project.root, Settings.read(own.project.config)
    own.say(f'apps = ["{"0" * 64}"]')
    results = {r.subject: r for r in check(own.file, settings, project)}
    assert results["policy"].ok is False
    assert "apps: the app" in results["policy"].message
    (refusal,) = own.desk.attempt("", project, with_code=False).refusals
    assert refusal.rule == "apps"
    own.say(f'apps = ["{own.app.sha256}"]')
    results = {r.subject: r for r in check(own.file, settings, project)}
    assert results["policy"].ok


def test_a_project_that_makes_no_app_is_a_sentence(tmp_path: Path) -> None:
    from fedloom.deploy.consent.proposal import App

    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(BadInput, match="makes no app that Flower could send"):
        App.of_project(tmp_path)


@pytest.mark.parametrize("encoder", ["", "efficientnet_lite0/top"])
def test_a_new_project_reads_its_example_as_its_runs_will(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images in the size that the run names; and behind an encoder, which makes a table of them, a
    model that sites do not refuse."""
    from PIL import Image

    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    for i in range(4):
        place = tmp_path / "scans" / ("ill", "well")[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 50), (i, 0, 0)).save(place)
    words = ["deploy", "init", tmp_path / "study", "image_size=32", f"encoder={encoder}", "lr=0.02"]
    done = fedloom(*words, "--sites", "a,b", "--schema", tmp_path / "scans", "--no-tls")
    assert done.code == 0, done.err
    project = Project.read(tmp_path / "study")
    assert project.schema().shape == (3, 32, 32)
    run = project.settings().run
    assert (run.image_size, run.lr) == (32, 0.02)
    assert run.model == ("mlp(norm=batch)" if encoder else "auto")


# ------------------------------------------------------------------ the link


def connected(connections: Connections, host: str, port: int, stack: ExitStack) -> socket.socket:
    """The other end of a connection that is counted as coming from there."""
    outside, inside = socket.socketpair()
    stack.enter_context(outside)
    stack.enter_context(connections.accepted(inside, (host, port)))
    return outside


def is_open(outside: socket.socket) -> bool:
    outside.setblocking(False)
    with suppress(BlockingIOError):
        return outside.recv(1) != b""
    return True


def test_one_machine_is_one_stranger_however_many_addresses_of_ipv6_it_takes() -> None:
    """Three places for each; a machine has at least a network of 64 bits."""
    with ExitStack() as stack:
        connections = Connections(most=6, most_of_one=3)
        other = connected(connections, "2001:db8:0:2::1", 1, stack)
        flood = [connected(connections, f"2001:db8:0:1::{i:x}", 1, stack) for i in range(20)]
        assert [is_open(one) for one in flood] == [False] * 17 + [True] * 3
        assert is_open(other)
        mapped = [connected(connections, "::ffff:192.0.2.7", i, stack) for i in range(2)]
        plain = [connected(connections, "192.0.2.7", 10 + i, stack) for i in range(2)]
        assert [is_open(one) for one in (*mapped, *plain)] == [False, True, True, True]


def test_a_port_that_is_used_again_is_a_strangers_again() -> None:
    """A connection that was reset, and is not closed here yet, vouches for nobody else."""
    here = ("127.0.0.1", 4000)
    with ExitStack() as stack:
        connections = Connections(most=6, most_of_one=3)
        with ExitStack() as first:
            connected(connections, *here, first)
            connections.vouch(here, HERE)
            assert connections.is_of(here, HERE)
            connected(connections, *here, stack)
            assert not connections.is_of(here, HERE)
        assert (len(connections._holders), connections.ending) == (1, 0)


class CountedPeers(LocalPeers):
    """Lets everybody in, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.asked = 0

    def refuses(self, client: Address, server: Address) -> str | None:
        self.asked += 1
        return None


def test_who_is_at_the_other_end_is_looked_up_once_for_a_connection() -> None:
    """Looking costs 15 ms, and the server app asks for replies every second."""
    peers, connections = CountedPeers(), Connections(most=6, most_of_one=3)
    rules = Rules(lambda: {"localhost"}, None, peers, most_body=100, body_seconds=60.0)
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def ask(port: int) -> None:
        head = {"type": "http", "path": "/v1/runtime/x", "headers": [(b"host", b"localhost")]}
        places = {"client": ("127.0.0.1", port), "server": ("127.0.0.1", 9092)}
        await Guard(app, rules, connections)({**head, **places}, receive, app)

    with ExitStack() as stack:
        for port in (1, 2):
            connected(connections, "127.0.0.1", port, stack)
        for port in (1, 1, 2, 1):
            asyncio.run(ask(port))
    assert (len(reached), peers.asked) == (4, 2)


# ------------------------------------------------------------------ processes at the site


def test_looking_into_a_proposal_sends_no_datagram_either() -> None:
    far = (None, ("192.0.2.1", 53))
    for event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        with pytest.raises(BadInput, match="nothing is downloaded"):
            confined._refuse_connections(event, far)
        confined._refuse_connections(event, (None, "/run/a.socket"))


@pytest.mark.deployment
@pytest.mark.skipif(sys.platform != "linux", reason="apps are forked on Linux only")
def test_a_client_app_inherits_nothing_but_where_to_print() -> None:
    """The process that apps are forked from has one thread, no connection and no file."""
    read, write = os.pipe()
    with open(read, encoding="utf-8") as printed:
        process = subprocess.Popen(
            superexec._words("serve", "flwr-clientapp"), stdin=subprocess.PIPE, stdout=write
        )
        os.close(write)
        assert process.stdin is not None
        with process:
            process.stdin.write(b'["flwr-clientapp", "--help"]\n')
            process.stdin.flush()
            assert printed.readline().startswith("usage: ")  # so all is imported, and it forks
            about = Path("/proc") / str(process.pid)
            threads = list((about / "task").iterdir())
            handles = sorted(int(handle.name) for handle in (about / "fd").iterdir())
            process.stdin.close()
    assert len(threads) == 1
    assert handles == [0, 1, 2]
