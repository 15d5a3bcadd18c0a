"""The tables of the five papers: all are in order, and every cell of them works."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.reproduce.dry_run import DryRuns
from fedloom.reproduce.format import check_file, read_table
from fedloom.reproduce.library import PAPERS, all_tables, find_tables
from fedloom.reproduce.page import COMMAND, page

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "reproduce"


def test_every_table_is_in_order() -> None:
    files = all_tables(TABLES)
    assert {file.parent.name for file in files} == set(PAPERS)
    assert [sentence for file in files for sentence in check_file(file)] == []


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_cell_can_be_built_and_every_method_and_network_works(paper: str) -> None:
    """`fedloom reproduce --dry-run` plays all different cells, which takes ten minutes."""
    dry_runs = DryRuns(every=False)
    tables = [read_table(file) for file in find_tables([paper], TABLES)]
    assert [sentence for table in tables for sentence in dry_runs.play(table)] == []


def test_the_page_shows_the_published_results_as_they_are() -> None:
    tables = [read_table(file) for file in all_tables(TABLES)]
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page(tables) == text, f"run: {COMMAND}"
