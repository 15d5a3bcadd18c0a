"""Folders and files of strangers: nothing outside is written, removed or run, and what is wrong
with them is one sentence, soon."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fuzzing import saved_model
from test_bad_input import contents

from fedloom import federate, load, resume, run
from fedloom.errors import BadInput, CheckpointError, FedloomError, RunFolderError
from fedloom.files import read_regular, read_toml, write_atomic
from fedloom.methods import parse_method
from fedloom.report.page import report
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.config import RunConfig
from fedloom.runs.ledger import Account
from fedloom.serving.model import PersonalModel

SETTINGS: Any = {
    "clients": 3,
    "partition": "iid",
    "model": "mlp(hidden=[8])",
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    run("fedper", "digits", rounds=3, out=str(folder), **SETTINGS)
    return folder


@pytest.fixture
def stopped(ended: Path, tmp_path: Path) -> Path:
    """A copy of it that lacks its summary, as if it had been stopped."""
    shutil.copytree(ended, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's folder, which has nothing to do with the run."""
    folder = tmp_path / "outside"
    (folder / "step-000001").mkdir(parents=True)
    (folder / ".writing-step-000002").mkdir()
    (folder / ".writing-step-000002" / "thesis.txt").write_text("years of work")
    (folder / "victim").write_text("precious, and without a line break")
    return folder


# ---------------------------------------------------------------------- links


@pytest.mark.parametrize("name", [".summary.json.tmp", ".fedloom.pid.tmp", ".config.json.tmp"])
def test_a_link_under_a_temporary_name_is_not_written_through(
    stopped: Path, outside: Path, name: str
) -> None:
    before = contents(outside)
    (stopped / name).symlink_to(outside / "victim")
    resume(stopped, rounds=4)
    assert contents(outside) == before


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "ledger.jsonl", "diagnostics.jsonl", "summary.json", "tensorboard"]
)
def test_a_file_of_a_run_that_is_a_link_is_refused(stopped: Path, outside: Path, name: str) -> None:
    before = contents(outside)
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(outside / "victim")
    with pytest.raises(RunFolderError, match=f"{name} is a link to .*nothing outside"):
        resume(stopped)
    assert contents(outside) == before
    run("fedper", "digits", rounds=1, out=str(stopped), overwrite=True, **SETTINGS)
    assert contents(outside) == before


def test_checkpoints_that_are_a_link_are_refused_by_whoever_removes_old_ones(
    stopped: Path, outside: Path
) -> None:
    for step in (stopped / "checkpoints").iterdir():
        shutil.move(step, outside / step.name)
    (stopped / "checkpoints").rmdir()
    (stopped / "checkpoints").symlink_to(outside)
    before = contents(outside)
    with pytest.raises(RunFolderError, match="checkpoints is a link"):
        resume(stopped, rounds=5)
    linked = Checkpoints(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match="is a link to"):
        linked.drop_after(0)
    with pytest.raises(CheckpointError, match="is a link to"):
        linked.load_latest()
    assert contents(outside) == before


def test_a_checkpoint_that_is_a_link_is_damaged(stopped: Path, outside: Path) -> None:
    newest = stopped / "checkpoints" / "step-000003"
    shutil.move(newest, outside / "newest")
    newest.symlink_to(outside / "newest")
    before = contents(outside)
    result = resume(stopped, rounds=6)
    assert "step-000003 is damaged (it is a link" in result.warnings[0]
    assert contents(outside) == before
    assert not any(p.is_symlink() for p in stopped.rglob("*"))


def test_a_state_in_a_checkpoint_that_is_a_link_is_damaged(stopped: Path, outside: Path) -> None:
    file = stopped / "checkpoints" / "step-000003" / "server.safetensors"
    shutil.move(file, outside / "server")
    file.symlink_to(outside / "server")
    assert "server.safetensors: a link" in resume(stopped).warnings[0]


