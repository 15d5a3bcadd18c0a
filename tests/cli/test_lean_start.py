"""What a plain run imports: starting it should cost little more than importing torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import LIMIT

UNUSED = {
    *("scipy", "sklearn", "pandas", "datasets", "matplotlib", "PIL", "flwr", "ray", "optuna"),
    *("fedloom.analysis", "fedloom.diagnose", "fedloom.drawing", "fedloom.report"),
    *("fedloom.serving", "fedloom.policy", "fedloom.reproduce", "fedloom.tuning"),
    *("fedloom.advice", "fedloom.verification", "fedloom.deploy.site", "fedloom.runs.adapted"),
    *("fedloom.engines.pool", "fedloom.engines.ray", "fedloom.engines.flower"),
    *("fedloom.methods.dbe", "fedloom.models.resnet", "torch._dynamo"),
}


def test_a_plain_run_imports_only_what_it_uses(tmp_path: Path) -> None:
    """On generated digits, from the first module to the table at the end."""
    run = ["run", "--clients=3", "--partition=iid", "--rounds=1", "--engine=inline", "--out=run"]
    code = (
        "import sys; from fedloom.cli import main\n"
        f"sys.argv = ['fedloom', *{run}]\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
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
    assert done.stdout.splitlines()[-1] == "needless:"
