"""The command line as a new user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedloom import cli
from fedloom.catalogue import _KINDS
from fedloom.methods import register
from fedloom.runs.config import RunConfig
from helpers import fedloom

SMALL = ["rounds=2", "clients=4", "partition=iid", "model=mlp(hidden=[8])"]
KEYS = {
    *("method", "result", "newcomers", "rounds", "seconds"),
    *("bytes_up", "bytes_down", "state_sha256", "run"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for console in (cli.out, cli.err):
        monkeypatch.setattr(console, "_width", 80)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------ help


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["partition"], ["resume"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    """Help takes a third of a second; torch alone would take more than one."""
    code = (
        "import sys; from fedloom.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'datasets', 'PIL'} & set(sys.modules)\n"
        "print('heavy:', *sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage" in done.stdout
    assert done.stdout.splitlines()[-1] == "heavy:"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, fedloom; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_key_is_a_flag_with_its_default_in_80_columns() -> None:
    done = fedloom("run", "--help")
    assert done.code == 0
    words = " ".join(done.out.replace("│", " ").split())
    for key, field in RunConfig.model_fields.items():
        flag = "import" if key == "imports" else key.replace("_", "-")
        assert f"--{flag} " in words
        if field.default not in (None, ()):
            assert f"(default: {field.default})" in words
    assert max(map(len, done.out.splitlines())) <= 80
    titles = {title for title in cli.PANELS if f"─ {title} ─" in done.out}
    assert titles == set(cli.PANELS)


def test_version() -> None:
    from importlib.metadata import version

    done = fedloom("--version")
    assert (done.code, done.out) == (0, f"fedloom {version('fedloom')}\n")


# ------------------------------------------------------------------ list and show


@pytest.mark.parametrize("kind", sorted(_KINDS))
def test_lists_fit_80_columns_and_name_everything(kind: str) -> None:
    shown, told = fedloom("list", kind), fedloom("list", kind, "--json")
    assert (shown.code, told.code) == (0, 0)
    names = [entry["name"] for entry in told.record[kind]]
    assert names
    assert len(told.out.splitlines()) == 1
    first = [line.split()[0] for line in shown.out.splitlines() if line.split()]
    assert set(names) <= set(first)  # each whole, at the beginning of a line
    assert max(map(len, shown.out.splitlines())) <= 80
    assert all(all(map(str, entry.values())) for entry in told.record[kind])


def test_lists_show_brackets_as_they_are() -> None:
    """Rich would take `[sensors, time]` for a style and leave it out."""
    assert "[sensors, time]" in " ".join(fedloom("list", "models").out.split())


@pytest.mark.parametrize("name", list(register))
def test_every_method_has_a_page(name: str) -> None:
    done = fedloom("show", name)
    assert done.code == 0
    signature, _, page = done.out.partition("\n\n")
    assert signature.startswith(f"{name}(")
    assert "opt=" not in signature
    assert "inspect" not in signature
    assert len(page.split()) > 5
    assert ">>> " in page
    for line in done.out.splitlines():  # boxes and examples stay as they were written
        assert len(line) <= 80 or line.startswith((" ", ">>>", "(", "'"))


def test_names_are_found_however_they_are_written() -> None:
    pages = {fedloom("show", name).out for name in ("fedavg_ft", "FedAvg-FT", "fedavgft")}
    assert len(pages) == 1


# ------------------------------------------------------------------ partition


def test_a_partition_is_shown_saved_and_used_again(here: Path) -> None:
    """Four clients of 1797 digits, dealt in turn: 450, 449, 449 and 449 rows."""
    done = fedloom("partition", "partition=iid", "clients=4", "--out", "parts")
    assert done.code == 0
    rows = [line.replace("│", " ").split() for line in done.out.splitlines() if "│" in line]
    assert [row[-1] for row in rows] == ["450", "449", "449", "449", "1797"]
    assert max(map(len, done.out.splitlines())) <= 80
    saved = json.loads((here / "parts" / "partition.json").read_text())
    assert f"fingerprint {saved['fingerprint'][:16]}" in done.out
    picture = ElementTree.parse(here / "parts" / "partition.svg").getroot()
    bubbles = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(bubbles) == 40  # every client has every class

    told = fedloom("partition", "partition=parts/partition.json", "--json")
    assert told.record == {"clients": 4, "fingerprint": saved["fingerprint"]}
    run = fedloom("run", "partition=parts/partition.json", "rounds=1", "--out", "run", "--json")
    assert run.record["partition_sha256"] == saved["fingerprint"]


def test_the_seed_of_a_partition_is_its_own() -> None:
    args = ["partition", "partition=dirichlet(alpha=0.5)", "clients=4", "--json"]
    prints = [fedloom(*args, "--seed", seed).record["fingerprint"] for seed in ("0", "0", "1")]
    assert prints[0] == prints[1] != prints[2]


def test_many_classes_give_a_short_table(here: Path) -> None:
    """120 columns do not fit: client 0's samples, number of classes and most frequent ones."""
    y = np.repeat(np.arange(120), 2)
    np.savez(here / "own.npz", x=np.zeros((240, 2), np.float32), y=y, user=y % 2)
    done = fedloom("partition", "data=own.npz", "partition=by_user")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    rows = [line.replace("│", " ").split() for line in done.out.splitlines() if "│" in line]
    assert rows[0] == ["0", "120", "60", "0", "2,", "2", "2,", "4", "2"]


