"""Rules about the size of steps: those that hold a model still, and those that undo each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedloom.policy.facts import SiteFacts
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.policy.training import Stretch, rows_trained, stretches
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.method import Method

ADAPTIVE_SHARE = 0.01
"""Smallest learning rate of optimisers that scale their steps themselves, as a share of sgd's."""
LARGEST_EPS = 1e-3
"""Beyond it an adaptive optimiser's step is the gradient divided by eps, as of a tiny rate."""
MOST_SHRINKING = 0.5
"""Largest share of a weight that one step may take off it: with all of it, only the last batch
would be left in what is sent."""
MOST_MOMENTUM = 0.99
"""Beyond it, what is sent is mostly the first batch."""
LEAST_SERVER_LR = 0.1
"""Share of the way to the mean that the server must go at least, so that rounds do not begin at
the same model."""
LEAST_ADAPTIVE_SERVER_LR = 0.001
LARGEST_SERVER_TAU = 0.1


def moves(policy: Policy, run: RunConfig, method: Method, facts: SiteFacts) -> Iterator[Refusal]:
    """Of a site's steps in all rounds, and of the server's."""
    rows = rows_trained(method, facts.rows, facts.val_rows)
    for stretch in stretches(method, rows):
        yield from _site_moves(policy, stretch, run.rounds, method.pace)
    yield from _server_moves(policy, method)


def _site_moves(policy: Policy, stretch: Stretch, rounds: int, pace: float) -> Iterator[Refusal]:
    opt = stretch.opt
    slowest, fastest = sorted(_rates(pace * opt.lr, opt.decay, rounds))
    least = policy.least_lr * (1 if opt.name == "sgd" else ADAPTIVE_SHARE)
    # Written so that what is no number is refused too.
    if not slowest * min(1.0, opt.clip or 1.0) >= least:
        yield Refusal(
            "small_moves",
            f"phase {stretch.phase}: steps of lr {slowest:.3g}"
            f"{f' with clip {opt.clip:g}' if opt.clip else ''}, after decay, are smaller than the"
            f" {least:g} this site permits; raise lr, clip or decay",
        )
    if opt.name != "sgd" and not (opt.eps or 0) <= LARGEST_EPS:
        yield Refusal(
            "small_moves",
            f"eps = {opt.eps:g} makes the steps of {opt.name} tiny; lower it to {LARGEST_EPS:g}",
        )
    uneven = {"momentum": opt.momentum, "beta1": opt.beta1 or 0.0}
    for key, value in uneven.items():
        if not 0 <= value <= MOST_MOMENTUM:
            yield Refusal(
                "odd_settings", f"{key} = {value:g} is outside of the usual 0 to {MOST_MOMENTUM:g}"
            )
    if not fastest <= policy.most_lr:
        yield Refusal(
            "large_moves",
            f"phase {stretch.phase}: lr {fastest:.3g}, after decay, is more than the"
            f" {policy.most_lr:g} this site permits; lower lr or decay",
        )
    if not fastest * opt.weight_decay <= MOST_SHRINKING:
        yield Refusal(
            "large_moves",
            f"lr times weight_decay {fastest * opt.weight_decay:.3g} is more than"
            f" {MOST_SHRINKING}; lower weight_decay",
        )


def _rates(lr: float, decay: float, rounds: int) -> tuple[float, float]:
    """The learning rates of the first and of the last round."""
    try:
        return lr, lr * decay ** (rounds - 1)
    except OverflowError:
        return lr, math.inf


def _server_moves(policy: Policy, method: Method) -> Iterator[Refusal]:
    server = method.server
    plain = server.name in ("sgd", "momentum")
    least = LEAST_SERVER_LR if plain else LEAST_ADAPTIVE_SERVER_LR
    if not least <= server.lr <= policy.most_lr:
        rule = "small_moves" if server.lr < least else "large_moves"
        yield Refusal(
            rule,
            f"server_lr = {server.lr:g} of {server.name} is not between {least:g} and"
            f" {policy.most_lr:g}",
        )
    if not plain and not server.tau <= LARGEST_SERVER_TAU:
        yield Refusal(
            "small_moves", f"server_tau = {server.tau:g} is more than {LARGEST_SERVER_TAU:g}"
        )
    # Of a small difference to the mean, an adaptive server goes this share in its first round.
    share = server.lr * (1 - server.fading) / server.tau
    if not plain and not share >= LEAST_SERVER_LR:
        yield Refusal(
            "small_moves",
            f"server_lr * (1 - server_beta1) / server_tau = {share:.3g} is less than"
            f" {LEAST_SERVER_LR:g}; lower server_beta1 or server_tau",
        )
