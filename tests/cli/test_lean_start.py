"""What a plain run imports: starting it should cost little more than importing torch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from helpers import LIMIT

UNUSED = {
    *("scipy", "sklearn", "pandas", "datasets", "matplotlib", "PIL", "flwr", "ray", "optuna"),
    *("fedloom.analysis", "fedloom.diagnose", "fedloom.drawing", "fedloom.report"),
    *("fedloom.serving", "fedloom.policy", "fedloom.reproduce", "fedloom.tuning"),
    *("fedloom.advice", "fedloom.verification", "fedloom.deploy.site", "fedloom.runs.adapted"),
    *("fedloom.engines.pool", "fedloom.engines.ray", "fedloom.engines.flower"),
    *("fedloom.engines.blocks", "fedloom.engines.vectorized", "fedloom.loggers", "fedloom.testing"),
    *("fedloom.launch.compare", "fedloom.catalogue", "fedloom.observed_traffic"),
    *("fedloom.methods.dbe", "fedloom.models.resnet", "torch._dynamo"),
    *(
        "psutil",
        "requests",
        "jinja2",
        "numpy.testing",
        "pydantic.v1",
        "rich.markdown",
        "pkg_resources",
    ),
}


def test_a_plain_run_imports_only_what_it_uses(tmp_path: Path) -> None:
    """On generated digits, from the first module to the table at the end."""
    run = ["run", "--clients=3", "--partition=iid", "--rounds=1", "--engine=inline", "--out=run"]
    code = (
        "import sys; from fedloom.cli import main\n"
        f"sys.argv = ['fedloom', *{run}]\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "import gc; print('frozen:', gc.get_freeze_count())\n"
        f"print('needless:', *{UNUSED} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "digest of the run" in done.stdout
    *_, frozen, needless = done.stdout.splitlines()
    assert needless == "needless:"
    # The garbage collector has no torch to look through, during the run and at the end.
    assert int(frozen.removeprefix("frozen: ")) > 100_000


def test_ctrl_c_is_answered_before_the_command_line_is_imported() -> None:
    """What starts it (the console script, `python -m fedloom`) needs no Typer for that."""
    code = (
        "import sys, fedloom.__main__; print({'typer', 'rich', 'fedloom.cli'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_package_is_the_command_line() -> None:
    words = [sys.executable, "-m", "fedloom", "run", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "Usage: python -m fedloom run" in done.stdout


def test_the_console_script_starts_as_the_package_does() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"fedloom": "fedloom.__main__:main"}
