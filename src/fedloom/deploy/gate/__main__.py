"""`python -m fedloom.deploy.gate SITE.TOML ...`: Flower's SuperNode behind the site's gate.

What follows the file are arguments of `flower-supernode`.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fedloom.deploy.processes.children import end_with_parent
from fedloom.errors import FedloomError


def main() -> None:
    """Start it; whatever is wrong with the gate itself, the SuperNode does not start."""
    end_with_parent()  # `deploy node` was killed: whoever starts it again needs the port
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedloom: %(message)s"))
    log = logging.getLogger("fedloom")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        from fedloom.deploy.gate.assess import assess_elsewhere
        from fedloom.deploy.gate.decide import Gate
        from fedloom.deploy.gate.runtime_port import guard_runtime_port
        from fedloom.deploy.gate.supernode import GatedNode

        gate = Gate(Path(sys.argv.pop(1)), assess_elsewhere)
        GatedNode(gate).install()
        guard_runtime_port()
        gate.audit.append("started", site=gate.site.name)
    except FedloomError as e:
        raise SystemExit(f"fedloom: {e}") from None
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
