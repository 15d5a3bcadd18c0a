"""What may leave a client, and what it may keep."""

from __future__ import annotations

from fedloom.core.compression import RESIDUAL
from fedloom.core.evaluate import FINAL
from fedloom.core.net import METHOD
from fedloom.core.optimizers import OPTIMIZER
from fedloom.core.site import Site
from fedloom.core.together import Stacks
from fedloom.core.tree import State
from fedloom.errors import LeakError


def check_upload(where: str, site: Site | Stacks, up: State) -> None:
    """No slice of an unknown part, no personal model key, no tensor that is a personal one."""
    if OPTIMIZER in up:
        raise LeakError(f"{where}: the state of the client's optimiser is in the upload")
    if RESIDUAL in up:
        raise LeakError(f"{where}: what earlier uploads left out is in the upload")
    if strange := sorted(set(up) - site.program.writers.keys()):
        raise LeakError(f"{where}: the upload has a slice {strange[0]!r} that no part owns")
    if personal := sorted(set(up.get(METHOD, {})) - site.shared):
        raise LeakError(f"{where}: the personal tensor {personal[0]!r} is in the upload")
    private = {
        v.untyped_storage().data_ptr()
        for tree in (site.w, site.received, site.own.get(METHOD, {}))
        for k, v in tree.items()
        if k not in site.shared and v.numel() > 0
    }
    optimizer = site.own.get(OPTIMIZER, {}).values()
    private |= {v.untyped_storage().data_ptr() for v in optimizer if v.numel() > 0}
    if not private:
        return
    for name, tree in up.items():
        for k, v in tree.items():
            if v.untyped_storage().data_ptr() in private:
                raise LeakError(f"{where}: {name}/{k} in the upload is a personal tensor")


def check_kept(site: Site) -> None:
    """Every slice a client keeps belongs to a part."""
    names = {name.removeprefix(FINAL) for name in site.own}
    if strange := sorted(names - site.program.writers.keys()):
        raise LeakError(f"client {site.cid}, {site.plan}: kept slice {strange[0]!r} has no owner")
