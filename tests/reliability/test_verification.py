"""`fedloom verify`: a good run passes on every engine, an altered one is caught where it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.round import Round, merge
from fedloom.core.tree import State
from fedloom.data.partition import Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.data.partition.draw import empty
from fedloom.engines import Absent, Job, JobOf
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.record import StepDigests
from fedloom.runs import digests, runner
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.config import RunConfig
from fedloom.runs.digests import link_of, record_digest
from fedloom.runs.experiment import Experiment
from fedloom.runs.journal import line_of, read_records
from fedloom.verification.draw import Lottery
from helpers import StopAt, fedloom

SETTINGS: dict[str, Any] = {
    "partition": "iid",
    "clients": 5,
    "participation": 0.8,
    "model": "mlp(hidden=[12])",
    "rounds": 5,
    "checkpoint_every": 1,
}
METHOD = "fedper + control_variates"  # a state on the server and at every client


def made(out: Path, method: str = METHOD, **settings: Any) -> Path:
    """A run's folder."""
    fl.run(method, out=str(out), progress=False, **{**SETTINGS, **settings})
    return out


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture
def copied(honest: Path, tmp_path: Path) -> Path:
    """The honest run, to be altered."""
    return Path(shutil.copytree(honest, tmp_path / "run"))


def differing(result: fl.Verification) -> set[str]:
    return {str(difference) for difference in result.differences}


