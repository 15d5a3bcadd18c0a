"""The code of an earlier commit, for benchmarks that take turns with it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

HERE = Path(__file__).parents[1]


def unpacked(commit: str, folder: Path) -> Path:
    """The `src` of a commit, put into a folder; the folder."""
    archive = ["git", "-C", str(HERE), "archive", commit, "src"]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder
