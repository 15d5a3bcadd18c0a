"""The page as a file: whole, small, closed to the outside, and no label becomes code."""

from __future__ import annotations

import base64
import json
import re
import shlex
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from folders import write_run

import fedloom as fl
from fedloom.methods.fedavg import FedAvg
from fedloom.report.groups import group_runs
from fedloom.report.page import report
from fedloom.report.runs import StoredRun, find_runs
from fedloom.report.setup import command, commands
from helpers import fedloom

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


class Page(HTMLParser):
    """A page taken apart: every tag with its attributes, and the text of each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.hints: list[str] = []
        """Of every button, in order."""
        self._open: list[str] = []
        self._tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "button":
            self.hints.append(dict(attrs).get("title") or "")
        if tag == "table":
            self._rows = self._tables.setdefault(str(dict(attrs)["id"]), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)
        if {"td", "th"} & set(self._open):
            self._rows[-1][-1] += data

    def cells(self, table: str, head: str) -> list[str]:
        """A column of a table, from the top."""
        first, *rows = self._tables[table]
        return [row[first.index(head)] for row in rows]

    @property
    def text(self) -> str:
        return " ".join(t for tag, ts in self.texts.items() for t in ts if tag != "script")

    @property
    def charts(self) -> dict[str, Any]:
        charts: dict[str, Any] = json.loads(self.texts["script"][0])
        return charts


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("compared")
    fl.compare(
        ["local", "fedavg", "fedpac"],
        seeds=[0, 1],
        rounds=3,
        clients=4,
        model="mlp(hidden=[8])",
        out=str(folder / "c"),
    )
    return Page(report([folder / "c"], folder / "report.html"))


def test_everything_asked_for_is_there(compared: Page) -> None:
    headings = [t for level in ("h3", "h4") for t in compared.texts[level]]
    for section in ("Summary", "Curves", "Clients", "Combination weights", "Diagnostics"):
        assert section in headings
    for section in ("Partition", "Configuration", "To repeat", "Cost, and the way to a target"):
        assert section in headings
    assert "crossed: two-way random effects over 2 seeds and 4 clients" in compared.text
    assert "Clients are not pooled over seeds" in compared.text
    assert "fedloom diagnose" in compared.text
    circles = [attrs for tag, attrs in compared.tags if tag == "circle"]
    assert circles  # the bubble plot
    kinds = {name: spec["kind"] for name, spec in compared.charts.items()}
    assert [k for k in kinds if k.startswith("g0-curve")] == [
        "g0-curve-rounds",
        "g0-curve-seconds",
        "g0-curve-megabytes",
    ]
    assert kinds["g0-gain-local"] == kinds["g0-gain-fedavg"] == "strip"
    frames = compared.charts["g0-weights-2"]["frames"]
    assert [f["name"] for f in frames] == ["round 1", "round 2", "round 3"]
    assert np.asarray(frames[0]["values"]).sum(axis=1) == pytest.approx(1.0, abs=0.01)


def test_the_page_is_well_formed_for_all_readers(compared: Page) -> None:
    """Language, one first heading, headings without gaps, captions, labelled scrolling boxes."""
    assert ("html", {"lang": "en"}) in compared.tags
    levels = [int(tag[1]) for tag, _ in compared.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    names = [tag for tag, _ in compared.tags]
    assert names.count("table") == names.count("caption") > 8
    assert all(attrs.get("scope") for tag, attrs in compared.tags if tag == "th")
    boxes = [attrs for _, attrs in compared.tags if attrs.get("role") == "region"]
    assert boxes
    assert all(b["aria-label"] and b["tabindex"] == "0" for b in boxes)
    ids = [attrs["id"] for _, attrs in compared.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    figures, charts = names.count("figure"), compared.charts
    assert figures == len(charts) + 1  # the bubble plot is no chart of the script
    assert names.count("details") >= figures


def test_nothing_is_loaded_from_elsewhere(compared: Page) -> None:
    loading = {"src", "srcset", "data", "action", "poster", "background", "xlink:href"}
    for tag, attrs in compared.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "image"}
        assert not loading & attrs.keys()
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        assert (attrs.get("href") or "#").startswith("#")
    (style,) = compared.texts["style"]
    assert "url(" not in style
    assert "@import" not in style
    addresses = set(re.findall(r"https?://[^\s\"'<]+", compared.source))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


def test_the_policy_allows_these_scripts_and_no_others(compared: Page) -> None:
    policy = next(
        attrs["content"]
        for tag, attrs in compared.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    for name, text in (
        ("style", compared.texts["style"][0]),
        ("script", compared.texts["script"][1]),
    ):
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"


def test_labels_are_never_code(tmp_path: Path) -> None:
    write_run(tmp_path / EVIL.replace("/", "_"), EVIL, model=EVIL, data=EVIL, partition=0)
    write_run(tmp_path / "b", "local", [(0.1, 0.2)], model=EVIL, data=EVIL)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert EVIL in page.texts["title"][0]
    assert any(EVIL in label for spec in page.charts.values() for label in spec.get("keys", ()))
    assert page.source.count("<script>window") == 0


def test_groups_that_do_not_compare_are_told_apart(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "fedavg", [(0.5, 0.6)], seed=seed)
        write_run(tmp_path / f"b{seed}", "fedper", [(0.5, 0.6), (0.7, 0.9)], seed=seed)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "Not comparable with the first group, because rounds is 2, not 1." in page.text
    assert "Test: " not in page.text  # each group has one method only
    assert len(page.texts["h2"]) == 2


def test_an_unfinished_run_is_shown_as_such_and_not_in_bold(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", [(0.5, 0.6)], rounds=9)
    write_run(tmp_path / "b", "fedper", [(0.9, 0.9)], rounds=9, ended=False)
    write_run(tmp_path / "c", "local", [(0.7, 0.7)], rounds=9)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "unfinished: seed 0 at 1 of 9" in page.texts["span"]
    best = [text for text in page.texts["strong"] if re.fullmatch(r"[\d.]+", text)]
    assert "70.00" in best
    assert "90.00" not in best


def test_a_run_that_was_stopped_early_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", [(0.5, 0.6)], rounds=9, stopped="the loss did not fall")
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "stopped early: seed 0 at 1 of 9" in page.texts["span"]
    assert page.cells("g0-runs", "state") == ["stopped: the loss did not fall"]


def test_what_protects_uploads_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", secure_aggregation="pairwise")
    write_run(tmp_path / "b", "fedprox")
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "secure aggregation none, pairwise." in page.text
    alone = Page(report([tmp_path / "b"], tmp_path / "alone.html"))
    assert "secure aggregation" not in alone.text


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", ended=False)
    (path / "metrics.jsonl").write_text('{"torn')
    page = Page(report([path], tmp_path / "report.html"))
    assert "No run has ended yet" in page.text
    assert page.charts["g0-curve-rounds"]["views"] == []


def test_undefined_numbers_are_dashes(tmp_path: Path) -> None:
    """A client with one test row says nothing about noise: NaN in the table, null in the data."""
    write_run(tmp_path / "a", "fedavg", [(1.0,)], rows=1)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert not re.search(r"\bnan\b|NaN|Infinity", page.text + page.texts["script"][0])
    assert page.texts["td"].count("\N{EN DASH}") > 3


def test_ten_large_runs_stay_below_five_megabytes(tmp_path: Path) -> None:
    """100 clients, 300 rounds; one of them with FedPAC's weights of all clients."""
    draw = np.random.default_rng(0)
    methods = ["local", "fedavg", "fedper", "fedrep", "ditto", "fedbn", "apfl", "moon", "fedprox"]
    weights = np.full((100, 100), 0.01).tolist()
    notes = [{"clients": list(range(100)), "weights": weights}] * 40
    for i, method in enumerate([*methods, "fedpac"]):
        curve = draw.uniform(0.3, 0.9, (300, 100)).round(4).tolist()
        write_run(tmp_path / str(i), method, curve, notes=notes if method == "fedpac" else ())
    path = report([tmp_path], tmp_path / "report.html")
    assert len(Page(path).charts["g0-curve-rounds"]["keys"]) == 10
    assert path.stat().st_size < 5_000_000