def files(folder: Path) -> dict[str, tuple[int, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


# ------------------------------------------------------------------ good runs


@pytest.mark.parametrize("engine", ["vectorized", "pool", "flower"])
def test_every_engine_records_the_same_and_verifies(
    engine: str, honest: Path, tmp_path: Path
) -> None:
    out = made(tmp_path / "run", engine=engine)
    assert (out / "digests.jsonl").read_bytes() == (honest / "digests.jsonl").read_bytes()
    result = fl.verify(out, sample=0.3)
    assert result.good
    assert result.odds is not None
    assert result.odds.answer >= 0.3


def test_a_good_run_verifies_and_its_folder_is_left_alone(honest: Path) -> None:
    before = files(honest)
    result = fl.verify(honest, sample=1.0)
    assert result.good, result.sentence
    everything = {k: v for k, v in result.checked.items() if v != result.recorded[k]}
    assert not everything
    assert result.odds is not None
    assert result.odds.answer == 1.0
    assert files(honest) == before


def test_a_sample_costs_a_part(honest: Path) -> None:
    """Of 20 answers in 5 rounds: one round of four, and one answer beside it."""
    result = fl.verify(honest, sample=0.05, seed=1)
    assert (result.checked["server steps"], result.checked["answers"]) in [(1, 4), (1, 5)]
    again = fl.verify(honest, sample=0.05, seed=1)
    assert again == result


def test_in_memory_and_in_parts_it_is_the_same_digest(honest: Path, tmp_path: Path) -> None:
    recorded = json.loads((honest / "summary.json").read_text())["digest"]
    assert fl.run(METHOD, **SETTINGS).summary.digest == recorded
    with pytest.raises(KeyboardInterrupt):
        fl.run(METHOD, **SETTINGS, out=str(tmp_path / "run"), watchers=[StopAt(3)])
    assert fl.verify(tmp_path / "run", sample=1.0).good  # of a run that is not over
    assert fl.resume(tmp_path / "run").summary.digest == recorded
    assert fl.verify(tmp_path / "run", sample=1.0).good


@pytest.mark.parametrize("method", ["fedavg_ft(adapt_epochs=1)", "spherefed", "fedavg + dbe"])
def test_special_rounds_and_adaptations_verify(method: str, tmp_path: Path) -> None:
    out = made(tmp_path / "run", method, rounds=2, newcomers=1)
    assert fl.verify(out, sample=1.0).good


def test_answers_that_wait_to_be_hashed_give_the_same_lines(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MOST_WAITING", 0)  # each is hashed when it comes
    out = made(tmp_path / "run")
    assert (out / "digests.jsonl").read_bytes() == (honest / "digests.jsonl").read_bytes()


class SomeMissing(Inline):
    """Client 2 does not answer round 2, clients 3 and 4 are not there in round 3."""

    step = 0

    def present(self, clients: int) -> Sequence[int]:
        self.step += 1
        return range(clients - 2 if self.step == 3 else clients)

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        absent = {2} & set(ids) if self.step == 2 else set()
        for cid in absent:
            job(cid)
            yield cid, Absent("it slept"), {}
        yield from super().clients([cid for cid in ids if cid not in absent], job, ask)


@pytest.mark.parametrize("eval_every", [1, 5])
@pytest.mark.parametrize("participation", [0.8, 1.0])
def test_rounds_in_which_clients_were_missing_are_computed_again(
    tmp_path: Path, participation: float, eval_every: int
) -> None:
    changes = {"participation": participation, "eval_every": eval_every, "seed": 1}
    config = RunConfig.checked({"method": METHOD, **SETTINGS, **changes, "out": str(tmp_path)})
    records = start(Experiment.build(config), SomeMissing()).records
    assert records[1].absent == {2: "it slept"}
    result = fl.verify(tmp_path, sample=1.0)
    assert result.good, result.sentence
    assert result.checked["answers"] == result.recorded["answers"] > 0
    assert "missing in rounds 2, 3" in result.remarks[0]
    alter_score(tmp_path, 4)
    assert not fl.verify(tmp_path, sample=1.0).good


@pytest.mark.parametrize("split", ["merged(train=0.6, val=0.2)", "merged(train=0.75)"])
def test_a_trial_of_tuning_verifies(split: str, tmp_path: Path) -> None:
    """It has no test rows, and where the split leaves no validation rows, some held out."""
    settings = {**SETTINGS, "rounds": 2, "split": split}
    fl.tune(["fedavg"], trials=1, workers=1, out=str(tmp_path), **settings)
    (trial,) = (path.parent for path in tmp_path.rglob("digests.jsonl"))
    result = fl.verify(trial, sample=1.0)
    assert result.good, result.sentence
    assert result.checked["answers"] == result.recorded["answers"] > 0


def test_a_run_that_was_given_more_rounds_verifies(tmp_path: Path) -> None:
    """Its former last round has scores of newcomers, and scores that `eval_every` leaves out."""
    out = made(tmp_path / "run", rounds=2, newcomers=1, eval_every=3)
    fl.resume(out, rounds=4)
    result = fl.verify(out, sample=1.0)
    assert result.good, result.sentence
    assert "eval_every = 3 leaves out were scored" in result.remarks[0]
    assert result.remarks[0].endswith("more rounds: 2")


def test_a_run_that_stopped_early_verifies(tmp_path: Path) -> None:
    out = made(tmp_path / "run", rounds=40, lr=1e-9, early_stop=2, protocol="dbe")
    assert 0 < len((out / "metrics.jsonl").read_text().splitlines()) < 40
    result = fl.verify(out, sample=0.2)
    assert result.good
    assert "of 40 rounds" in result.remarks[0]
    assert "whether it had to end there is not checked" in result.remarks[0]


def test_with_the_last_checkpoints_alone_it_begins_with_the_first_round(tmp_path: Path) -> None:
    out = made(tmp_path / "run", history=0)
    assert Checkpoints(out / "checkpoints").steps() == [5, 4]
    result = fl.verify(out, sample=0.01, rounds=[1, 2])
    assert result.good
    assert result.checked["server steps"] == 2


# ------------------------------------------------------------------ altered runs


class ChangedAnswer(Inline):
    """Changes the answer of client 3 in round 2; all that follows is computed from it."""

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        rounds: dict[int, int] = {}

        def noticed(cid: int) -> Job:
            made_job = job(cid)
            rounds[cid] = made_job.down.plan.t
            return made_job

        for cid, up, own in super().clients(ids, noticed, ask):
            yield cid, (changed(up) if (cid, rounds[cid]) == (3, 2) else up), own


def changed(up: Up) -> Up:
    model = {key: value + 1e-3 for key, value in up.state["model"].items()}
    return replace(up, state={**up.state, "model": model})


def forged_by_engine(out: Path, **settings: Any) -> Path:
    config = RunConfig.checked({**SETTINGS, **settings, "method": METHOD, "out": str(out)})
    start(Experiment.build(config), ChangedAnswer())
    return out


def test_one_changed_answer_is_caught_wherever_it_is_drawn(tmp_path: Path) -> None:
    """All later digests were made to fit, so only the answer itself tells."""
    out = forged_by_engine(tmp_path / "run", participation=1.0)
    assert differing(fl.verify(out, sample=1.0)) == {"round 2, client 3: its answer differs"}
    alone = fl.verify(out, sample=1.0, rounds=[2], clients=[3])
    assert differing(alone) == {"round 2, client 3: its answer differs"}
    assert fl.verify(out, sample=1.0, rounds=[1, 3, 4, 5]).good
    assert fl.verify(out, sample=1.0, clients=[0, 1, 2, 4]).good


def test_it_is_caught_exactly_where_its_stretch_is_drawn(tmp_path: Path) -> None:
    """One stretch of three is drawn; how often that is the changed one, the odds' own tests say."""
    settings = {"participation": 1.0, "clients": 4, "rounds": 6, "checkpoint_every": 2}
    out = forged_by_engine(tmp_path / "run", **settings)
    lottery = Lottery([range(4)] * 6, begins=[0, 2, 4], share=0.05)
    odds, caught = lottery.odds(), set[bool]()
    for seed in range(4):
        result = fl.verify(out, sample=0.05, seed=seed)
        assert result.odds == odds
        assert result.good == (range(2) not in lottery.draw(seed).stretches)
        caught.add(not result.good)
    assert caught == {True, False}


def test_a_changed_server_step_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfair(r: Round) -> State:
        server = merge(r)
        if r.plan.t != 2:
            return server
        return {**server, "model": {k: v * 1.01 for k, v in server["model"].items()}}

    monkeypatch.setattr(runner, "merge", unfair)
    out = made(tmp_path / "run")
    monkeypatch.undo()
    sentence = "round 2: what the server made of the answers is not what was recorded"
    assert differing(fl.verify(out, sample=1.0)) == {sentence}
    assert fl.verify(out, sample=1.0, rounds=[1, 3, 4, 5]).good


def alter_score(out: Path, line: int = 1) -> list[bytes]:
    """Give a client of one round a better accuracy."""
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    record = json.loads(lines[line])
    record["scores"][0]["metrics"]["accuracy"][0] = 0.999
    lines[line] = json.dumps(record).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return lines


def link_again(out: Path, journal: Sequence[bytes]) -> None:
    """What a careful forger does: make all links fit the journal."""
    lines = read_records(out / "digests.jsonl", StepDigests)
    previous, forged = lines[0].previous, list[StepDigests]()
    for line, written in zip(lines, journal, strict=True):
        new = replace(line, record=record_digest(json.loads(written)), previous=previous)
        forged.append(replace(new, link=link_of(new)))
        previous = forged[-1].link
    (out / "digests.jsonl").write_bytes(b"".join(map(line_of, forged)))
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps({**summary, "digest": previous}))


def test_a_changed_line_of_the_journal_is_always_caught(copied: Path) -> None:
    alter_score(copied)
    result = fl.verify(copied, sample=0.01, rounds=[5])
    sentence = "round 2: its line in metrics.jsonl is not the one that was recorded"
    assert sentence in differing(result)


def test_a_changed_score_with_new_links_is_caught_where_its_round_is_drawn(copied: Path) -> None:
    digest = json.loads((copied / "summary.json").read_text())["digest"]
    link_again(copied, alter_score(copied))
    result = fl.verify(copied, sample=1.0)
    assert any(difference.subject == "scores" for difference in result.differences)
    assert all(difference.where.startswith("round 2") for difference in result.differences)
    assert fl.verify(copied, sample=1.0, rounds=[1, 3, 4, 5]).good
    assert result.digest != digest  # which whoever noted the run's digest sees at once


def test_a_changed_line_of_digests_breaks_the_chain(copied: Path) -> None:
    path = copied / "digests.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert any("the chain is broken" in sentence for sentence in differing(fl.verify(copied)))


def test_a_better_number_in_the_summary_is_caught(copied: Path) -> None:
    summary = json.loads((copied / "summary.json").read_text())
    summary["result"]["value"] = 0.999
    (copied / "summary.json").write_text(json.dumps(summary))
    sentence = "summary.json: its result does not follow from metrics.jsonl"
    assert differing(fl.verify(copied)) == {sentence}


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "fedpac"),
        ("protocol", "dbe"),
        ("rounds", 50),
        ("clients", 50),
        ("seed", 7),
        ("bytes_up", 1),
        ("bytes_down", 1),
        ("partition_sha256", "0" * 64),
    ],
)
def test_what_the_summary_repeats_is_compared(copied: Path, name: str, value: Any) -> None:
    rewrite(copied / "summary.json", **{name: value})
    sentence = f"summary.json: its {name} is not that of the run"
    assert differing(fl.verify(copied, rounds=[1])) == {sentence}


