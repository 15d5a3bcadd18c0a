"""`fedloom deploy check`: a good site, a bad file, a check that breaks down, and the report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from site_to_spoil import ORDER, SETTINGS, SiteToSpoil, undecided, wrong

from fedloom.deploy.check import check, report
from fedloom.deploy.settings import Settings


def test_a_good_site_has_nothing_wrong_and_nothing_is_left_behind(site: SiteToSpoil) -> None:
    """4 cats and 3 dogs are 7 rows; owl is nobody's here, which a federation allows.

    Of 7 rows, three quarters are int(5.25) = 5 for training, 2 for test.
    """
    site.good_server()
    before = sorted(p.name for p in site.root.iterdir())
    results = site.check(Settings.read(SETTINGS))
    assert all(result.ok for result in results.values()), results
    assert "7 rows, table (5,); by class: cat 4, dog 3, owl 0" in results["data"].message
    assert "5 rows for training, 2 for test" in results["data"].message
    assert "ends in 99 days" in results["authority"].message
    assert "ends in 49 days" in results["server TLS"].message
    assert "no experiment yet" in results["state folder"].message
    assert f"torch {torch.__version__}" in results["versions"].message
    after = set(os.listdir(site.root)) - {"site.toml", "cache"}
    assert after == set(before) - {"site.toml", "cache"}


def test_a_misspelt_and_a_missing_key_are_both_told_and_the_rest_is_checked(
    site: SiteToSpoil,
) -> None:
    site.good_server()
    site.values["prot"] = site.values.pop("port")
    del site.values["data"]
    results = site.check()
    assert wrong(results) == ["file"]
    assert "unknown key 'prot'; did you mean 'port'?" in results["file"].message
    assert "data is missing" in results["file"].message
    assert undecided(results) == [
        "data",
        "schema",
        "policy",
    ]  # the port has a default, the data has none
    assert results["server TLS"].ok


@pytest.mark.parametrize(
    ("key", "value", "left_out"),
    [("port", 70000, ["own port"]), ("key", 5, ["key", "clock"])],  # a key decides the tolerance
)
def test_a_value_that_will_not_do_leaves_only_its_own_checks_out(
    site: SiteToSpoil, key: str, value: int, left_out: list[str]
) -> None:
    site.good_server()
    site.values[key] = value
    results = site.check()
    assert wrong(results) == ["file"]
    assert f"{key} = {value} will not do" in results["file"].message
    assert undecided(results) == left_out
    assert results["authority"].ok  # whose path is relative to the file


@pytest.mark.parametrize(("text", "says"), [(None, "cannot read"), ("name = ", "not valid TOML")])
def test_an_unreadable_file_leaves_what_needs_none(
    tmp_path: Path, text: str | None, says: str
) -> None:
    file = tmp_path / "site.toml"
    if text is not None:
        file.write_text(text)
    results = {result.subject: result for result in check(file)}
    assert list(results) == ORDER
    assert wrong(results) == ["file"]
    assert says in results["file"].message
    assert results["versions"].ok
    assert undecided(results) == ORDER[1:-1]


def test_a_check_that_breaks_down_hides_no_other(site: SiteToSpoil) -> None:
    """No path holds a zero byte; Python says so by an error that nothing here expects."""
    site.good_server()
    text = site.write().read_text().replace("key = 'key'", 'key = "k\\u0000"')
    site.file.write_text(text)
    results = {result.subject: result for result in check(site.file)}
    assert list(results) == ORDER
    assert wrong(results) == ["key"]
    assert "broke down (ValueError: embedded null byte)" in results["key"].message


CONFIG = "[tool.flwr.app.config]\n"


def project(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_report_says_whether_all_is_well(
    site: SiteToSpoil, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    site.good_server()
    good = project(site.root / "good", CONFIG + "method = 'fedper'\nsites = 'north,south'\n")
    assert report(site.write(), good) is True
    printed = capsys.readouterr().out
    assert all(what in printed for what in ["project", *ORDER])
    assert "wrong" not in printed
    site.values["name"] = "east"
    assert report(site.write()) is True  # without the project nobody knows better
    assert report(site.write(), good) is False


def test_what_cannot_be_told_is_not_held_against_a_site(site: SiteToSpoil) -> None:
    site.good_server(None)
    assert report(site.write()) is True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CONFIG + "methd = 'fedper'\nsites = 'north'\n", "did you mean 'method'?"),
        ("[tool.flwr.app]\n", "has no [tool.flwr.app.config]"),
        (None, "cannot read"),
    ],
)
def test_a_bad_project_hides_nothing(
    site: SiteToSpoil,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    says: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    site.good_server()
    bad = site.root / "bad" if text is None else project(site.root / "bad", text)
    assert report(site.write(), bad) is False
    lines = capsys.readouterr().out.splitlines()
    (about,) = [line for line in lines if line.startswith("wrong")]
    assert says in about
    assert sum(line.startswith("ok") for line in lines) == len(ORDER)