def test_the_model_of_a_column_is_named(tmp_path: Path) -> None:
    for method in ("fedavg", "fedavg_ft"):
        fl.run(method, rounds=10, clients=3, model="mlp(hidden=[8])", out=str(tmp_path / method))
    page = Page(report([tmp_path], tmp_path / "report.html"))
    hints = dict(zip(page.texts["button"], page.hints, strict=False))
    assert "model as received, or adapted at the end" in hints["Worst client %"]
    for head in ("Five best rounds %", "… of worst client %", "Last ten rounds %"):
        assert hints[head].endswith("model as received")
        assert (
            page.cells("g0-fairness", head)[1]
            == "\N{EN DASH}"
            != page.cells("g0-fairness", head)[0]
        )
    (to_target,) = [h for h in hints if h.startswith("Rounds to")]
    assert hints[to_target].endswith("model as received")
    assert page.cells("g0-cost", to_target)[1] == "\N{EN DASH}"
    label = page.cells("g0-cost", "Method")[1]
    assert f"Of {label}, accuracy, worst clients and fairness are of the model adapted" in page.text


def test_a_weighted_accuracy_is_not_what_is_tested(tmp_path: Path) -> None:
    for average in ("samples", "uniform"):
        for seed in range(2):
            for method, values in (("fedavg", (0.5, 0.6)), ("fedper", (0.6, 0.8 + seed / 10))):
                path = tmp_path / average / f"{method}{seed}"
                write_run(path, method, [values], seed=seed, protocol=f"dbe(average={average})")
    pages = {
        average: Page(report([tmp_path / average], tmp_path / f"{average}.html"))
        for average in ("samples", "uniform")
    }
    times = {p: page.source.count("unweighted over clients") for p, page in pages.items()}
    assert times == {"samples": 3, "uniform": 0}  # two columns and the sentence about the test
    assert "; unweighted over clients, unlike the accuracies." in pages["samples"].text