@pytest.mark.parametrize("classes", [2, 40])
def test_names_of_classes_and_clients_are_no_markup(here: Path, classes: int) -> None:
    """`[/x]` would end a style that nobody began, `[red]` vanish; in both forms of the table."""
    names = ["[/x]", "[red]y", *(f"c{i}" for i in range(classes - 2))]
    lines = [f"{i},{name},{('[/u]', '[b]v')[i % 2]}" for i in range(4) for name in names]
    (here / "own.csv").write_text("\n".join(["x,label,who", *lines]) + "\n")
    done = fedloom("partition", "data=own.csv", "client=who", "partition=by_user", "--out", "parts")
    assert done.code == 0, done.err
    for name in ("[/x]", "[red]y", "[/u]", "[b]v"):
        assert name in done.out
    assert "[/x]" in (here / "parts" / "partition.svg").read_text()


# ------------------------------------------------------------------ run


def test_json_is_the_only_line_of_stdout_and_says_it_all() -> None:
    done = fedloom("run", *SMALL, "--out", "first", "--json")
    assert done.code == 0
    assert len(done.out.splitlines()) == 1
    assert done.record.keys() >= KEYS
    assert done.record["run"] == "first"
    assert done.record == json.loads(Path("first/summary.json").read_text())
    # 64 * 8 + 8 + 8 * 10 + 10 = 610 float32 each way, four clients, two rounds
    assert done.record["bytes_up"] == done.record["bytes_down"] == 4 * 610 * 4 * 2
    assert "2/2" in done.err  # the progress went to stderr


