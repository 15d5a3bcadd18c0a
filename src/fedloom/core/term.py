"""A term: a frozen plug-in with optional hooks that any method can carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from fedloom.core.hooks import check_part
from fedloom.core.revelations import check_declared
from fedloom.core.task import WHAT, Need
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Tunable
from fedloom.errors import BadInput, suggestion

if TYPE_CHECKING:
    from fedloom.core.message import Up
    from fedloom.core.net import Net
    from fedloom.core.round import Round
    from fedloom.core.site import Site


@dataclass
class Batch:
    """One mini-batch of the training loop."""

    x: Tensor
    """The network's input, [n, ...]; `inputs` may change it."""
    y: Tensor
    """The rows' targets, never changed: classes [n], labels [n, K] or numbers [n, d]."""
    idx: Tensor
    """Which rows of the local training set these are, [n]."""
    target: Tensor
    """What the loss is computed with: `y`, or mixtures of it that `inputs` put here, of classes as
    soft labels [n, K]."""
    out: dict[str, Tensor] = field(default_factory=dict)
    """Every stage's output in the forward pass, by name; empty in `inputs`."""


AtOnce = Literal["loss", "grads", "finish"]
"""Hooks that can be called once for clients side by side."""


@dataclass(frozen=True)
class Term:
    """Reads everything, writes only the slice called `name`; keeps nothing on itself.

    Every hook is optional, and only hooks that are overridden are called in the loop. Public
    functions of a subclass are hooks: one that is no hook is refused; helpers are called `_name`.
    """

    _is_frame: ClassVar[bool] = True
    """Declares hooks, as `Term` and `Method` do, and is not checked for misspelt ones."""
    name: ClassVar[str] = "term"
    """Slice, registry name and name in messages; unique in a composition. A class that says none is
    called as the class, in lower case."""
    family: ClassVar[str] = "other"
    """What kind of idea it is, in a word or two that other methods share: "personal layers"."""
    before: ClassVar[tuple[str, ...]] = ()
    """Special rounds over all clients before round 1."""
    after: ClassVar[tuple[str, ...]] = ()
    """Special rounds over all clients after the last round."""
    keeps: ClassVar[Literal["personal", "shared"]] = "personal"
    """Whether the stages it added stay with each client or are averaged."""
    train: ClassVar[bool] = True
    """The loop trains its stages in every phase; False: the term does so itself."""
    gathers: ClassVar[bool] = False
    """`aggregate` reads single uploads of its own slice (`r.ups`, `r.stack`): they are kept to the
    end of the round, not folded into a mean and dropped."""
    gathers_model: ClassVar[str] = ""
    """The same for the model: a pattern of the keys it reads."""
    in_the_clear: ClassVar[tuple[str, ...]] = ()
    """Keys of its slice that tell nothing of rows and are all that it reads of single uploads: with
    `secure_aggregation` they are sent as they are, and everything else is masked. Without this a
    part that gathers is refused there."""
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("grads", "finish")
    """Those of its own hooks that only choose trees, and add, subtract, multiply and divide numbers
    in the same places of them: the gradient, `s.w`, `s.received`, `s.down` and `s.own`, none of
    which another hook changes during a fit. They are called once for clients side by side, whose
    tensors have one dimension more in front. A `loss` reads `b` and `s.memo` like this, too; it
    counts dimensions from the back where it sums or averages over rows and numbers, and returns one
    number for each client. A class speaks for hooks that it defines itself."""
    keeps_what_it_sent: ClassVar[str] = ""
    """Why its slice at a client may hold the very values that were sent; empty: it may not, and
    `fedloom.testing.check_method` takes such a copy for a personal tensor that left."""
    reveals: ClassVar[tuple[str, ...] | None] = None
    """What it sends of a site's rows beside the trained model, in the words of
    `fedloom.core.revelations`; () for nothing. None: nobody says, and sites refuse it."""
    against_client_noise: ClassVar[str] = ""
    """Why clipping and noise on the whole upload (`privacy = client(...)`) would break it, in a
    sentence that goes on after its name; empty: they would not."""
    against_example_noise: ClassVar[str | None] = None
    """Why noise on clipped gradients of single rows (`privacy = example(...)`) does not bound what
    it sends of a row; empty: it does, as a row's loss depends on no other row, and all that leaves
    is made of `Site.grad`. None: nobody says, and it is refused."""
    refuses: ClassVar[tuple[str, ...]] = ()
    """Names of parts it cannot be combined with."""
    requires: ClassVar[str] = ""
    """Pattern of model keys that must be shared."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What it needs of the task beside a loss and a prediction: `classes` where it looks at the
    class of a row, `plain_loss` where its loss is its own. Refused with a task that lacks it."""
    tunable: ClassVar[Tunable] = MappingProxyType({})
    """Hyper-parameters that `fedloom tune` searches, with their ranges: {"mu": Log(1e-3, 10)}."""

    def __init_subclass__(cls, frame: bool = False) -> None:
        super().__init_subclass__()
        cls._is_frame = frame
        if not frame:
            if cls.name == Term.name:
                cls.name = cls.__name__.lower()
            check_part(cls, cls._frames())
            if isinstance(declared := vars(cls).get("reveals"), tuple):
                check_declared(cls.name, declared)
            for need in cls.needs:
                if need not in WHAT:
                    raise BadInput(
                        f"{cls.name}: needs = {need!r} is unknown{suggestion(need, WHAT)}"
                    )

    @classmethod
    def _frames(cls) -> list[type]:
        """The classes that declare this one's hooks, nearest first."""
        return [base for base in cls.__mro__ if vars(base).get("_is_frame")]

    def extend(self, net: Net, clients: int) -> None:
        """Add stages or tools, once, before the run, in a seeded scope."""

    def server_init(self, r: Round) -> State:
        """Its slice on the server."""
        return {}

    def client_init(self, s: Site) -> State:
        """Its slice on a client; also how a newcomer joins."""
        return {}

    def send(self, r: Round, cid: int) -> State:
        """What client `cid` gets; default: its server slice."""
        return {k: v for k, v in r.server.items() if k == self.name}

    def inputs(self, b: Batch, s: Site) -> None:
        """Change `b.x` and `b.target` before the forward pass."""

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        """Added to the method's loss."""
        return 0.0

    def grads(self, g: Tree, s: Site) -> Tree:
        """Correct the gradient; keys are the tensors trained in this phase."""
        return g

    def special(self, s: Site) -> State:
        """Client side of its own special round; returns the upload."""
        return {}

    def finish(self, s: Site) -> State:
        """After local training; returns the upload and writes what it keeps to `s.own`."""
        return {}

    def weight(self, r: Round, cid: int, up: Up) -> float:
        """One client's weight in the mean of this part's slice; default: the method's.

        A method's `weight` is for the slice `model`; in its own slice all clients weigh 1.
        """
        return r.method.weight(r, cid, up)

    def aggregate(self, r: Round) -> State:
        """Its new server slice; `r.server` is the old state for every part; absent: unchanged."""
        return {}

    def overrides(self, hook: str) -> bool:
        """True if this part implements the hook."""
        return getattr(type(self), hook) is not getattr(Term, hook)


def goes_number_by_number(part: Term, hook: str) -> bool:
    """Does the class that defines a part's hook say so of it?"""
    defines = next(cls for cls in type(part).__mro__ if hook in vars(cls))
    return hook in vars(defines).get("number_by_number", ())
