"""A method made ready to run: the net extended by every part, the composition checked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from fedloom.core.aggregation import MEAN, Aggregation
from fedloom.core.compression import NONE, RESIDUAL, Compression, compressible
from fedloom.core.frozen import FROZEN, Frozen, frozen_keys
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.hostile import Hostile
from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.optimizers import OPTIMIZER
from fedloom.core.outputs import FrozenOutputs
from fedloom.core.phase import Phase, tuning
from fedloom.core.privacy import Privacy
from fedloom.core.rng import generator, rng_scope
from fedloom.core.secure.setting import Pairwise, check_hidden
from fedloom.core.secure.slices import SECURE
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.settings import SERVER_KEYS
from fedloom.core.task import WHAT, Classification, Task
from fedloom.core.term import Term
from fedloom.errors import BadInput


class Program:
    """What is the same in every process of a run: method, nets, task, seed, number of clients.

    Several nets are dealt to the clients in turn (methods that exchange no weights allow unlike
    bodies); the shared tensors must then agree in shape. `head_epochs` and `newcomer_epochs` are
    the protocol's: how clients get ready for their tests.
    """

    adapt: tuple[Phase, ...]
    """Fine-tuning before a test: the method's, or what the protocol puts in its place."""
    frozen: Frozen
    """What nobody trains. Where clients have unlike networks, each keeps all of its own."""
    outputs: FrozenOutputs
    """Of the first stages, where nobody trains them."""
    aggregation: Aggregation
    """What the server makes of the uploads: the mean, or a rule that bears hostile ones."""
    privacy: Privacy | None
    """What noise hides of clients or rows."""
    compression: Compression
    """How the model's change is written in an upload."""
    hostile_clients: frozenset[int]
    """Ids of clients that work against the run, to see what it bears."""
    secure: Pairwise | None
    """How uploads are masked, if they are."""
    masks: bool = True
    """False: uploads have the form of masked ones and no mask, to play a run with made-up rows."""
    system_secrets: bool = False
    """Clients take their secrets from the operating system; in a simulation they follow from the
    seed, so that it can be repeated, and are none."""

    def __init__(
        self,
        method: Method,
        nets: Net | Sequence[Net],
        clients: int,
        seed: int = 0,
        task: Task | None = None,
        *,
        head_epochs: int = 0,
        newcomer_epochs: int | None = None,
        aggregation: Aggregation = MEAN,
        compression: Compression = NONE,
        hostile: Hostile | None = None,
        secure: Pairwise | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.aggregation, self.compression, self._hostile = aggregation, compression, hostile
        self.secure, self.privacy = secure, privacy
        if secure is not None:
            check_hidden(method, aggregation, compression)
        self.hostile_clients = hostile.members(clients, seed) if hostile else frozenset[int]()
        self.method, self.clients, self.seed = method, clients, seed
        self.task: Task = task or Classification()
        check_composition(method)
        check_task(method, self.task)
        self.nets = [copy.deepcopy(n) for n in ([nets] if isinstance(nets, Net) else nets)]
        for net in self.nets:
            net.predicted = self.task.predict
            for part in method.parts:
                owner = METHOD if part is method else part.name
                with (
                    rng_scope(seed, "extend", part.name),
                    net.adding_for(owner),
                    naming_hooks("before the run"),
                ):
                    part.extend(net, clients)
            _check_pattern("shared", method.shared, net)
        if privacy is not None:
            privacy.check(method, self.nets)
        with naming_hooks("before the run"):
            self._shared = [method.shared_keys(net) for net in self.nets]
        self._check_nets()
        self._prepare_tests(head_epochs, newcomer_epochs)
        keys = frozenset[str]()
        if len(self.nets) == 1:
            keys = frozen_keys(self.nets[0], (*method.phases, *self.adapt))
        self.frozen = Frozen(self.nets[0], keys)
        self.outputs = FrozenOutputs(self.nets[0], self.frozen)
        self._check_compression()
        self._check_masks()

    def tested_after(self, head_epochs: int, newcomer_epochs: int | None) -> Program:
        """The same training with another preparation for tests."""
        other = copy.copy(self)
        other._prepare_tests(head_epochs, newcomer_epochs)
        return other

    def joined_after(self, epochs: int, lr: float | None = None) -> Program:
        """The same for a newcomer who trains so many epochs, at another learning rate if one is
        given. It remembers no outputs: the newcomer's rows are none of the run's."""
        other = copy.copy(self)
        if lr is not None:
            other.method = replace(self.method, opt=replace(self.method.opt, lr=lr))
        other._prepare_tests(self.head_epochs, epochs)
        other.outputs = FrozenOutputs(self.nets[0], self.frozen, self.outputs.budget)
        return other

    def _prepare_tests(self, head_epochs: int, newcomer_epochs: int | None) -> None:
        self.head_epochs, self.newcomer_epochs = head_epochs, newcomer_epochs
        self.adapt = self._head_tuning() if head_epochs else self.method.adapt

    def without_masks(self) -> Program:
        """The same to be played with made-up rows: what clients send has only its form."""
        other = copy.copy(self)
        other.masks = False
        return other

    def hostile_at(self, cid: int) -> Hostile | None:
        """What the client does against the run, if anything."""
        return self._hostile if cid in self.hostile_clients else None

    def net(self, cid: int) -> Net:
        """The client's network."""
        return self.nets[cid % len(self.nets)]

    def shared(self, cid: int) -> frozenset[str]:
        """Model keys that may leave this client."""
        return self._shared[cid % len(self.nets)]

    def schedule(self, rounds: int) -> list[Plan]:
        """The run, as a list of plans: the method's, then the final adaptation if there is one."""
        with naming_hooks("before the run"):
            plans = self.method.schedule(rounds)
        if self.adapt:
            plans = [*plans, Plan(rounds + 1, "adapt", METHOD, "all")]
        return [replace(p, seed=self.seed, clients=self.clients) for p in plans]

    def cohort(
        self, plan: Plan, participation: float, present: Sequence[int] | None = None
    ) -> list[int]:
        """Who takes part in a round: a seeded sample in id order, at least one client.

        It is drawn from the clients that are present (by default all); its size is the share of
        all clients.
        """
        candidates = range(self.clients) if present is None else present
        k = max(1, round(participation * self.clients))
        if plan.cohort == "all" or k >= len(candidates):
            return list(candidates)
        order = torch.randperm(len(candidates), generator=generator(self.seed, plan.t, "cohort"))
        return sorted(candidates[i] for i in order[:k].tolist())

    def owner(self, plan: Plan) -> Term:
        """The part a special round belongs to."""
        return next(p for p in self.method.parts if p.name == plan.part)

    @cached_property
    def writers(self) -> dict[str, str]:
        """Slice -> the part that may write it."""
        of_method = {METHOD: self.method.name, OPTIMIZER: self.method.name}
        if self.compression.feeds_back:
            of_method[RESIDUAL] = self.method.name
        return of_method | {p.name: p.name for p in self.method.parts}

    def global_model_missing(self) -> str:
        """Why there is no global model; empty if there is one."""
        if self.method.no_global:
            return self.method.no_global
        net, shared = self.nets[0], self._shared[0]
        path = set(net.path_to(net.logits))
        needed = {k for k in net.keys if stage_of(k) in path and net.owner[stage_of(k)] == METHOD}
        personal = sorted(needed - shared)
        return f"{personal[0]!r} stays with the clients" if personal else ""

    def keeps_personal_model(self) -> bool:
        """Do clients hold unlike models: own parameters, or a model made for each of them?

        Of a term's stages only those count that a prediction passes through.
        """
        if self.method.personal_model:
            return True
        net, shared = self.nets[0], self._shared[0]
        path = set(net.path_to(net.logits))
        return any(
            stage_of(k) in path or net.owner[stage_of(k)] == METHOD for k in net.params - shared
        )

    def _head_tuning(self) -> tuple[Phase, ...]:
        """The protocol's epochs of the head alone."""
        heads = self.method.head_pattern
        for net in self.nets:
            if not net.match(heads) & net.params:
                raise BadInput(
                    f"{self.method.name} makes its predictions without a head that could be"
                    f" trained, so head_epochs = {self.head_epochs} has no meaning; set"
                    " head_epochs=0"
                )
        return tuning(heads, self.head_epochs)

    def _check_compression(self) -> None:
        """There is something to compress: else whoever set it would wait for smaller uploads."""
        net = self.nets[0]
        trained = (self._shared[0] & net.params) - self.frozen.keys
        if self.compression != NONE and not any(
            compressible(net.initial[key], net.initial[key]) for key in trained
        ):
            raise BadInput(
                f"compression = {self.compression} makes a model's change smaller, and"
                f" {self.method.name} shares no parameters of this one that would pay; leave it out"
            )

    def _check_masks(self) -> None:
        """Something is sent: else whoever set `secure_aggregation` believes it is at work."""
        hooks = ("finish", "special")
        beside = any(term.overrides(hook) for term in self.method.terms for hook in hooks)
        own = any(getattr(type(self.method), h) is not getattr(Method, h) for h in hooks)
        if self.secure is not None and not (any(self._shared) or beside or own):
            raise BadInput(
                f"{self.method.name} sends nothing, so secure_aggregation has nothing to mask;"
                " leave it out"
            )

    def _check_nets(self) -> None:
        first = self.nets[0]
        for term in self.method.terms:
            if missing := sorted(first.match(term.requires) - self._shared[0]):
                raise BadInput(
                    f"{term.name} needs {missing[0]!r} to be shared, but {self.method.name} keeps"
                    " it with the clients; use it with a method that shares it"
                )
        for net, shared in zip(self.nets, self._shared, strict=True):
            for k in shared:
                if k not in first.initial or net.initial[k].shape != first.initial[k].shape:
                    raise BadInput(
                        f"the clients' models differ in the shared tensor {k!r}; unlike models need"
                        " a method that shares none of their weights"
                    )


def _check_pattern(what: str, pattern: str, net: Net) -> None:
    """A word that matches nothing is a misspelling; a word that leaves out nothing does no harm."""
    for word in pattern.split():
        if not word.startswith(("!", "@")) and not net.match(word):
            stages = ", ".join(net.reads)
            raise BadInput(f"{what}: {word!r} matches no tensor; the stages are {stages}")


def check_task(method: Method, task: Task) -> None:
    """Every part finds in the task what it needs."""
    for part in method.parts:
        for need in part.needs:
            if need not in task.provides:
                raise BadInput(
                    f"{part.name} needs {WHAT[need]}, and the task {str(task)!r} has none; choose"
                    " another method, or another task"
                )


def check_composition(method: Method) -> None:
    """Names are unique, no part refuses another, and a server optimiser would do something."""
    names = [p.name for p in method.parts]
    for name in names:
        if name in (METHOD, OPTIMIZER, FROZEN, RESIDUAL, SECURE):
            raise BadInput(f"no part can be called {name!r}, which names a slice; rename it")
        if names.count(name) > 1:
            raise BadInput(f"{name!r} appears twice in the sum; use it once")
    for part in method.parts:
        for other in part.refuses:
            if other in names:
                raise BadInput(f"{part.name} and {other} cannot be combined; leave one out")
    own_aggregate = type(method).aggregate is not Method.aggregate
    if own_aggregate and not method.passes_on_average:
        for key, name in SERVER_KEYS.items():
            if (value := getattr(method.server, name)) != getattr(ServerOpt(), name):
                raise BadInput(
                    f"{method.name} makes the server's model in its own way and takes no server"
                    f" optimiser; leave out {key} = {value}"
                )
