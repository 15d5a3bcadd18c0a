"""The client's answer to one message, with the checks that make it trustworthy."""

from __future__ import annotations

from fedloom.core.evaluate import FINAL, Ask, Moment, adapt, score_client
from fedloom.core.message import Up
from fedloom.core.net import METHOD
from fedloom.core.rng import rng_scope
from fedloom.core.site import Site, Visit
from fedloom.core.tree import State, plain_state
from fedloom.errors import LeakError

_Marks = dict[tuple[str, str], tuple[int, int]]
"""(slice, key) -> identity and version of the tensor there."""


def client(visit: Visit, ask: Ask | None = None) -> tuple[Up, State]:
    """What goes up and what the client keeps.

    `ask` measures inside the call, where the trained model is at hand anyway.
    """
    plan, sent = visit.down.plan, _marks(visit.down.state)
    with rng_scope(*plan.key, visit.cid):  # the whole call: layers may draw outside the loop too
        site = Site(visit)
        arrived = _marks(site.down)
        metrics: dict[str, float] = {}
        if plan.kind == "special":
            up = _special(site)
        elif plan.kind == "adapt":
            up, metrics = _adapt(site, ask)
        else:
            up, metrics = _train(site, ask)
    # Twice: `site.down` is a copy on another device, and `receive` runs before `arrived` is taken.
    if _marks(site.down) != arrived or _marks(visit.down.state) != sent:
        raise LeakError(
            f"client {visit.cid}, {plan}: a hook changed what was received; copy it first"
        )
    check_upload(site, up)
    check_kept(site)
    kept = {name: tree for name, tree in site.own.items() if tree}
    up, kept = plain_state(up), plain_state(kept)
    if site.mean_loss is not None:
        metrics = {"loss": site.mean_loss, **metrics}
    return Up(up, len(visit.data.train), metrics), kept


def _train(site: Site, ask: Ask | None) -> tuple[State, dict[str, float]]:
    method = site.method
    method.local(site)
    metrics = _measure(site, ask, "trained")
    up: State = {}
    for part in method.parts:
        before = _marks(site.own)
        up |= part.finish(site)
        _check_writes(site, before, part.name)
    return up, metrics


def _special(site: Site) -> State:
    """Only the owner's slice may change on either side; weights trained here vanish."""
    owner = site.program.owner(site.plan)
    kept = dict(site.own)
    up = owner.special(site)
    site.own = kept | {k: t for k, t in site.own.items() if k == owner.name}
    return up


def _adapt(site: Site, ask: Ask | None) -> tuple[State, dict[str, float]]:
    kept = dict(site.own)
    state = site.method.personalize(adapt(site))
    site.own = kept | {FINAL + name: tree for name, tree in state.items()}
    return {}, _measure(site, ask, "final")


def _measure(site: Site, ask: Ask | None, moment: Moment) -> dict[str, float]:
    if ask is None or moment not in ask.moments:
        return {}
    with rng_scope(*site.plan.key, site.cid, "evaluate", moment):
        state = site.method.personalize(site)
        scores = score_client(site.program, site.cid, site.data, state, moment, ask)
    return {f"{at}/{name}": v for at, found in scores.items() for name, v in found.items()}


def check_upload(site: Site, up: State) -> None:
    """No slice of an unknown part, no personal model key, no tensor that is a personal one."""
    where = f"client {site.cid}, {site.plan}"
    if strange := sorted(set(up) - set(site.program.writers())):
        raise LeakError(f"{where}: the upload has a slice {strange[0]!r} that no part owns")
    if personal := sorted(set(up.get(METHOD, {})) - site.shared):
        raise LeakError(f"{where}: the personal tensor {personal[0]!r} is in the upload")
    private = {
        v.untyped_storage().data_ptr()
        for tree in (site.w, site.received, site.own.get(METHOD, {}))
        for k, v in tree.items()
        if k not in site.shared and v.numel() > 0
    }
    for name, tree in up.items():
        for k, v in tree.items():
            if v.untyped_storage().data_ptr() in private:
                raise LeakError(f"{where}: {name}/{k} in the upload is a personal tensor")


def check_kept(site: Site) -> None:
    """Every slice a client keeps belongs to a part."""
    names = {name.removeprefix(FINAL) for name in site.own}
    if strange := sorted(names - set(site.program.writers())):
        raise LeakError(f"client {site.cid}, {site.plan}: kept slice {strange[0]!r} has no owner")


def _check_writes(site: Site, before: _Marks, writer: str) -> None:
    """What changed in `own` must belong to the part that was just called."""
    after, writers = _marks(site.own), site.program.writers()
    for at in before.keys() | after.keys():
        if before.get(at) != after.get(at) and writers.get(at[0]) != writer:
            raise LeakError(
                f"client {site.cid}, {site.plan}: {writer} wrote {at[0]}/{at[1]},"
                " which belongs to another part"
            )


def _marks(state: State) -> _Marks:
    return {(name, k): (id(v), v._version) for name, tree in state.items() for k, v in tree.items()}
