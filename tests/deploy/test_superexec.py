"""Client apps are forks of a process that has imported everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.deploy.processes.superexec import forking_scripts
from helpers import LIMIT

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(sys.platform != "linux", reason="apps are forked on Linux only"),
]


def test_the_script_is_flower_s_command(tmp_path: Path) -> None:
    script = forking_scripts(tmp_path / "a home") / "flower-superexec"
    printed = subprocess.run([script, "--version"], check=True, capture_output=True, timeout=LIMIT)
    assert printed.stdout.startswith(b"Flower version: ")


def test_every_order_is_a_process_of_its_own_and_the_template_ends_with_its_owner() -> None:
    """Two client apps are asked for their usage; then the owner's end closes the input."""
    program = (
        "from fedloom.deploy.processes.superexec import Template\n"
        "template = Template()\n"
        "print(template.fork(['flwr-clientapp', '--help']))\n"
        "print(template.fork(['flwr-clientapp', '--help']))\n"
        "template._process.communicate()\n"
        "print(template._process.returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.count("usage: ") == 2, done.stderr
    assert done.stdout.count("True\n") == 2
    assert "\n0\n" in done.stdout


def test_without_a_template_flower_starts_the_app_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedloom.deploy.processes import superexec

    monkeypatch.setattr(superexec, "_words", lambda *_: [sys.executable, "-c", ""])
    template = superexec.Template()
    template._process.wait(60)
    assert not template.fork(["flwr-clientapp"])
