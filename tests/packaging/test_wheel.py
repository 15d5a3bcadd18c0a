"""What is published: wheel and sdist, installed where no checkout is near."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]  # built once

ROOT = Path(__file__).parents[2]
PARTS = ("src", "pyproject.toml", "README.md", "LICENSE")
"""Of the checkout; built from a copy, because setuptools writes beside what it builds."""


def run(*command: str | Path, folder: Path) -> str:
    """What a command printed; its complaint if it fails. It sees no checkout and no PYTHONPATH."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in PARTS:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tree / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", "--outdir", dist, folder=tree)
    return dist


def test_the_wheel_has_every_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("fedloom/")}
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        described = archive.read(metadata).decode()
    ours = ROOT / "src" / "fedloom"
    files = {file for file in ours.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert packed == {f"fedloom/{file.relative_to(ours).as_posix()}" for file in files}
    assert "License-Expression: Apache-2.0" in described
    assert "Requires-Python: >=3.11" in described


def test_the_sdist_has_no_more_than_it_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops == {*PARTS, "PKG-INFO", "setup.cfg"}


def test_a_clean_environment_runs_the_demo(built: Path, tmp_path: Path) -> None:
    """Of this environment only the dependencies are seen, not the editable install."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    dependencies = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    python = tmp_path / "env" / "bin" / "python"
    where = run(python, "-c", "import fedloom; print(fedloom.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    start = "import sys; from fedloom.cli import main; sys.exit(main())"
    demo = ["compare", "local", "fedpac", "--clients", "4", "--rounds", "1", "--out", "runs"]
    assert "fedpac" in run(python, "-c", start, *demo, folder=tmp_path)
    run(python, "-c", start, "report", "runs", "--out", "report.html", folder=tmp_path)
    assert "fedpac" in (tmp_path / "report.html").read_text(encoding="utf-8")