def test_quiet_says_nothing_and_otherwise_there_is_a_table() -> None:
    quiet = fedloom("run", *SMALL, "--out", "a", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    loud = fedloom("run", *SMALL, "--out", "b")
    for word in ("accuracy", "worst 10 % of clients", "rounds, clients", "2, 4", "seconds", "b"):
        assert word in loud.out
    assert max(map(len, loud.out.splitlines())) <= 80


def test_the_seed_decides_and_nothing_else_does() -> None:
    shas = [
        fedloom("run", *SMALL, f"seed={seed}", "--out", out, "--json").record["state_sha256"]
        for seed, out in ((0, "a"), (0, "b"), (1, "c"))
    ]
    assert shas[0] == shas[1] != shas[2]


def test_file_then_overrides_then_flags(here: Path) -> None:
    (here / "run.toml").write_text('method = "fedper"\nrounds = 1\nclients = 9\npartition = "iid"')
    done = fedloom(
        "run", "--config", "run.toml", "clients=5", "rounds=2", "--rounds", "3", "--json"
    )
    told = (done.record["method"], done.record["clients"], done.record["rounds"])
    assert told == ("fedper", 5, 3)
    assert Path(done.record["run"]).parent == Path("runs")  # the folder it chose by itself


def test_participation_and_evaluation_in_between() -> None:
    """A tenth of 20 clients is 2 a round; of rounds 1 to 5, every second and the last is scored."""
    flags = ["--participation", "0.1", "--eval-every", "2", "--device", "cpu", "--rounds", "5"]
    settings = ["partition=iid", "clients=20", "model=mlp(hidden=[4])"]
    assert fedloom("run", *settings, *flags, "--out", "run", "-q").code == 0
    rounds = lines(Path("run/metrics.jsonl"))
    assert [len(r["cohort"]) for r in rounds] == [2] * 5
    assert len({tuple(r["cohort"]) for r in rounds}) > 1
    assert [r["round"] for r in rounds if r["headline"]] == [2, 4, 5]


# ------------------------------------------------------------------ compare


def test_a_comparison_goes_on_where_it_was_and_ends_in_a_table(here: Path) -> None:
    """The second time, `local` is read from its folder and only `fedper` is run. The labels are
    long, so that the table has to fold them."""
    long = "fedavg(shared='* !head.*', weighting=uniform) + proximal(mu=0.1)"
    first = fedloom("compare", "local", "--seeds", "2", *SMALL, "--out", "c", "-q")
    assert (first.code, first.out) == (0, "")
    written = {p: p.read_bytes() for p in (here / "c").glob("local-*/metrics.jsonl")}
    assert len(written) == 2
    second = fedloom("compare", "local", long, "--seeds", "2", *SMALL, "--out", "c")
    assert second.code == 0, second.err
    assert {p: p.read_bytes() for p in written} == written
    assert max(map(len, second.out.splitlines())) <= 80
    folded = "".join(line.split("│")[1].strip() for line in second.out.splitlines() if "│" in line)
    assert long.replace(" ", "") in folded.replace(" ", "")
    assert "Accuracy over 2 seeds" in second.out
    assert "4/4" in second.err


def test_a_comparison_as_json_is_the_mean_over_its_runs() -> None:
    done = fedloom("compare", "local", "fedavg", "--seeds", "2", *SMALL, "--out", "c", "--json")
    assert len(done.out.splitlines()) == 1
    assert done.record["run"] == "c"
    assert [row["method"] for row in done.record["methods"]] == ["local", "fedavg"]
    for row in done.record["methods"]:
        runs = [
            json.loads((Path(seed["run"]) / "summary.json").read_text()) for seed in row["seeds"]
        ]
        assert [run["seed"] for run in runs] == [0, 1]
        values = [run["result"]["value"] for run in runs]
        assert row["accuracy"] == pytest.approx(sum(values) / 2)
        assert [seed["accuracy"] for seed in row["seeds"]] == values
    assert done.record["methods"][0]["megabytes_up_per_client"] == 0
    # 610 float32 in each of two rounds
    assert done.record["methods"][1]["megabytes_up_per_client"] == pytest.approx(2 * 610 * 4 / 1e6)
    saved = json.loads(Path("c/comparison.json").read_text())
    assert saved["methods"] == done.record["methods"]


# ------------------------------------------------------------------ own data


def test_own_arrays_tables_and_images(here: Path) -> None:
    """Two classes that the first feature (the brightness) tells apart: every format is learned."""
    from PIL import Image

    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.normal(size=(80, 3)).astype(np.float32) * 0.1
    x[:, 0] += 4 * y
    np.savez(here / "own.npz", x=x, y=y, user=np.arange(80) // 20)
    table = [
        "a,b,c,label,client",
        *(f"{a},{b},{c},{'nm'[i % 2]},{i // 20}" for i, (a, b, c) in enumerate(x)),
    ]
    (here / "own.csv").write_text("\n".join(table))
    for i in range(80):
        folder = here / "pictures" / ("bright" if y[i] else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (8, 8), dtype=np.uint8) + np.uint8(150 * y[i])
        Image.fromarray(pixels).save(folder / f"{i}.png")
    for settings in (
        ["data=own.npz", "partition=by_user"],
        ["data=own.csv", "partition=by_user"],
        ["data=pictures", "partition=iid", "clients=4"],
    ):
        done = fedloom("run", *settings, "rounds=5", "lr=0.1", "--json")
        assert done.code == 0, done.err
        assert done.record["clients"] == 4
        assert done.record["result"]["value"] == 1.0
