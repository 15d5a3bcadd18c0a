"""What a user may get wrong: one sentence, exit code 1 (2 for usage), and nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedloom import FederatedData, run
from fedloom.errors import BadInput, FedloomError, PartitionError
from fedloom.record import At, RoundRecord
from fedloom.runs.journal import read_records
from helpers import fedloom

SMALL = ["rounds=1", "clients=4", "partition=iid"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that a refused command must leave as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path.parent / "cache"))
    (tmp_path / "own.csv").write_text("a,b,label\n" + "1,2,x\n3,4,y\n" * 20)
    (tmp_path / "words.csv").write_text("a,b,label\n" + "1,hello,x\n3,4,y\n" * 20)
    (tmp_path / "unlabelled.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "torn.toml").write_text("rounds = [")
    (tmp_path / "tables.toml").write_text("[run]\nrounds = 3\n")
    (tmp_path / "torn.json").write_text('{"format": 1')
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "thesis.txt").write_text("years of work")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


def refused(folder: Path, *args: str, code: int = 1) -> str:
    """The one sentence of a command that must fail and leave everything as it was."""
    before = contents(folder)
    done = fedloom(*args)
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert contents(folder) == before
    if code == 1:
        assert done.err.startswith("fedloom: ")
        assert len(done.err.splitlines()) == 1
    return done.err


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        # names
        ("method=fedavgg", "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ("method=qqq", "unknown method 'qqq'; there are: "),
        ("data=digit", "unknown data set 'digit'; did you mean 'digits'?"),
        ("data=nowhere/own.npz", "there is no file or folder nowhere/own.npz"),
        ("model=cnn5", "unknown model 'cnn5'; did you mean 'cnn4'?"),
        ("protocol=dbee", "unknown protocol 'dbee'; did you mean 'dbe'?"),
        ("engine=pol", "unknown engine 'pol'; did you mean 'pool'?"),
        ("device=gpu", "device 'gpu' cannot be used here"),
        ("partition=dirchlet", "unknown partition 'dirchlet'; did you mean 'dirichlet'?"),
        ("split=mergd", "unknown split 'mergd'; did you mean 'merged'?"),
        ("shift=rotat", "unknown shift 'rotat'; did you mean 'rotate'?"),
        ("augment=flipp", "unknown augmentation 'flipp'; did you mean 'flip'?"),
        ("rouns=3", "unknown key 'rouns'; did you mean 'rounds'?"),
        # expressions
        ("method=fedavg +", "cannot read the expression 'fedavg +'"),
        ("method=fedavg - proximal", "cannot read 'fedavg - proximal'"),
        ("method=fedavg proximal", "cannot read the expression"),
        ("method=fedavg(mu=)", "cannot read the expression"),
        ("protocol=dbe(", "write it like 'name(argument=value)'"),
        ("method=proximal", "begins with the term 'proximal'; begin with a method"),
        ("method=fedavg + fedper", "'fedper' is not a term; a sum is one method plus terms"),
        ("method=fedavg + proximal + proximal", "'proximal' appears twice in the sum"),
        ("method=fedavg + proximal(nu=1)", "has no argument 'nu'; there are: mu"),
        ("method=open('x')", "unknown method 'open'"),
        ("method=().__class__", "cannot read"),
        ("partition=dirichlet(alpa=1)", "has no argument 'alpa'; did you mean 'alpha'?"),
        ("model=mlp + mlp", "must be one name with arguments"),
        # wrong types
        ("method=fedavg + proximal(mu=much)", "mu = 'much' is not of type float"),
        ("method=fedavg + proximal(mu=true)", "mu = True is not of type float"),
        ("method=fedavg_ft(adapt_epochs=1.5)", "adapt_epochs = 1.5 is not of type int"),
        ("method=ditto(lam=[1, 2])", "lam = (1, 2) is not of type float"),
        ("method=fedavg(weighting=sample)", "weighting = 'sample' is unknown"),
        ("method=fedavg(opt=3)", "does not take 'opt' in an expression"),
        ("partition=dirichlet(alpha=a)", "alpha = 'a' is not of type float"),
        ("model=mlp(hidden=3)", "hidden = 3 is not a list of int"),
        ("epochs=two", "epochs = 'two' will not do"),
        ("lr=0", "lr = 0 will not do"),
        ("device=", "device = '' will not do"),
        ("rounds", "'rounds' is not an override; write key=value"),
        # what cannot be made
        ("partition=dirichlet(alpha=0)", "alpha must be a number above zero, not 0"),
        ("partition=pathological(classes_per_client=11)", "the data has 10 classes"),
        ("partition=dirichlet(alpha=0.1, min_size=500)", "there are 1797"),
        ("partition=by_user", "needs data with natural users"),
        ("clients=1798", "leaves client 1797 without a single row"),
        ("newcomers=4", "newcomers = 4 leaves no client of 4 to train"),
        ("split=merged(train=1.5)", "train is a share between 0 and 1, not 1.5"),
        ("protocol=fedbr(on=shared)", "tests on shared test sets, but the split made none"),
        ("model=cnn4", "cnn4 needs images of at least 16x16 pixels, these are 8x8"),
        # files
        ("data=words.csv", "column 'b' of "),
        ("data=unlabelled.csv", "has no label column 'label' or 'target' or 'y'"),
        ("data=torn.npz", "cannot read "),
        ("data=strange", "no images in "),
        ("data=torn.toml", "cannot tell what "),
        ("partition=torn.json", "torn.json"),
        ("partition=nowhere.json", "cannot read the partition file nowhere.json"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, said: str, here: Path) -> None:
    given = [s for s in SMALL if s.partition("=")[0] != setting.partition("=")[0]]
    assert said in refused(here, "run", *given, setting, "--out", "new", "-q")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config", "nowhere.toml"], "cannot read the configuration nowhere.toml"),
        (["--config", "strange"], "cannot read the configuration strange"),
        (["--config", "torn.toml"], "torn.toml is not valid TOML"),
        (["--config", "tables.toml"], "keys are flat: write those of [run] without that line"),
        (["--out", "strange"], "strange is not empty and not a run folder"),
        (["--out", "strange", "--overwrite"], "strange is not empty and not a run folder"),
        (["--out", "own.csv"], "cannot make the run folder own.csv"),
        (["--method", "fedper", "--protocol", "fedbr(model=global)"], "fedper has no global model"),
    ],
)
def test_flags_that_cannot_be_used(flags: list[str], said: str, here: Path) -> None:
    out = [] if "--out" in flags else ["--out", "new"]
    assert said in refused(here, "run", *SMALL, *flags, *out, "-q")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["run", "--rounds", "many"], "'--rounds'"),
        (["run", "--rouns", "3"], "--rouns"),
        (["train"], "No such command 'train'"),
        (["show"], "Missing argument"),
        (["compare"], "Missing argument"),
        (["compare", "fedavg", "--seeds", "0"], "'--seeds'"),
    ],
)
def test_usage_is_exit_code_two(command: list[str], said: str, here: Path) -> None:
    assert said in refused(here, *command, code=2)


@pytest.mark.parametrize("command", [["comparee", "fedavg"], ["deploy", "restor"]])
def test_a_misspelt_command_is_answered_with_one_suggestion(command: list[str], here: Path) -> None:
    """Typer and Click both have one to make."""
    assert refused(here, *command, code=2).count("Did you mean") == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["resume", "nowhere"], "there is no run in nowhere: it has no config.json"),
        (["resume", "strange"], "there is no run in strange: it has no config.json"),
        (
            ["resume", "run", "--batch-size", "5"],
            "a run that is resumed keeps its batch_size; only",
        ),
        (["resume", "run", "lr=0.1"], "a run that is resumed keeps its lr; only --rounds can be"),
        (["resume", "run", "--nonsense"], "resume takes no '--nonsense'"),
        (["show", "fedavgg"], "unknown name 'fedavgg'; did you mean 'fedavg'?"),
        (["list", "method"], "did you mean 'methods'?"),
        (["compare", "rounds=2"], "at least one method"),
        (["compare", "local", "fedavgg", *SMALL], "unknown method 'fedavgg'"),
        (["partition", "rounds=2"], "a partition has no key 'rounds'"),
        (["partition", "seed=2"], "a partition has no key 'seed'; its seed is --seed"),
        (["partition", "clients=4", "--out", "own.csv"], "cannot make the folder own.csv"),
    ],
)
def test_other_commands(command: list[str], said: str, here: Path) -> None:
    """The comparison's last method is misspelt: that is found before the first one is run."""
    assert said in refused(here, *command)


