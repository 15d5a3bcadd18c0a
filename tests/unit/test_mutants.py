"""The planted mistakes of tests/mutants still fit the source, and their results are theirs."""

from __future__ import annotations

import ast
import json
from collections import Counter

import pytest

from mutants.run import RESULTS, ROOT, Mutant, PytestRun, read_mutants

MUTANTS = read_mutants()
LEAST = {
    "core": 12,
    "methods and ops": 12,
    "runs and launch": 10,
    "engines": 6,
    "data and models": 4,
    "policy, audit and deploy": 6,
    "report, analysis and diagnose": 6,
    "deploy": 20,
}
"""Mutants of each group of packages."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    """Its text occurs once, what comes out is Python and another program, its tests are there."""
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    changed = mutant.applied_to(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    files = [word for word in mutant.tests if word.endswith(".py")]
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_names_are_unique_and_mutants_are_spread_over_the_packages() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    packages = Counter(mutant.file.removesuffix(".py").split("/")[0] for mutant in MUTANTS)
    groups = {"record": "runs and launch"}
    groups |= {word: group for group in LEAST for word in group.replace(",", "").split()}
    spread = Counter[str]()
    for package, count in packages.items():
        spread[groups[package]] += count
    assert all(spread[group] >= least for group, least in LEAST.items())


def test_published_results_are_of_these_mutants() -> None:
    published = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [one["name"] for one in published["mutants"]] == [mutant.name for mutant in MUTANTS]
    assert published["score"] == Counter(one["outcome"] for one in published["mutants"])


def test_a_text_that_moved_is_named() -> None:
    mutant = Mutant("sign", "x.py", "", "a - b", "a + b", ())
    assert mutant.applied_to("c = a - b\n") == "c = a + b\n"
    with pytest.raises(ValueError, match=r"sign: its text occurs 0 times in src/fedloom/x\.py"):
        mutant.applied_to("c = a  - b\n")


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "survived"), (1, "caught"), (2, "broken"), (None, "timeout")]
)
def test_only_a_failed_test_or_no_end_counts_as_caught(code: int | None, outcome: str) -> None:
    """Code 2 is a module that cannot be imported: such a mutant says nothing about the tests."""
    output = "..F\nFAILED tests/test_x.py::test_y[a b] - assert 1 == 2\n1 failed"
    done = PytestRun(code, 1.0, output)
    assert done.outcome == outcome
    assert done.failed_test == "tests/test_x.py::test_y[a b]"