def test_diagnostics_are_not_appended_through_a_link(tmp_path: Path, outside: Path) -> None:
    from fedloom.diagnose.recorder import _append

    (tmp_path / "diagnostics.jsonl").symlink_to(outside / "victim")
    before = contents(outside)
    with pytest.raises(OSError, match="symbolic link"):
        _append(tmp_path / "diagnostics.jsonl", [])
    assert contents(outside) == before


def test_a_saved_partition_replaces_a_link(tmp_path: Path, outside: Path) -> None:
    before = contents(outside)
    (tmp_path / "partition.json").symlink_to(outside / "victim")
    federate(load("digits"), "iid", 3).partition.save(tmp_path / "partition.json")
    assert contents(outside) == before


def test_what_a_kill_left_of_a_write_is_removed_a_day_later(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.json.0123456789ab.tmp", tmp_path / ".a.json.ba9876543210.tmp"
    other = tmp_path / ".other.json.0123456789ab.tmp"
    for file in (old, young, other):
        file.write_text("half of it")
    for file in (old, other):
        os.utime(file, (0, 0))
    write_atomic(tmp_path / "a.json", "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", young.name, other.name}


# ---------------------------------------------------------------------- run folders


def manifest_with(folder: Path, **changes: Any) -> Path:
    """The newest checkpoint's manifest, changed, with a digest that is right."""
    file = folder / "checkpoints" / "step-000003" / "manifest.json"
    body = {**json.loads(file.read_text()), **changes}
    del body["sha256"]
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**body, "sha256": digest}))
    return file


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": -3}, "step: input should be greater than or equal to 0"),
        ({"step": "3"}, "step: input should be a valid integer"),
        ({"journal_bytes": -1}, "journal_bytes"),
        ({"files": {}}, "names no server.safetensors"),
        ({"files": {"../../../outside/x": {"size": 1, "sha256": ""}}}, "files"),
        ({"totals": None}, "totals"),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_damaged(
    stopped: Path, changes: dict[str, Any], reason: str
) -> None:
    """Its digest is right, as a stranger would make it."""
    manifest_with(stopped, **changes)
    assert reason in resume(stopped).warnings[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": 99}, "is at step 99 of 3"),
        ({"extra": {}}, "ledger_bytes"),
        ({"extra": {"ledger_bytes": 0, "early_end": {"reason": 1}}}, "early_end"),
        ({"totals": {}}, "lacks the run's totals"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    stopped: Path, changes: dict[str, Any], reason: str
) -> None:
    manifest_with(stopped, **changes)
    with pytest.raises(FedloomError, match=reason):
        resume(stopped)


@pytest.mark.parametrize("name", ["server.safetensors", "clients-000000.states"])
def test_states_that_cannot_be_unpacked_are_damage(stopped: Path, name: str) -> None:
    file = stopped / "checkpoints" / "step-000003" / name
    data = b"\x05\0\0\0\0\0\0\0{}   "
    file.unlink()  # it is shared with the checkpoint before
    file.write_bytes(data)
    files = json.loads((file.parent / "manifest.json").read_text())["files"]
    files[name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    manifest_with(stopped, files=files)
    assert f"step-000003 is damaged ({name}: " in resume(stopped).warnings[0]


@pytest.mark.parametrize("text", ["[1]", "3", "null", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "versions.json", "partition.json"])
def test_json_that_is_no_record_is_a_sentence(stopped: Path, name: str, text: str) -> None:
    (stopped / name).write_text(text)
    with pytest.raises(FedloomError, match=name):
        resume(stopped)
    with pytest.raises(FedloomError, match=name):
        report([stopped], stopped / "page.html")


@pytest.mark.parametrize("text", ["[1]", '{"methods": 3}', '{"methods": [{"seeds": [{}]}]}'])
def test_a_comparison_that_is_none_is_a_sentence(stopped: Path, text: str) -> None:
    folder = stopped.parent
    (folder / "comparison.json").write_text(text)
    with pytest.raises(RunFolderError, match="is no comparison"):
        report([folder], folder / "page.html")


def test_a_ledger_that_does_not_describe_what_it_counts_is_a_sentence(stopped: Path) -> None:
    ledger = stopped / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if '"tensors"' not in line))
    with pytest.raises(RunFolderError, match="which it does not describe"):
        Account.read(ledger)


