"""fedloom's rounds against the tensors of the authors' programs (reproduce/parity)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from fedloom.core.net import Net  # noqa: E402
from fedloom.errors import BadInput  # noqa: E402
from reproduce.parity import compare, harness, page  # noqa: E402

METHODS = harness.comparisons()
WRONG = [(name, wrong) for name in METHODS for wrong in harness.comparison(name).wrong]


def measured(name: str) -> dict:
    return json.loads((harness.RESULTS / f"{name}.json").read_text("utf-8"))


def distance(name: str, expression: str) -> float:
    """The largest difference between fedloom under an expression and the authors' tensors."""
    parity = harness.comparison(name)
    ours = parity.ours(harness.play(parity, expression))
    return harness.largest(harness.differences(ours, harness.reference(name)))


@pytest.mark.parametrize("name", METHODS)
def test_fedloom_agrees_with_the_authors_program(name):
    parity, result = harness.comparison(name), measured(name)
    assert result["expression"] == parity.method, "run reproduce/parity/run.py again"
    assert result["commit"] == parity.commit
    assert distance(name, parity.method) <= harness.tolerance(result["largest"])


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_another_reading_disagrees(name, wrong):
    assert distance(name, wrong) > 10 * harness.MARGIN


@pytest.mark.parametrize("name", METHODS)
def test_every_comparison_names_a_reading_that_disagrees(name):
    assert harness.comparison(name).wrong


@pytest.mark.parametrize("name", METHODS)
def test_differences_beyond_the_limit_are_never_kept(name):
    assert measured(name)["largest"] <= harness.LIMIT
    assert (harness.REFERENCE / f"{name}.safetensors").stat().st_size < 200_000


def test_the_page_shows_the_results_as_they_are():
    assert page.page() == page.PAGE.read_text("utf-8"), "run: python reproduce/parity/page.py"


# ------------------------------------------------------------------ the harness itself


def test_a_difference_is_relative_where_numbers_are_large():
    a, b = torch.tensor([0.0, 100.0]), torch.tensor([0.0, 101.0])
    assert harness.difference(a, b) == pytest.approx(1 / 101)
    assert harness.difference(a / 100, b / 101 + 0.5) == pytest.approx(0.5 / 1.5)
    assert harness.difference(a, torch.tensor([0.0, float("nan")])) == float("inf")


def test_tensors_that_one_side_lacks_are_an_error():
    with pytest.raises(BadInput, match="server/head"):
        harness.differences([{"server/head": torch.zeros(1)}], [{}])
    with pytest.raises(BadInput, match="2 rounds"):
        harness.differences([{}, {}], [{}])


def test_recorded_batches_are_repeated_and_then_all_rows_come_in_order():
    rows = harness.federation((5,))[0].train
    loader = harness.Batches(rows)
    loader.queue = [[torch.tensor([3, 1]), torch.tensor([0])]]
    assert [y.tolist() for _, y in loader] == [rows.y[[3, 1]].tolist(), rows.y[[0]].tolist()]
    assert [y.tolist() for _, y in loader] == [rows.y.tolist()]


def test_the_batches_written_down_are_those_that_were_trained():
    """One epoch of every client is one pass over its rows."""
    parity = harness.comparison("fedpac")
    for played in harness.play(parity).rounds:
        for cid in played.cohort:
            n = len(parity.data[cid].train)
            for epoch in played.epochs(cid):
                assert sorted(torch.cat(epoch).tolist()) == list(range(n))


def test_a_copied_module_has_the_nets_weights_and_is_trained_alone():
    net = Net((2,), body=nn.Linear(2, 3), head=nn.Linear(3, 2))
    net(net.fresh(1), torch.zeros(1, 2))  # the net has run with other weights
    copied = harness.module_of(net)
    assert all(torch.equal(v, net.tree()[k]) for k, v in copied.state_dict().items())
    copied(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        copied.head.bias += 1
    assert not torch.equal(copied.head.bias, net.tree()["head.bias"])


# ------------------------------------------------------------------ with a program of ours


PROGRAM = """
import parity_absent
def scaled(trees, factor):
    return [{k: factor * v for k, v in tree.items()} for tree in trees]
"""


def nothing_absent():
    """parity_absent, which the program imports, is empty."""
    harness.empty_module("parity_absent")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Where a comparison writes, and the folder of a program that answers as fedloom does."""
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    monkeypatch.setattr(compare, "REFERENCE", tmp_path)
    monkeypatch.setattr(harness, "REFERENCE", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "parity_program", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "parity_program.py").write_text(PROGRAM)
    return tmp_path


def against(factor: float) -> harness.Parity:
    """FedPAC against the program in the folder `code`, which answers `factor` times fedloom's."""
    parity = harness.comparison("fedpac")

    def theirs(recorded: harness.Recorded) -> list[harness.Tree]:
        from parity_program import scaled

        print("the program prints")
        return scaled(parity.ours(recorded), factor)

    return replace(parity, theirs=theirs, folder="code", patches=(nothing_absent,))


def test_a_comparison_is_printed_and_stored(written, capsys):
    compare.compare("fedpac", against(1.0), written)
    stored = json.loads((written / "fedpac.json").read_text())
    assert stored["largest"] == 0
    assert stored["patches"] == {"nothing_absent": nothing_absent.__doc__}
    assert list(stored["files"]) == ["code/parity_program.py"]
    assert stored["differences"]["client 2/weights"] == [0, 0, 0, None]  # not in the last round
    assert len(harness.reference("fedpac")) == 4
    output = capsys.readouterr().out
    assert "patch nothing_absent" in output
    assert "the program prints" not in output


def test_a_disagreement_is_not_stored(written):
    with pytest.raises(BadInput, match="nothing was written"):
        compare.compare("fedpac", against(1.001), written)
    assert not list(written.glob("fedpac.*"))


def test_a_folder_that_is_missing_is_named(written):
    with pytest.raises(BadInput, match="clone JianXu95/FedPAC"):
        compare.compare("fedpac", against(1.0), written / "code")