def test_errors_are_json_too_when_asked_for(here: Path) -> None:
    done = fedloom("run", "method=fedavgg", "--json")
    assert done.code == 1
    assert json.loads(done.out) == {"error": "unknown method 'fedavgg'; did you mean 'fedavg'?"}
    assert done.err == "fedloom: unknown method 'fedavgg'; did you mean 'fedavg'?\n"


def test_a_run_is_not_written_over_unless_told(here: Path) -> None:
    assert fedloom("run", *SMALL, "--out", "run", "-q").code == 0
    said = refused(here, "run", *SMALL, "--out", "run", "-q")
    assert "run already holds a run: resume it, pick another --out, or give --overwrite" in said
    said = refused(here, "partition", *SMALL[1:], "--out", "run")
    assert "run holds a run, whose partition stays" in said
    (here / "run" / "notes.txt").write_text("mine")
    assert fedloom("run", *SMALL, "seed=1", "--out", "run", "-q", "--overwrite").code == 0
    assert json.loads((here / "run" / "summary.json").read_text())["seed"] == 1
    assert (here / "run" / "notes.txt").read_text() == "mine"


def test_a_comparison_does_not_mix_with_another(here: Path) -> None:
    assert fedloom("compare", "local", "--seeds", "1", *SMALL, "--out", "c", "-q").code == 0
    other = ["compare", "local", "--seeds", "1", *SMALL[1:], "rounds=2", "--out", "c", "-q"]
    said = refused(here, *other)
    assert "holds a run with rounds = 1, not 2; give --overwrite or another --out" in said
    assert fedloom(*other, "--overwrite").code == 0


