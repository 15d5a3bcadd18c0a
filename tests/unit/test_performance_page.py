"""docs/performance.md says what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_shows_the_results_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import page

    text = page.PAGE.read_text()
    assert page.filled(text) == text, "run: python benchmarks/page.py"
