"""A method: a term that also owns the slice `model`. As it stands, it is federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch import Tensor

from fedloom.core.message import Plan, Up
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.optimizers import OPTIMIZER
from fedloom.core.phase import Opt, Phase
from fedloom.core.server_optimizers import ServerOpt, server_step
from fedloom.core.term import AtOnce, Batch, Term
from fedloom.core.tree import State, Tree, clone, select
from fedloom.errors import BadInput

if TYPE_CHECKING:
    from fedloom.core.round import Round
    from fedloom.core.site import Site


@dataclass(frozen=True, kw_only=True)
class Method(Term, frame=True):
    """The frame of every method; a subclass states what differs and inherits no other method.

    Model tensors that `shared` does not name are personal. Hyper-parameters are plain fields;
    `phases` and `adapt` (fine-tuning before a test) are derived from them.
    """

    no_global: ClassVar[str] = ""
    """Why there is no global model, where that does not follow from the shared tensors."""
    personal_model: ClassVar[bool] = False
    """Clients hold unlike models although all tensors may leave them: a second model (Ditto), a
    head that the server makes for each (FedPAC). What `shared` keeps need not be declared."""
    passes_on_average: ClassVar[bool] = False
    """An `aggregate` of its own returns every slice that the default one does, so that a server
    optimiser works; without this one is refused."""
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("finish",)
    holds_out: ClassVar[str] = ""
    """The setting that is the share of training rows which it keeps from its training where a
    client has no validation rows; empty: it trains with all."""
    shared: str = "*"
    """Pattern of the model keys that may leave a client."""
    weighting: Literal["samples", "uniform"] = "samples"
    """How clients weigh in the mean: by training rows, or all alike."""
    opt: Opt = field(default_factory=Opt)
    """How clients train."""
    server: ServerOpt = field(default_factory=ServerOpt)
    """How the server moves towards the mean."""
    terms: tuple[Term, ...] = ()
    """What was added with `+`."""

    def __post_init__(self) -> None:
        if self.weighting not in ("samples", "uniform"):
            raise BadInput(f"weighting must be samples or uniform, got {self.weighting!r}")

    def __add__(self, term: Term | tuple[Term, ...]) -> Self:
        """The same method with a term more, or with the terms of a recipe such as DBE."""
        terms = term if isinstance(term, tuple) else (term,)
        for t in terms:
            if isinstance(t, Method) and t.terms:  # a recipe such as SCAFFOLD
                names = " + ".join(part.name for part in t.terms)
                raise BadInput(
                    f"'{t.name} + {names}' is a method, and a sum is one method plus terms; after"
                    f" the '+' write '{names}'"
                )
            if isinstance(t, Method) or not isinstance(t, Term):
                raise BadInput(
                    f"{getattr(t, 'name', t)!r} is not a term; a sum is one method plus terms"
                )
        return replace(self, terms=(*self.terms, *terms))

    @property
    def parts(self) -> tuple[Term, ...]:
        """The method, then its terms in the order of `+`."""
        return (self, *self.terms)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Local training of one round."""
        return (Phase(),)

    @property
    def adapt(self) -> tuple[Phase, ...]:
        """Fine-tuning before a test; stored only after the last round.

        Only the program reads it: a protocol may put something else in its place.
        """
        return ()

    @property
    def pace(self) -> float:
        """How long a step is beside the learning rate times the gradient; 1 unless a method's
        `step` scales it."""
        return 1.0

    @property
    def gradient_phases(self) -> tuple[Phase, ...]:
        """The phases of a round in which `Site.grad` is asked, each as often as for one row in an
        epoch: what example-level privacy counts. More than `phases` where `local` trains a second
        model, or `step` takes several gradients."""
        return self.phases

    @property
    def head_pattern(self) -> str:
        """Pattern of the tensors that make a prediction of the features: what a protocol's
        `head_epochs` train. Empty: none of them could be trained."""
        return "head.*"

    def schedule(self, rounds: int) -> list[Plan]:
        """Special rounds, rounds 1..T, special rounds."""

        def special(t: int, which: str) -> list[Plan]:
            owners = [f"{p.name}.{name}" for p in self.parts for name in getattr(p, which)]
            return [Plan(t, "special", owner, "all") for owner in owners]

        training = [Plan(t) for t in range(1, rounds + 1)]
        return [*special(0, "before"), *training, *special(rounds + 1, "after")]

    def shared_keys(self, net: Net) -> frozenset[str]:
        """Model keys that may leave a client: `shared` speaks for the net's and the method's
        stages, `keeps` for a term's."""
        sharing = {p.name for p in self.terms if p.keeps == "shared"}
        pattern = net.match(self.shared)

        def may_leave(key: str) -> bool:
            owner = net.owner[stage_of(key)]
            return key in pattern if owner == METHOD else owner in sharing

        return frozenset(k for k in net.keys if may_leave(k))

    # ------------------------------------------------------------------ server

    def server_init(self, r: Round) -> State:
        """The initial values of what is shared."""
        return {METHOD: select(r.net.tree(), r.shared)}

    def send(self, r: Round, cid: int) -> State:
        """The shared model and the method's own slice."""
        return {k: v for k, v in r.server.items() if k in (METHOD, self.name)}

    def weight(self, r: Round, cid: int, up: Up) -> float:
        """The client's training rows, or 1 where `weighting` is uniform."""
        return float(up.n) if self.weighting == "samples" else 1.0

    def aggregate(self, r: Round) -> State:
        """The weighted mean of the uploads, or a step of the server's optimiser towards it."""
        model, state = server_step(
            self.server,
            r.server[METHOD],
            r.mean(METHOD),
            r.server.get(OPTIMIZER, {}),
            r.net.params,
        )
        return {METHOD: model, OPTIMIZER: state} if state else {METHOD: model}

    # ------------------------------------------------------------------ client

    def client_init(self, s: Site) -> State:
        """The initial values of what is personal."""
        return {METHOD: clone({k: v for k, v in s.net.initial.items() if k not in s.shared})}

    def receive(self, s: Site) -> Tree:
        """Own and received parts make the client's model; some methods choose or mix here."""
        return {**s.own.get(METHOD, {}), **s.down.get(METHOD, {})}

    def local(self, s: Site) -> None:
        """Local training of one round."""
        for phase in self.phases:
            s.fit(phase)

    def loss(self, b: Batch, s: Site) -> Tensor:
        """The task's loss of the network's prediction."""
        return s.task.loss(b.out[s.net.logits], b.target)

    def step(self, b: Batch, s: Site) -> None:
        """The update rule on one batch."""
        s.apply(s.grad(b))

    def finish(self, s: Site) -> State:
        """Personal tensors are kept, shared ones go up."""
        s.own[METHOD] = {k: v for k, v in s.w.items() if k not in s.shared}
        return {METHOD: select(s.w, s.shared)}

    def personalize(self, s: Site) -> State:
        """All that prediction needs: what is evaluated, exported and served."""
        return {METHOD: s.w}

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        """A prediction of the task, probabilities [n, K] or numbers [n, d]; a pure function of the
        personal state. `net.predicted` makes one of an output."""
        return net.predicted(net(state[METHOD], x, want=net.logits)[net.logits])

    def views(self, net: Net, state: State, x: Tensor) -> dict[str, Tensor]:
        """Further predictions to score beside `predict`, by name (one head of several)."""
        return {}