def test_clients_beside_a_reference_are_of_the_seeds_both_have(tmp_path: Path) -> None:
    """fedper has seed 0 only: FedAvg's .5 there is its gain's reference, not .5 and .9's mean."""
    write_run(tmp_path / "a0", "fedavg", [(0.5,)], seed=0)
    write_run(tmp_path / "a1", "fedavg", [(0.9,)], seed=1)
    write_run(tmp_path / "b0", "fedper", [(0.6,)], seed=0)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert page.cells("g0-client-1", "fedavg %") == ["50.0"]
    assert page.cells("g0-client-1", "Gain over fedavg")[0].startswith("+10.0")
    assert "sign test" not in page.source
    assert "about 2.5 % of clients on each side" in page.text


def test_sites_are_called_by_their_names(tmp_path: Path) -> None:
    names = ("Basel", "Ghent", "Turin")
    for method, values in (("fedavg", (0.5, 0.6)), ("fedper", (0.7, 0.4))):
        write_run(tmp_path / method, method, [values], joined=(0.3,), names=names)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert page.cells("g0-client-1", "Client") == ["Basel", "Ghent"]
    assert page.cells("g0-newcomers-clients", "Newcomer") == ["Turin"]
    assert page.cells("g0-gain-fedavg-table", "worst client") == ["Ghent"]
    assert page.charts["g0-gain-fedavg"]["strips"][0]["names"] == ["Basel", "Ghent"]
    assert page.cells("g0-partition-table", "client") == list(names)


def test_without_a_reference_no_client_gains(tmp_path: Path) -> None:
    """3000 clients, of which a page holds 2500."""
    write_run(tmp_path / "a", "fedper", [[0.5] * 3000])
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "fedper: clients, the 2500 of 3000 that reach least" in page.texts["span"]


