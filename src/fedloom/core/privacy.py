"""Differential privacy: `privacy="client(clip=1, noise=1)"` or `privacy="example(...)"`.

`client` hides whether a client took part with its rows at all: what leaves it in a round is one
clipped change with noise on it. `example` hides single rows: every gradient is made of clipped
gradients of rows, with noise on their sum. What that is worth is counted in `accountant`; what it
is no help against is in docs/privacy.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, sqrt
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedloom.core.accountant import epsilon, mechanisms_told
from fedloom.core.frozen import frozen_keys
from fedloom.core.message import Plan, Up
from fedloom.core.net import METHOD, Net
from fedloom.core.noise_source import NoiseSource
from fedloom.core.phase import Schedule
from fedloom.core.tree import State, starting_point
from fedloom.errors import BadInput
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

if TYPE_CHECKING:
    from fedloom.core.method import Method
    from fedloom.core.site import Site
    from fedloom.core.term import Term

privacies = Registry("privacy")
"""Kinds of privacy by name."""

LEAST = 1e-100
"""Smallest clip and noise: the squares of less are 0."""
STATISTICS = frozenset(
    {"row_means", "class_means", "class_counts", "class_weights", "feature_mean", "row_weights"}
)
"""Of `Term.reveals`, what is made of rows without going through a gradient of single ones."""


@dataclass(frozen=True)
class Privacy:
    """What is hidden, and how well."""

    name: ClassVar[str]
    hides: ClassVar[str]
    """Whose presence."""
    clip: float = 1.0
    """The longest that a contribution may be."""
    noise: float = 1.0
    """Standard deviation of the noise, in units of `clip`."""
    delta: float = 1e-5
    """Of (epsilon, delta): the probability that epsilon does not bound."""
    budget: float = 0.0
    """The epsilon at which the training ends; 0: it does not."""

    def __post_init__(self) -> None:
        for what, value in (("clip", self.clip), ("noise", self.noise)):
            if not LEAST <= value < float("inf"):
                raise BadInput(
                    f"privacy {self.name}: {what} is a number of {LEAST:g} or more, not {value}"
                )
        if not 0 < self.delta < 1:
            raise BadInput(
                f"privacy {self.name}: delta is a probability above 0 and below 1, not {self.delta}"
            )
        if not 0 <= self.budget < float("inf"):
            raise BadInput(
                f"privacy {self.name}: budget is an epsilon above 0, or 0 for none, not"
                f" {self.budget}"
            )

    @abstractmethod
    def against(self, part: Term) -> str:
        """Why it cannot be had with this part; empty if it can."""

    def check(self, method: Method, nets: Sequence[Net]) -> None:
        """Refuse a method with which it cannot be had."""
        for part in method.parts:
            if reason := self.against(part):
                raise BadInput(f"privacy = {self.name}(...) and {part.name}: {reason}")

    def leaving(self, up: Up, site: Site) -> Up:
        """What leaves the client in place of its upload."""
        return up

    @abstractmethod
    def mechanisms(self, method: Method, plan: Plan, rows: int | None) -> int:
        """How many releases an answer to this plan is, of a client with so many training rows;
        None: any number."""

    def epsilon_after(self, mechanisms: float) -> float:
        """Of so many releases."""
        return epsilon(mechanisms_told(self.noise, mechanisms), self.delta)

    def __str__(self) -> str:
        return written(self, self.name)


@privacies
@dataclass(frozen=True)
class ClientPrivacy(Privacy):
    """Of each upload, the change against what was received, over all slices together, is clipped to
    the norm `clip`, and Gaussian noise of `noise` times `clip` is added to every number.

    Beside it nothing is told: not how many rows there are (every client says 1, so that all weigh
    the same), nor the training loss. Integers, and tensors that no phase trains, go back as they
    came. The variances of BatchNorm are then kept from being negative, which tells nothing more.
    """

    name: ClassVar[str] = "client"
    hides: ClassVar[str] = "a client with all of its rows"

    def against(self, part: Term) -> str:
        return part.against_client_noise

    def leaving(self, up: Up, site: Site) -> Up:
        received = {name: dict(tree) for name, tree in site.down.items()}
        fixed = {METHOD: frozen_keys(site.net, site.method.phases)}
        state = self.hidden(up.state, received, site.noise, fixed)
        if METHOD in state:
            for key, value in state[METHOD].items():
                if key.endswith("running_var"):  # not in place: it may be what was received
                    state[METHOD][key] = value.clamp(min=0)
        return replace(up, state=state, n=1, metrics={})

    def hidden(
        self,
        up: State,
        received: State,
        noise: NoiseSource,
        fixed: Mapping[str, frozenset[str]] | None = None,
    ) -> State:
        """An upload clipped and with noise. `fixed` are keys, by slice, that go back as they came.

        An upload with a number that is not finite counts as no change: only noise is sent.
        """
        starts = {name: starting_point(tree, received.get(name, {})) for name, tree in up.items()}
        moves = {
            name: {
                key: value.detach().double() - starts[name][key].double()
                for key, value in tree.items()
                if value.is_floating_point() and key not in (fixed or {}).get(name, ())
            }
            for name, tree in up.items()
        }
        norm = sqrt(sum(float(m.square().sum()) for tree in moves.values() for m in tree.values()))
        factor = min(1.0, self.clip / norm) if norm and isfinite(norm) else 0.0

        def sent(name: str, key: str, start: Tensor) -> Tensor:
            if key not in moves[name]:
                return start
            move = factor * moves[name][key] if factor else torch.zeros_like(moves[name][key])
            drawn = noise.normal(name, move)
            return (start.double() + move + self.noise * self.clip * drawn).to(start.dtype)

        return {
            name: {key: sent(name, key, start) for key, start in tree.items()}
            for name, tree in starts.items()
        }

    def mechanisms(self, method: Method, plan: Plan, rows: int | None) -> int:
        """One of every answer but the last adaptation's, which sends nothing."""
        return 0 if plan.kind == "adapt" else 1


