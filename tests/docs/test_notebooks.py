"""The notebooks run from the first cell to the last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(file.stem for file in FOLDER.glob("*.ipynb"))
sys.path.append(str(FOLDER))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str) -> None:
    """In a kernel of its own; a cell that fails raises its error here."""
    pytest.importorskip("ipykernel")
    import run_notebooks

    after = run_notebooks.executed(FOLDER / f"{name}.ipynb")
    assert any(cell.cell_type == "code" and cell.outputs for cell in after.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_small_and_was_run(name: str) -> None:
    """Texts only; what a cell printed is from the code that stands there."""
    file = FOLDER / f"{name}.ipynb"
    cells = json.loads(file.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert file.stat().st_size < 30_000
    kept = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kept <= {"stream", "execute_result"}