def test_a_list_of_contents_leads_to_every_section(compared: Page, tmp_path: Path) -> None:
    ids = {attrs["id"] for _, attrs in compared.tags if "id" in attrs}
    links = [str(attrs["href"]) for tag, attrs in compared.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= ids
    sections = [tag for tag, _ in compared.tags].count("section")
    assert len(links) == sections  # the skip link more, the group's own heading less
    assert "Newcomers" not in compared.texts["a"]
    write_run(tmp_path / "a", "fedavg", [(0.5,)], joined=(0.7,))
    write_run(tmp_path / "b", "fedavg", [(0.5,), (0.6,)])
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert page.texts["a"].count("Summary") == 2
    assert page.texts["a"].count("Newcomers") == 1


def test_newcomers_have_a_table_of_methods_and_one_of_clients(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "fedavg", joined=(0.5, 0.7), seed=seed)
        write_run(tmp_path / f"b{seed}", "local", joined=(0.4, 0.2), seed=seed)
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert page.cells("g0-accuracy", "Newcomers %") == ["60.00 ± 0.00", "30.00 ± 0.00"]
    assert page.cells("g0-newcomers-methods", "Worst newcomer %")[1] == "20.00 ± 0.00"
    assert page.cells("g0-newcomers-clients", "Newcomer") == ["2", "3"]
    assert page.cells("g0-newcomers-clients", "fedavg %") == ["50.0", "70.0"]
    assert page.cells("g0-newcomers-clients", "local %") == ["40.0", "20.0"]


def test_newcomers_of_a_real_run_are_shown(tmp_path: Path) -> None:
    settings = {"rounds": 1, "clients": 4, "newcomers": 2, "model": "mlp(hidden=[8])"}
    result = fl.run("fedavg", **settings, out=str(tmp_path / "a"))  # type: ignore[arg-type]
    page = Page(report([tmp_path / "a"], tmp_path / "report.html"))
    joined = result.summary.newcomers
    assert joined is not None
    assert page.cells("g0-accuracy", "Newcomers %") == [f"{100 * joined.value:.2f}"]
    assert page.cells("g0-newcomers-clients", "fedavg %") == [
        f"{100 * v:.1f}" for v in joined.values
    ]
    assert page.cells("g0-newcomers-methods", "As received %") != ["\N{EN DASH}"]


def test_single_heads_are_shown_for_every_client(tmp_path: Path) -> None:
    """Alone the head reaches 30 and 60 where the model reaches 50 and 50: ahead at one of two."""
    write_run(tmp_path / "a", "fedrod", heads={"generic_head": (0.3, 0.6)})
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert page.cells("g0-client-0", "generic head %") == ["30.0", "60.0"]
    assert page.cells("g0-heads", "Accuracy %") == ["45.00"]
    assert page.cells("g0-heads", "Ahead %") == ["50"]


def test_one_evaluation_has_neither_best_rounds_nor_a_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", [(0.5, 0.6)])
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert "Five best rounds %" not in page.texts["button"]
    assert "Last ten rounds %" not in page.texts["button"]
    assert "Worst by chance %" in page.texts["button"]
    assert "±" not in "".join(page.cells("g0-accuracy", "Accuracy %"))


def test_the_page_holds_the_comparison_for_other_programs(compared: Page) -> None:
    csv, latex, _ = compared.texts["code"]
    assert csv.startswith("method,seeds,accuracy_seed_0,accuracy_seed_1,accuracy,")
    assert r"\begin{tabular}" in latex


# ------------------------------------------------------------------ the command


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    settings = {
        "clients": 3,
        "rounds": 2,
        "seed": 3,
        "model": "mlp(hidden=[8])",
        "drop_last": False,
    }
    first = fl.run("fedprox(mu=0.5)", **settings, normalize="none", out=str(tmp_path / "a"))  # type: ignore[arg-type]
    words = shlex.split(command(StoredRun.read(tmp_path / "a")).replace("\\\n", " "))
    assert words[:2] == ["fedloom", "run"]
    done = fedloom(*words[1:], "--out", tmp_path / "b", "--json")
    assert done.code == 0, done.err
    assert done.record["state_sha256"] == first.summary.state_sha256


def test_a_run_of_python_objects_has_no_command(tmp_path: Path) -> None:
    data = (np.zeros((20, 4), dtype=np.float32), np.arange(20) % 2)
    fl.run("fedavg", data, rounds=1, clients=2, partition="iid", out=str(tmp_path / "a"))
    assert "its data was a Python object" in command(StoredRun.read(tmp_path / "a"))
    page = Page(report([tmp_path / "a"], tmp_path / "report.html"))
    assert "Classes cannot be shown: the data was a Python object." in page.text


def test_a_method_without_a_name_has_no_command(tmp_path: Path) -> None:
    class Mine(FedAvg):
        name = "mine"

    path = tmp_path / "a"
    fl.run(Mine(), rounds=1, clients=2, model="mlp(hidden=[8])", out=str(path))
    line = command(StoredRun.read(path))
    assert line == f"# {path}: its method has no name here; repeat it from Python"


def test_a_comparison_is_repeated_by_one_command(tmp_path: Path) -> None:
    """Methods with seeds 0, 1, ... and equal settings share a command; others have their own."""
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fedavg", seed=seed)
        write_run(tmp_path / f"b{seed}", "fedprox(mu=0.5)", seed=seed)
    write_run(tmp_path / "c0", "local", lr=0.5)
    write_run(tmp_path / "d7", "ditto", seed=7)
    (group,) = group_runs(find_runs([tmp_path]))
    assert commands(group) == [
        "fedloom compare fedavg 'fedavg + proximal(mu=0.5)' --seeds=3 --clients=2 --model=mlp"
        " --rounds=1",
        "fedloom run --method=local --clients=2 --model=mlp --rounds=1 --lr=0.5",
        "fedloom run --method=ditto --clients=2 --model=mlp --rounds=1 --seed=7",
    ]


def test_the_command_of_a_comparison_repeats_it(tmp_path: Path) -> None:
    methods = ["local", "fedavg + dbe"]
    settings = {"clients": 3, "rounds": 1, "model": "mlp(hidden=[8])"}
    first = fl.compare(methods, seeds=[0, 1], **settings, out=str(tmp_path / "a"))  # type: ignore[arg-type]
    (group,) = group_runs(find_runs([tmp_path / "a"]))
    (line,) = commands(group)
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:5] == ["fedloom", "compare", *methods, "--seeds=2"]
    done = fedloom(*words[1:], "--out", tmp_path / "b", "--json", "--quiet")
    assert done.code == 0, done.err
    digests = [[s["state_sha256"] for s in row["seeds"]] for row in done.record["methods"]]
    assert digests == [[s.state_sha256 for s in row.summaries] for row in first.rows]


