"""Run notebooks and keep what they print.

    python docs/notebooks/run_notebooks.py [first-steps.ipynb ...]     by default all of this folder

Each runs in an empty folder of its own. Only texts are kept of what it printed, so that the files
stay small and their changes can be read; warnings and progress on standard error are not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
SECONDS = 600
"""For one cell, and for the start of a kernel, on a busy machine; a whole notebook takes less than
20 on a free core."""


def executed(file: Path) -> Any:
    """A notebook after it ran; an error in a cell is raised."""
    notebook = nbformat.read(file, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            startup_timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(only_text, cell.outputs) if output]
    return notebook


def only_text(output: Any) -> Any:
    """An output without pictures and HTML; None for what is not kept."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if output.output_type == "execute_result":
        output.data = {"text/plain": output.data["text/plain"]}
        return output
    return None


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:] or sorted(HERE.glob("*.ipynb"))):
        nbformat.write(executed(file), file)
