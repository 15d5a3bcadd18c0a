"""What an IT department asks for: purge, backup and restore, metrics, logs, quotas, versions, a
dossier."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from gated_site import gated_site
from sites import digits_schema
from test_sites import CONFIG, NAMES, deployed, write_sites

from fedloom import run
from fedloom.audit import AuditLog, verify
from fedloom.core.privacy import parse_privacy
from fedloom.core.round import merge
from fedloom.data import cache
from fedloom.deploy.operations import backup
from fedloom.deploy.operations.copies import folder_bytes
from fedloom.deploy.operations.dossier import _noise_of_site, dossier_of_run, dossier_of_site
from fedloom.deploy.operations.log_lines import RotatingLog, logged
from fedloom.deploy.operations.metrics import AuditCounts, Sample, exposition, run_samples, serving
from fedloom.deploy.project.new import write_project
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.quota import out_of_room
from fedloom.deploy.versions import check_version
from fedloom.errors import BadInput
from helpers import fedloom, wait_until


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return write_sites(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---------------------------------------------------------------------- purge


def test_purge_removes_copies_and_keeps_records_models_and_data(
    files: list[Path], tmp_path: Path
) -> None:
    deployed(files, tmp_path / "server")
    site, other = files[0], contents(files[1].parent)
    config = SiteConfig.read(site)
    data = config.data.read_bytes()
    (cache.cache_root() / "other_data-0123456789abcdef01234567").mkdir()
    listed = fedloom("purge", str(site), "--dry-run")
    assert listed.code == 0, listed.err
    assert "rows of data, decoded" in listed.out
    assert "states" in listed.out
    assert (config.state / "experiment" / "states").is_dir()
    done = fedloom("purge", str(site), "--yes")
    assert done.code == 0, done.err
    assert not (config.state / "experiment" / "states").exists()
    assert (config.state / "experiment" / "model" / "card.json").exists()
    assert {p.name for p in cache.cache_root().iterdir()} == {"other_data-0123456789abcdef01234567"}
    assert config.data.read_bytes() == data
    assert contents(files[1].parent) == other
    log = AuditLog(config.state / "audit.jsonl")
    assert {line["event"] for line in log.lines()} == {"purged"}
    assert verify(log.path).lines >= 2


def test_purge_asks_and_does_not_follow_links(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SiteConfig.read(files[0])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("years of work")
    (config.state / "first").mkdir(parents=True)
    (config.state / "first" / "states").symlink_to(tmp_path / "elsewhere")
    (config.state / "linked").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = fedloom("purge", str(files[0]))
    assert refused.code == 1
    assert (config.state / "first" / "states").is_symlink()
    assert fedloom("purge", str(files[0]), "--models", "--yes").code == 0
    assert (tmp_path / "elsewhere" / "thesis.txt").read_text() == "years of work"
    assert not (config.state / "first" / "states").exists()


def test_purge_of_a_run_keeps_its_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).random((40, 3)), y=[0, 1] * 20)
    settings: Any = {"rounds": 1, "clients": 2, "partition": "iid", "out": str(tmp_path / "run")}
    run("fedper", tmp_path / "own.npz", **settings)
    assert any((tmp_path / "cache").iterdir())
    assert fedloom("purge", str(tmp_path / "run"), "--models", "--yes").code == 0
    assert not any((tmp_path / "cache").iterdir())
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (tmp_path / "run" / "summary.json").exists()
    assert (tmp_path / "own.npz").exists()


# ---------------------------------------------------------------------- backup


class Crash(Exception):
    """The server's machine burns down."""


