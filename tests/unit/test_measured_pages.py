"""Pages of docs/ say what was measured."""

from __future__ import annotations

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
        "uploads.md",
    ],
)
def test_the_page_shows_the_results_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import page

    text = (page.DOCS / name).read_text()
    assert page.filled(name) == text, "run: python benchmarks/page.py"
