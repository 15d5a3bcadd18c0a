"""`flwr run` of a project in Flower's own simulation: `python flwr_run.py PROJECT HOME NODES`.

A script, because it runs in a network of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedloom.deploy.processes.children import Child, flower_environment, free_ports, listens
from own_network import raise_loopback
from patient_ray import LIMIT

SCRIPTS = Path(sys.executable).parent


def main(project: Path, home: Path, nodes: int) -> int:
    """The code of `flwr run`, which prints what the run logged."""
    raise_loopback()
    (port,) = free_ports(1)
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n'
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = flower_environment(home)
    link = Child(
        "the SuperLink",
        [
            SCRIPTS / "flower-superlink",
            *("--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)),
            "--disable-runtime-dependency-installation",
        ],
        environment,
        home / "link.log",
        project,
    )
    link.start()
    try:
        link.ready(lambda: listens("127.0.0.1", port), LIMIT)
        command = [SCRIPTS / "flwr", "run", ".", "--stream"]
        command += ["--federation-config", f"num-supernodes={nodes}"]
        return subprocess.run(command, cwd=project, env=environment, check=False).returncode
    finally:
        link.end()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