@pytest.mark.parametrize("name", ["config.json", "partition.json", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_does_not_hang(stopped: Path, name: str) -> None:
    (stopped / name).unlink()
    os.mkfifo(stopped / name)
    with pytest.raises(FedloomError):
        resume(stopped)
    with pytest.raises(FedloomError):
        report([stopped], stopped / "page.html")


def test_a_file_that_never_ends_or_is_too_long_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(Path("/dev/zero"))
    with open(tmp_path / "long.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than"):
        read_regular(tmp_path / "long.json")


def test_a_report_does_not_run_what_a_run_folder_names(stopped: Path) -> None:
    """Resuming and diagnosing need the code; a page does not."""
    code = stopped.parent / "evil.py"
    code.write_text(f"open({str(stopped.parent / 'evil-ran')!r}, 'w').close()\n")
    config = json.loads((stopped / "config.json").read_text())
    digest = sha256(code.read_bytes()).hexdigest()
    (stopped / "config.json").write_text(
        json.dumps({**config, "imports": [f"{code}#sha256={digest}"]})
    )
    report([stopped], stopped.parent / "page.html")
    assert not (stopped.parent / "evil-ran").exists()


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("key", "value"), [("rounds", 2**63 - 1), ("clients", 10**12), ("memory", 1e308)]
)
def test_numbers_nobody_can_wait_for_are_refused(key: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{key} = .* will not do"):
        RunConfig.checked({key: value})


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000, "a = '\ud800'"])
def test_toml_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadInput, match="is not valid TOML"):
        read_toml(tmp_path / "run.toml")


def test_a_recipe_of_terms_alone_is_a_sentence() -> None:
    with pytest.raises(BadInput, match="begins with the term 'dbe'; begin with a method"):
        parse_method("dbe")


# ---------------------------------------------------------------------- tables and arrays


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def frame(value: float) -> pd.DataFrame:
    return pd.DataFrame({"a": [value, value], "b": [0.0, 1.0], "label": [0, 1]})


@pytest.mark.usefixtures("cache")
def test_a_name_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    for name, value in (("p1", 1.0), ("p[1]", 2.0)):
        frame(value).to_csv(tmp_path / f"{name}.csv", index=False)
        frame(value).to_parquet(tmp_path / f"{name}.parquet")
        (tmp_path / name).mkdir()
        frame(value).to_parquet(tmp_path / name / "rows.parquet")
    for name in ("p[1].csv", "p[1].parquet", "p[1]"):
        assert load(tmp_path / name).x[:, 0].tolist() == [2.0, 2.0], name


@pytest.mark.usefixtures("cache")
def test_wide_tables_take_time_in_proportion(tmp_path: Path) -> None:
    """Of two rows and 2,000 columns, which took a minute when every column was a read."""
    wide = pd.DataFrame(np.zeros((2, 2000)), columns=[f"c{i}" for i in range(2000)])
    wide.assign(label=[0, 1]).to_csv(tmp_path / "wide.csv", index=False)
    load("digits")  # imports
    begun = time.perf_counter()
    assert load(tmp_path / "wide.csv").shape == (2000,)
    assert time.perf_counter() - begun < 20