@privacies
@dataclass(frozen=True)
class ExamplePrivacy(Privacy):
    """DP-SGD (Abadi et al., 2016): of each batch the gradient of every row is clipped to the norm
    `clip`; their sum gets Gaussian noise of `noise` times `clip` and is divided by the rows.

    Only where all that leaves a client is made of such gradients. The training loss is not told.
    """

    name: ClassVar[str] = "example"
    hides: ClassVar[str] = "a row"

    def against(self, part: Term) -> str:
        if "against_example_noise" not in vars(type(part)):
            return (
                "nobody says whether all that it sends is made of clipped gradients of single"
                " rows; its author adds against_example_noise = ''"
            )
        if part.against_example_noise:
            return part.against_example_noise
        if part.reveals is None or (told := sorted(STATISTICS & set(part.reveals))):
            what = "unknown things" if part.reveals is None else " and ".join(told)
            return (
                f"it sends {what.replace('_', ' ')} of rows, which no clipped gradient bounds;"
                " privacy = client(...) hides those too"
            )
        return ""

    def check(self, method: Method, nets: Sequence[Net]) -> None:
        super().check(method, nets)
        if any(net.match("@bn") for net in nets):
            raise BadInput(
                "privacy = example(...) takes gradients of single rows, and BatchNorm makes rows of"
                " a batch depend on each other; choose a model without it, for instance with"
                " norm=group"
            )
        if any(phase.over(method.opt).opt.replacement for phase in method.phases):
            raise BadInput(
                "privacy = example(...) counts on every row being in one batch of an epoch; leave"
                " out replacement"
            )

    def leaving(self, up: Up, site: Site) -> Up:
        return replace(up, metrics={})

    def mechanisms(self, method: Method, plan: Plan, rows: int | None) -> int:
        """One for every epoch in which gradients are taken: a row is in one of its batches."""
        if plan.kind != "train":
            return 0
        return sum(
            _epochs(phase.over(method.opt, plan.t), rows) for phase in method.gradient_phases
        )


def parse_privacy(text: str) -> Privacy:
    """From an expression.

    >>> parse_privacy("client(noise=0.5)")
    ClientPrivacy(clip=1.0, noise=0.5, delta=1e-05, budget=0.0)
    """
    privacy: Privacy = privacies.build(parse_one(text))
    return privacy


def _epochs(schedule: Schedule, rows: int | None) -> int:
    """How often a row may be in a batch of this phase."""
    opt = schedule.opt
    if opt.steps is None:
        return opt.epochs
    return opt.steps if rows is None else ceil(opt.steps / batches(schedule, rows))


def batches(schedule: Schedule, rows: int) -> int:
    """Of an epoch over so many rows."""
    whole, rest = divmod(rows, schedule.opt.batch)
    return max(1, whole if schedule.opt.drop_last else whole + (rest > 0))
