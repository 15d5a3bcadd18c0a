"""`python -m fedloom.deploy.guard` with the arguments of `flower-superlink`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedloom.deploy.project.folder import PROJECT, Project
from fedloom.errors import FedloomError


def main() -> None:
    """Run the SuperLink of the project that the environment names."""
    from fedloom.deploy.guard.serve import serve
    from fedloom.deploy.processes.children import end_with_parent

    end_with_parent()  # `deploy link` was killed: whoever starts it again needs the port
    try:
        serve(Project.read(Path(os.environ[PROJECT])))
    except KeyError:
        sys.exit("fedloom: start the SuperLink with `fedloom deploy link STUDY`")
    except FedloomError as e:
        sys.exit(f"fedloom: {e}")


if __name__ == "__main__":
    main()