def test_a_run_that_ends_before_its_settings_do_is_caught(tmp_path: Path) -> None:
    """As one that was cut off after its best round: everything fits, but for its length."""
    out = made(tmp_path / "run", rounds=3)
    rewrite(out / "config.json", rounds=5)
    sentence = "summary.json: the run has fewer steps than its settings ask for"
    assert [str(d).partition(",")[0] for d in fl.verify(out).differences] == [sentence]
    rewrite(out / "summary.json", stopped="Ctrl-C")
    assert "after 3 of 5 rounds (Ctrl-C)" in fl.verify(out).remarks[0]


def test_asking_others_than_those_drawn_is_always_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving out a client that does badly, in all rounds."""
    monkeypatch.setattr(Program, "cohort", lambda *_: [0, 1, 2, 3])
    out = made(tmp_path / "run")
    monkeypatch.undo()
    (sentence,) = differing(fl.verify(out, sample=0.01, rounds=[5]))
    assert sentence.endswith("who was asked is not who is drawn with this seed")


def test_other_settings_than_recorded_are_caught(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["seed"] = 9
    (copied / "config.json").write_text(json.dumps(config))
    result = fl.verify(copied, rounds=[1])
    assert any("the settings, the data or the first weights" in s for s in differing(result))


def test_changed_bytes_of_a_checkpoint_are_caught(copied: Path) -> None:
    file = copied / "checkpoints" / "step-000003" / "server.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    os.unlink(file)
    file.write_bytes(data)
    result = fl.verify(copied, sample=1.0)
    assert {difference.where for difference in result.differences} == {"checkpoint of step 3"}
    assert result.checked["server steps"] == 5  # computed from the checkpoint before it


def test_a_checkpoint_with_a_new_manifest_is_caught(copied: Path) -> None:
    folder = copied / "checkpoints" / "step-000003"
    file, manifest = folder / "server.safetensors", folder / "manifest.json"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    os.unlink(file)
    file.write_bytes(data)
    body = json.loads(manifest.read_text())
    del body["sha256"]
    body["files"][file.name]["sha256"] = sha256(data).hexdigest()
    whole = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({**body, "sha256": whole}))
    sentence = "checkpoint of step 3: the server's state is not the one that was recorded"
    assert sentence in differing(fl.verify(copied))


# ------------------------------------------------------------------ what cannot be checked


def without_digests(snapshot_of: Path) -> None:
    """As a fedloom wrote it that took no digests."""
    checkpoints = Checkpoints(snapshot_of / "checkpoints")
    snapshot, _ = checkpoints.load_latest()
    del snapshot.extra["digests_bytes"]
    shutil.rmtree(snapshot_of / "checkpoints")
    Checkpoints(snapshot_of / "checkpoints").save(snapshot)
    (snapshot_of / "digests.jsonl").unlink()


def test_a_run_without_digests_goes_on_and_says_so(honest: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fl.run(METHOD, **SETTINGS, out=str(out), watchers=[StopAt(3)])
    without_digests(out)
    resumed = fl.resume(out).summary
    assert resumed.digest is None
    recorded = json.loads((honest / "summary.json").read_text())
    assert resumed.state_sha256 == recorded["state_sha256"]
    with pytest.raises(fl.RunFolderError, match="was recorded without digests"):
        fl.verify(out)


def test_where_data_stays_at_the_sites_the_records_alone_are_checked(copied: Path) -> None:
    """The server's folder of a deployment: its partition has clients without rows."""
    nobody = Partition((ClientRows(empty()),) * 5, source="the kind of data")
    nobody.save(copied / "partition.json")
    result = fl.verify(copied)
    assert result.good
    assert (result.checked["links"], result.checked["answers"]) == (5, 0)
    assert "the data is at the sites" in result.remarks[0]
    assert "Nothing was computed again" in result.sentence
    alter_score(copied)
    assert not fl.verify(copied).good