@pytest.mark.usefixtures("cache")
def test_a_table_that_unpacks_to_more_than_the_disk_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million equal rows take some kilobytes as a file, and here at least three megabytes."""
    (tmp_path / "folder").mkdir()
    wide = pd.DataFrame({"a": 0.0, "b": 1.0, "label": 0}, index=range(1_000_000))
    wide.to_parquet(tmp_path / "rows.parquet")
    wide.to_parquet(tmp_path / "folder" / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 20_000
    disk = SimpleNamespace(free=2_000_000)
    monkeypatch.setattr("fedloom.data.tables.shutil.disk_usage", lambda _: disk)
    for name in ("rows.parquet", "folder"):
        with pytest.raises(BadInput, match="the table takes at least"):
            load(tmp_path / name)


@pytest.mark.usefixtures("cache")
def test_an_archive_larger_than_the_memory_is_not_unpacked(tmp_path: Path) -> None:
    """The archive's own list of contents says how large they are."""
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), np.float32), y=np.array([0, 1, 0, 1]))
    data = (tmp_path / "a.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        size = archive.getinfo("x.npy").file_size
    entry = data.index(b"PK\x01\x02")
    huge = (2**32 - 2).to_bytes(4, "little")
    assert data[entry + 24 : entry + 28] == size.to_bytes(4, "little")
    names = range(20)
    head, tail = data[:entry], data[data.index(b"PK\x05\x06") :]
    one = data[entry : data.index(b"PK\x01\x02", entry + 1)]
    entries = b"".join(one[:24] + huge + one[28:] for _ in names)
    counts = len(names).to_bytes(2, "little") * 2 + len(entries).to_bytes(4, "little")
    (tmp_path / "b.npz").write_bytes(head + entries + tail[:8] + counts + tail[16:])
    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") > 20 * 2**32:
        pytest.skip("this machine has more memory than the archive asks for")
    with pytest.raises(BadInput, match=r"its arrays take \d+ bytes, this machine has"):
        load(tmp_path / "b.npz")


# ---------------------------------------------------------------------- models


def card_with(folder: Path, right_digest: bool = True, **changes: Any) -> None:
    file = folder / "card.json"
    card = {**json.loads(file.read_text()), **changes}
    if right_digest:
        del card["sha256"]
        card["sha256"] = sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(card))


def test_a_saved_model_predicts(tmp_path: Path) -> None:
    personal = PersonalModel.load(saved_model(tmp_path))
    assert personal.predict(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2, 10)


def test_the_tensors_of_a_model_lie_in_its_folder(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model")
    ((name, digest),) = json.loads((folder / "card.json").read_text())["files"].items()
    shutil.move(folder / name, tmp_path / name)
    for path in (str(tmp_path / name), f"../{name}"):
        card_with(folder, files={path: digest})
        with pytest.raises(BadInput, match=r"is no card .*: files\."):
            PersonalModel.load(folder)


@pytest.mark.parametrize(
    "changes", [{"class_names": list("1023456789")}, {"mean": [0.0]}, {"client": 1}]
)
def test_an_altered_card_is_noticed(tmp_path: Path, changes: dict[str, Any]) -> None:
    card_with(saved_model(tmp_path), right_digest=False, **changes)
    with pytest.raises(BadInput, match=r"card.json was altered after it was saved"):
        PersonalModel.load(tmp_path)


def test_other_tensors_than_the_cards_are_noticed(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "one")
    file = next(folder.glob("personal-*"))
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\x80?")
    with pytest.raises(BadInput, match="is not the file of the model's card"):
        PersonalModel.load(folder)


@pytest.mark.parametrize("text", ["{}", "[1]", "x", "[" * 100_000])
def test_a_card_that_is_none_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(BadInput, match=re.escape(str(tmp_path / "card.json"))):
        PersonalModel.load(tmp_path)


@pytest.mark.parametrize("where", ["imports", "network"])
def test_code_that_a_card_names_runs_only_where_the_caller_names_it(
    tmp_path: Path, where: str
) -> None:
    folder = saved_model(tmp_path / "model")
    code = tmp_path / "evil.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    card_with(folder, **{where: [str(code)] if where == "imports" else f"{code}:Net"})
    with pytest.raises(BadInput, match=r"needs code or files of its own .*evil.py"):
        PersonalModel.load(folder)
    assert not (tmp_path / "ran").exists()