def test_report_on_the_command_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a", curve=[(0.2, 0.4), (0.8, 0.9)])
    out = tmp_path / "new" / "report.html"
    done = fedloom("report", tmp_path / "a", "-o", out, "--target", "0.8", "--json")
    assert done.code == 0, done.err
    assert done.record == {"saved": str(out), "bytes": out.stat().st_size}
    assert "Rounds to 80.0 %" in Page(out).texts["button"]


def test_csv_and_latex_on_the_command_line(tmp_path: Path) -> None:
    """Two groups: the CSV names them, the LaTeX has a table for each."""
    write_run(tmp_path / "a", "fedavg", [(0.2, 0.4)])
    write_run(tmp_path / "b", "local", [(0.2, 0.4), (0.8, 0.9)], joined=(0.3,))
    files = {"csv": tmp_path / "new" / "table.csv", "latex": tmp_path / "table.tex"}
    flags = [word for name, file in files.items() for word in (f"--{name}", file)]
    done = fedloom("report", tmp_path, "-o", tmp_path / "r.html", *flags, "--json")
    assert done.code == 0, done.err
    assert {name: done.record[name] for name in files} == {n: str(f) for n, f in files.items()}
    table = pandas.read_csv(files["csv"]).set_index("method")
    assert table["accuracy_seed_0"].tolist() == pytest.approx([0.3, 0.85])
    assert table["group"].tolist() == [
        "1: digits, dirichlet(alpha=0.1), 2 clients",
        "2: digits, dirichlet(alpha=0.1), 2 clients",
    ]
    assert table["newcomers"]["local"] == 0.3
    assert files["latex"].read_text().count(r"\toprule") == 2


def test_an_unfinished_run_has_no_table_to_write(tmp_path: Path) -> None:
    write_run(tmp_path / "a", ended=False)
    done = fedloom("report", tmp_path / "a", "-o", tmp_path / "r.html", "--csv", tmp_path / "t.csv")
    assert done.code == 1
    assert "no run has ended yet" in done.err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["{tmp}/nothing"], "there is no run in"),
        (["{tmp}/a", "-o", "{tmp}"], "is a folder; give -o the name of a file"),
        (["{tmp}/a", "-o", "{tmp}/r.html", "--csv", "{tmp}"], "give --csv the name of a file"),
        (["{tmp}/a", "-o", "{tmp}/a/config.json/x.html"], "cannot write"),
        (["{tmp}/a", "--target", "80"], "a target is an accuracy between 0 and 1, not 80"),
    ],
)
def test_errors_are_one_sentence(args: list[str], sentence: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    done = fedloom("report", *(arg.format(tmp=tmp_path) for arg in args))
    assert done.code == 1
    assert sentence in " ".join(done.err.split())
    assert len(done.err.strip().splitlines()) == 1