def test_a_run_of_which_nothing_can_be_computed_again_is_no_success(copied: Path) -> None:
    """Whoever wants to hide a forgery could say that the data is elsewhere, or a client was."""
    nobody = Partition((ClientRows(empty()),) * 5, source="the kind of data")
    nobody.save(copied / "partition.json")
    result = fedloom("verify", str(copied), "--json")
    assert (result.code, result.record["good"], result.record["odds"]) == (2, True, None)


def test_other_versions_are_named(copied: Path) -> None:
    path = copied / "versions.json"
    versions = json.loads(path.read_text())
    path.write_text(json.dumps({**versions, "torch": "1.0"}))
    notes: list[str] = []
    result = fl.verify(copied, rounds=[1], note=notes.append)
    assert result.good
    assert result.versions["torch"][0] == "1.0"
    assert "computed with torch 1.0" in notes[0]
    alter_score(copied)
    assert "may honestly give other bytes" in fl.verify(copied).sentence


def test_exit_status_and_json(copied: Path, tmp_path: Path) -> None:
    good = fedloom("verify", str(copied), "--sample", "0.2", "--seed", "3", "--json")
    assert good.code == 0
    assert good.record["good"]
    assert good.record["seed"] == 3
    alter_score(copied)
    bad = fedloom("verify", str(copied), "--rounds", "1-2", "--clients", "0")
    assert bad.code == 1
    assert "NOT AS RECORDED: round 2" in " ".join(bad.out.split())
    for arguments in ([str(tmp_path)], [str(copied), "--sample", "2"], [str(copied), "--rounds=x"]):
        assert fedloom("verify", *arguments).code == 2
    assert fedloom("resume", str(tmp_path)).code == 1  # the next command has its own meaning
