"""Pages of docs/ say what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name",
    [
        "performance.md",
        "distributed.md",
        "encoders.md",
        "advise.md",
        "reliability.md",
        "privacy.md",
        "leaks.md",
        "uploads.md",
        "secure-aggregation.md",
    ],
)
def test_the_page_shows_the_results_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import page

    text = (page.DOCS / name).read_text()
    assert page.filled(name) == text, "run: python benchmarks/page.py"


def test_advice_was_right_in_nine_of_ten_partitions_or_more() -> None:
    """What docs/advise.md promises; counted here anew from the single cases."""
    draws = json.loads((BENCHMARKS / "results" / "advise.json").read_text())["draws"]
    for draw in draws.values():
        right = [case["kind"] in case["right_kinds"] for case in draw["cases"].values()]
        assert len(right) >= 10
        assert sum(right) >= 9
        assert (sum(right), len(right)) == (draw["right"], draw["asked"])
