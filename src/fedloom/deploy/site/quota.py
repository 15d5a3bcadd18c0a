"""How much of a disk a site gives to a federation."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedloom.deploy.operations.copies import folder_bytes
from fedloom.errors import BadInput
from fedloom.policy.quantities import size_text

LEAST_FREE = 100_000_000
"""Bytes on the disk below which a state can no longer be written safely."""


def out_of_room(state: Path, most: int) -> str:
    """Why nothing more may be written to a site's folder of states; empty: it may."""
    if not state.is_dir():
        return ""
    if (used := folder_bytes(state)) > most:
        return (
            f"{state} takes {size_text(used)}, more than most_disk = {size_text(most)}; raise it in"
            " site.toml, or remove experiments that are over with `fedloom purge`"
        )
    if (free := shutil.disk_usage(state).free) < LEAST_FREE:
        return f"the disk of {state} has {size_text(free)} left; make room there"
    return ""


def check_room(state: Path, most: int) -> None:
    """Refuse a round whose state could not be kept."""
    if why := out_of_room(state, most):
        raise BadInput(why)