def test_a_configuration_that_was_damaged(here: Path) -> None:
    assert fedloom("run", *SMALL, "--out", "run", "-q").code == 0
    config = here / "run" / "config.json"
    config.write_text(config.read_text()[:40])
    assert "is not valid JSON" in refused(here, "resume", "run")


# ------------------------------------------------------------------ odd, but possible


def own(tmp_path: Path, users: list[int], labels: list[int]) -> str:
    """A file of 4-feature rows with users and labels."""
    x = np.random.default_rng(0).normal(size=(len(users), 4)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=labels, user=users)
    return f"data={tmp_path / 'own.npz'}"


def test_a_client_with_one_row_and_clients_lacking_classes_take_part(tmp_path: Path) -> None:
    """Client 0 has one row, which is for training; 1 and 2 have one class each. The mean is over
    the two clients that have test rows."""
    data = own(tmp_path, [0] + [1] * 12 + [2] * 12, [0] + [1] * 12 + [2] * 12)
    done = fedloom(
        "run", data, "partition=by_user", "rounds=2", "--out", tmp_path / "run", "--json"
    )
    assert done.code == 0, done.err
    assert done.record["clients"] == 3
    last = read_records(tmp_path / "run" / "metrics.jsonl", RoundRecord)[-1]
    assert last.cohort == (0, 1, 2)
    score = last.score(At("received", "test"))
    assert score is not None
    assert score.clients == (1, 2)


def test_a_client_without_rows_is_named() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(PartitionError, match="client 1 has no rows; leave it out"):
        FederatedData.from_clients([(x, y), (x[:0], y[:0])])


def test_a_batch_larger_than_a_client_is_the_whole_client() -> None:
    """With 18 rows at most, batches of 18 and of 10,000 are the same single step."""
    settings = {"partition": "iid + scarce(size=24)", "clients": 3, "rounds": 2}
    first, second, small = (
        run("fedavg", "digits", batch_size=n, **settings) for n in (18, 10_000, 4)
    )
    assert first.summary.state_sha256 == second.summary.state_sha256
    assert first.summary.state_sha256 != small.summary.state_sha256


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"rouns": 2}, "unknown key 'rouns'; did you mean 'rounds'?"),
        ({"method": "fedavgg"}, "unknown method 'fedavgg'"),
        ({"data": 3}, "cannot load data from int; give a name, a path or a pair"),
        ({"lr": "fast"}, "lr = 'fast' will not do"),
    ],
)
def test_python_callers_get_the_same_sentences(call: dict[str, object], said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        run(**call)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_labels_that_do_not_fit_the_inputs() -> None:
    with pytest.raises(BadInput):
        run("fedavg", (np.zeros((5, 2), np.float32), [0, 1]), rounds=1)