def test_a_federation_goes_on_from_its_backups_with_the_same_bytes(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two rounds of four, backed up, lost, restored elsewhere, and gone on with."""
    straight = deployed(files, tmp_path / "straight", rounds=4)
    for file in files:
        shutil.rmtree(SiteConfig.read(file).state)
    project = write_project(tmp_path / "study", NAMES, tls=False)
    out = project.root / "server" / "runs" / "first"
    rounds = 0

    def crashing(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise Crash
        return merge(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("fedloom.runs.runner.merge", crashing)
        with pytest.raises(Crash):
            deployed(files, out, rounds=4)
    saved = {project.root: tmp_path / "study.tar.gz"}
    saved |= {file: tmp_path / f"{file.parent.name}.tar.gz" for file in files}
    for what, file in saved.items():
        done = fedloom("deploy", "backup", str(what), str(file))
        assert done.code == 0, done.err
        assert file.stat().st_mode & 0o077 == 0
    before = contents(out)
    shutil.rmtree(project.root)
    for file in files:
        rows = file.parent / "rows.npz"
        shutil.move(rows, tmp_path / f"{file.parent.name}.npz")
        shutil.rmtree(file.parent)
        backup.restore(saved[file], file.parent)
        shutil.move(tmp_path / f"{file.parent.name}.npz", rows)
    done = fedloom("deploy", "restore", str(saved[project.root]), str(project.root))
    assert done.code == 0, done.err
    kept = {name: data for name, data in before.items() if ".tmp" not in name}
    assert contents(out) == kept
    resumed = deployed(files, out, rounds=4)
    assert resumed.summary.state_sha256 == straight.summary.state_sha256
    assert [r.scores for r in resumed.records] == [r.scores for r in straight.records]


def test_a_backup_has_no_data_and_no_logs(files: list[Path], tmp_path: Path) -> None:
    deployed(files, tmp_path / "server", rounds=1)
    (files[0].parent / "logs").mkdir()
    digits_schema().write(files[0].parent / "schema.toml")
    files[0].write_text('schema_file = "schema.toml"\n' + files[0].read_text())
    backup.back_up(files[0], tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        names = archive.getnames()
    assert {"site.toml", "schema.toml"} <= set(names)
    assert "kept/experiment/model/card.json" in names
    assert not any("rows.npz" in name or "logs" in name for name in names)
    with pytest.raises(BadInput, match="name a new file"):
        backup.back_up(files[0], tmp_path / "a.tar.gz")


def test_checkpoints_are_backed_up_before_what_grows_beside_them(tmp_path: Path) -> None:
    """A round may end meanwhile. A journal that is longer than its checkpoint is cut back; with one
    that is shorter the run could not go on. A log that has less than was counted was cut."""
    project = write_project(tmp_path / "study", NAMES, tls=False)
    run = project.root / "server" / "runs" / "first" / "run"
    for name in ("audit.jsonl", "checkpoints/step-1/server.safetensors", "metrics.jsonl"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    backup.back_up(project.root, tmp_path / "study.tar.gz")
    with tarfile.open(tmp_path / "study.tar.gz") as archive:
        names = [Path(name).name for name in archive.getnames() if "runs/first" in name]
    assert names == ["server.safetensors", "metrics.jsonl", "audit.jsonl"]


def test_an_altered_backup_is_not_unpacked(files: list[Path], tmp_path: Path) -> None:
    backup.back_up(files[0], tmp_path / "good.tar.gz")

    def rewritten(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> Path:
        """The same archive with one more member, or another one of this name."""
        place = tmp_path / "bad.tar.gz"
        with (
            tarfile.open(tmp_path / "good.tar.gz") as good,
            tarfile.open(place, "w:gz") as bad,
        ):
            for member in good:
                if member.name != name:
                    bad.addfile(member, good.extractfile(member))
            evil = tarfile.TarInfo(name)
            evil.size, evil.type, evil.linkname = len(data), kind, str(tmp_path)
            bad.addfile(evil, io.BytesIO(data))
        return place

    for name, data, kind in (
        ("site.toml", b"other", tarfile.REGTYPE),
        ("../evil", b"x", tarfile.REGTYPE),
        ("/tmp/evil", b"x", tarfile.REGTYPE),
        ("link", b"", tarfile.SYMTYPE),
        ("backup.json", b"[1]", tarfile.REGTYPE),
    ):
        with pytest.raises(BadInput):
            backup.restore(rewritten(name, data, kind), tmp_path / "new")
        assert not (tmp_path / "new").exists(), name
    with pytest.raises(BadInput, match="is not empty"):
        backup.restore(tmp_path / "good.tar.gz", files[0].parent)
    (tmp_path / "torn.tar.gz").write_bytes((tmp_path / "good.tar.gz").read_bytes()[:100])
    with pytest.raises(BadInput, match="cannot restore"):
        backup.restore(tmp_path / "torn.tar.gz", tmp_path / "new")


def test_a_database_is_backed_up_while_it_is_written(tmp_path: Path) -> None:
    import sqlite3

    project = write_project(tmp_path / "study", NAMES, tls=False)
    with sqlite3.connect(project.root / "server" / "superlink.db") as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t (x)")
        database.execute("insert into t values (7)")
        database.commit()
        backup.back_up(project.root, tmp_path / "s.tar.gz")
    backup.restore(tmp_path / "s.tar.gz", tmp_path / "restored")
    with sqlite3.connect(tmp_path / "restored" / "server" / "superlink.db") as database:
        assert database.execute("select x from t").fetchall() == [(7,)]


# ---------------------------------------------------------------------- metrics


def get(address: str, path: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}")
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_health_and_metrics_over_http() -> None:
    why = ""
    samples = [Sample("up", "Does it run?", 1), Sample("x_total", "X.", 3, {"of": 'a"\n'})]
    with serving("127.0.0.1:0", lambda: samples, lambda: why) as address:
        assert get(address, "/health") == (200, "ok\n")
        status, text = get(address, "/metrics")
        assert status == 200
        assert "\nfedloom_up 1\n" in text
        assert 'fedloom_x_total{of="a\\"\\n"} 3' in text
        assert get(address, "/elsewhere")[0] == 404
        assert get(address, "/metrics", host="evil.example:80")[0] == 403
        why = "the disk is full"
        assert get(address, "/health") == (503, "the disk is full\n")
    with pytest.raises(urllib.error.URLError):
        get(address, "/health")


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "192.0.2.1:9100", "9100", "localhost:x"])
def test_metrics_are_served_on_the_loopback_only(address: str) -> None:
    with (
        pytest.raises(BadInput, match="of this machine's loopback"),
        serving(address, list, lambda: ""),
    ):
        pass


def test_counts_of_an_audit_log_and_of_runs(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    counts = AuditCounts(log.path)
    assert [s.line() for s in counts.samples()] == ["fedloom_sent_bytes_total 0"]
    log.append("sent", bytes=100)
    log.append("refused", rule="least_batch")
    counts.samples()
    log.append("sent", bytes=23)
    text = exposition(counts.samples())
    assert 'fedloom_audit_events_total{event="sent"} 2' in text
    assert "fedloom_sent_bytes_total 123\n" in text
    journal = tmp_path / "first" / "run" / "metrics.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("{}\n{}\n")
    assert 'fedloom_steps_total{experiment="first"} 2' in exposition(run_samples(tmp_path))


# ---------------------------------------------------------------------- logs


def test_what_is_printed_goes_to_a_log_with_times_and_without_colours(tmp_path: Path) -> None:
    import subprocess

    with logged(tmp_path / "logs" / "node.log"):
        os.write(1, b"\x1b[31mred\x1b[0m and \x07bell\n")
        subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    file = tmp_path / "logs" / "node.log"
    wait_until(lambda: "of a child" in file.read_text())
    lines = file.read_text().splitlines()
    assert [line[21:] for line in lines] == ["red and ?bell", "of a child"]
    assert all(time.strptime(line[:20], "%Y-%m-%dT%H:%M:%SZ") for line in lines)


def test_a_log_rotates(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "a.log", most=100, kept=2)
    for number in range(12):
        log.write(f"line {number:02d} {'x' * 30}\n".encode())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert "line 11" in (tmp_path / "a.log").read_text()
    assert all(p.stat().st_mode & 0o077 == 0 for p in tmp_path.iterdir())
    assert all(p.stat().st_size <= 130 for p in tmp_path.iterdir())


def test_a_full_disk_costs_lines_of_the_log_and_not_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = RotatingLog(tmp_path / "a.log")
    log.write(b"first\n")
    with monkeypatch.context() as patch:
        patch.setattr("fedloom.deploy.operations.log_lines.os.write", full)
        log.write(b"second\n")
        log.write(b"third\n")
    log.write(b"fourth\n")
    log.write(b"fifth\n")
    lines = [line[21:] for line in (tmp_path / "a.log").read_text().splitlines()]
    assert lines == ["first", "(2 lines could not be written) fourth", "fifth"]


# ---------------------------------------------------------------------- quotas and versions


def test_a_site_whose_disk_is_used_up_refuses_the_round(files: list[Path]) -> None:
    config = SiteConfig.read(files[0])
    config.state.mkdir()
    (config.state / "big").write_bytes(b"\0" * 2000)
    assert folder_bytes(config.state) == 2000
    assert out_of_room(config.state, 2000) == ""
    files[0].write_text(files[0].read_text() + 'most_disk = "1 KB"\n')
    site = SiteData(SiteConfig.read(files[0]), Settings.read(CONFIG))
    with pytest.raises(BadInput, match=r"takes 2 KB, more than most_disk = 1 KB"):
        site.node()


@pytest.mark.parametrize(("theirs", "ours"), [("0.2.0", "0.1.0"), ("1.1.0", "0.1.0"), ("", "0.1")])
def test_versions_that_do_not_go_together_are_refused(theirs: str, ours: str) -> None:
    with pytest.raises(BadInput, match="do not go together"):
        check_version("hospital-a", theirs, ours)


def test_the_server_asks_for_the_version(files: list[Path], tmp_path: Path) -> None:
    settings = Settings.read(CONFIG)
    hello = SiteData(SiteConfig.read(files[0]), settings).hello()
    registry = SiteRegistry(tmp_path / "sites.json", settings, digits_schema())
    with pytest.raises(BadInput, match=r"has fedloom 9\.0\.0, the server"):
        registry.admit({**hello, "fedloom": "9.0.0"})


# ---------------------------------------------------------------------- dossier


def test_dossier_of_a_site(files: list[Path], tmp_path: Path) -> None:
    deployed(files, tmp_path / "server")
    log = AuditLog(SiteConfig.read(files[0]).state / "audit.jsonl")
    common = {"experiment": "experiment", "method": "fedper", "proposal": "a" * 64, "app": "b" * 64}
    log.append("waiting", **common, rule="approval", sentence="waits for approval")
    log.append("approved", digest="a" * 64, experiment="experiment", by="operator")
    log.append("received", **common, task="train", round=1)
    log.append("sent", **common, task="train", round=1, bytes=4096, sha256="c" * 64)
    log.append("refused", **common, rule="least_batch", sentence="<script>alert(1)</script>")
    done = fedloom("dossier", str(files[0]), "--site", NAMES[0], "--out", str(tmp_path / "d"))
    assert done.code == 0, done.err
    page = (tmp_path / "d" / "index.html").read_text()
    for words in (
        "5 lines, unbroken",
        "fedper",
        "4096",
        "least_batch",
        "operator",
        "training_rows",
    ):
        assert words in page, words
    assert "<script" not in page
    names = {p.name for p in (tmp_path / "d" / "records").iterdir()}
    assert names == {"audit.jsonl", "card-experiment.json", "site.toml"}
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert "BROKEN" in dossier_of_site(files[0]).sections["The record itself"][0]
    with pytest.raises(BadInput, match="is not empty"):
        dossier_of_site(files[0]).write(tmp_path / "d")


@pytest.mark.parametrize("by_policy", [False, True])
def test_dossier_of_a_site_has_settings_tensors_and_the_proposal(
    by_policy: bool, tmp_path: Path
) -> None:
    """What ran with which settings, and each tensor that may leave, whoever decided."""
    with gated_site(tmp_path) as site:
        if by_policy:
            site.say(f'approval = "policy"\napps = ["{site.app.sha256}"]')
        digest = "" if by_policy else site.approve()
        left = site.ask(site.order()).reply.content.array_records["state/model"]
        dossier = dossier_of_site(site.file)
        page = dossier.write(tmp_path / "d").read_text()
    for words in ("batch_size", "mlp(hidden=[8], norm=batch)", "admitted" if by_policy else "test"):
        assert words in page, words
    for key, array in left.items():
        shape = "x".join(map(str, array.shape))
        assert f"model/{key}" in page
        assert shape in page
    assert "model/head." not in page
    proposal = f"proposal-{digest[:16]}.json"
    assert by_policy or json.loads(dossier.records[proposal])["proposal"]["app"] == site.app.sha256


def test_dossier_of_a_site_says_what_noise_was_worth(tmp_path: Path) -> None:
    """Two rounds are answered, one of them twice with the same bytes."""
    changes = {"privacy": "client(noise=0.5, delta=1e-06)"}
    with gated_site(tmp_path) as site:
        site.approve(**changes)
        for order in (site.order(), site.order(t=2), site.order()):
            assert not site.ask(order, override=changes).error
        (_, table) = dossier_of_site(site.file).sections["Noise"]
    epsilon = parse_privacy(changes["privacy"]).epsilon_after(2)
    assert _cells(table)[-5:] == [changes["privacy"], "2", "2", f"{epsilon:.4g}", "1e-06"]


def test_releases_of_a_site_are_counted_by_what_was_done() -> None:
    """Of three epochs a round every row is in three noisy batches; scores, special rounds and
    messages around a masked round have no gradients in them."""
    privacy = "example(noise=2.0)"
    settings = {"method": "fedavg", "epochs": 3, "privacy": privacy}
    approved = {"event": "approved", "digest": "d", "settings": settings}
    steps = [("client", "train model"), ("client", "train model"), ("evaluate", "train model")]
    steps += [("client", "special secure_aggregation.keys"), ("client", "special dbe.mean")]
    sent = [
        {"event": "sent", "proposal": "d", "sha256": str(i), "task": task, "step": step, "round": 1}
        for i, (task, step) in enumerate(steps)
    ]
    (_, table) = _noise_of_site([approved, *sent], sent)
    epsilon = parse_privacy(privacy).epsilon_after(6)
    assert _cells(table)[-4:] == ["5", "6", f"{epsilon:.4g}", "1e-05"]


def test_dossier_of_a_site_whose_runs_have_no_noise_says_so() -> None:
    approved = {"event": "approved", "digest": "d", "settings": {"method": "fedavg"}}
    sent = [{"event": "sent", "proposal": "d", "sha256": "1", "step": "train model", "round": 1}]
    assert "as the method made it" in _noise_of_site([approved, *sent], sent)[0]


def _cells(table: str) -> list[str]:
    """What stands in the table, from left to right."""
    return [text.strip() for text in re.split(r"<[^>]+>", table) if text.strip()]


def test_dossier_of_a_run_shows_one_client_alone(files: list[Path], tmp_path: Path) -> None:
    deployed(files, tmp_path / "server")
    dossier = dossier_of_run(tmp_path / "server", "hospital-b")
    text = dossier.write(tmp_path / "d").read_text()
    assert "client 1" in text
    assert "model/body." in text
    assert "model/head." not in text
    card = json.loads((tmp_path / "d" / "records" / "model-card.json").read_text())
    assert "Model card" in text
    assert card["training rows that this client stated"] > 0
    assert any(key.startswith("scores of this client") for key in card)
    own = json.loads((tmp_path / "d" / "records" / "ledger-of-client.json").read_text())
    assert own["client"] == 1
    with pytest.raises(BadInput, match="there are: hospital-a"):
        dossier_of_run(tmp_path / "server", "hospital-x")


# ---------------------------------------------------------------------- kill -9


@pytest.mark.parametrize("module", ["gate", "guard"])
def test_link_and_node_end_with_the_command_that_started_them(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`kill -9` of `deploy node` left an orphan, on whose port the next one could not start."""
    from importlib import import_module

    class Watching(Exception):
        pass

    def watch() -> None:
        raise Watching

    main = import_module(f"fedloom.deploy.{module}.__main__")
    monkeypatch.setattr("fedloom.deploy.processes.children.end_with_parent", watch)
    monkeypatch.setattr(main, "end_with_parent", watch, raising=False)
    with pytest.raises(Watching):
        main.main()
