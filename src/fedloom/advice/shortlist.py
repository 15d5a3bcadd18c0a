"""Which methods are worth trying on a partition, and why: from the simplest to the most involved.

Three are always tried, because they are what every other method has to beat. The others depend on
how clients differ, as far as that shows before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.advice.check import Checked
from fedloom.core.method import Method
from fedloom.errors import FedloomError
from fedloom.methods import parse_method
from fedloom.runs.experiment import Experiment, Model

ALONE, ONE_MODEL, FINE_TUNED, PERSONAL_HEAD, PERSONAL_FEATURES, OWN_MODEL, CLUSTERS = (
    *("alone", "one model", "one model, fine-tuned", "personal head", "personal features"),
    *("own model near the common one", "clusters"),
)
"""Kinds of methods: what is shared, and what is a client's own."""
LOCAL = "local"
LEAST_FOR_CLUSTERS = 4
"""Clients; two or three are no clusters."""


@dataclass(frozen=True)
class Candidate:
    """A method of the short list."""

    method: str
    kind: str
    why: str


@dataclass(frozen=True)
class Facts:
    """What of a partition decides the list."""

    clients: int
    labels_differ: bool
    features_differ: bool
    has_classes: bool
    median_rows: int
    """Training rows of the median client."""

    @classmethod
    def of(cls, checked: Checked) -> Facts:
        """The facts of a page."""
        assert checked.label_skew is not None
        assert checked.feature_skew is not None
        sizes = sorted(client.train for client in checked.clients)
        return cls(
            clients=len(sizes),
            labels_differ=checked.label_skew.clear,
            features_differ=checked.feature_skew.clear,
            has_classes=checked.targets == "classes",
            median_rows=sizes[len(sizes) // 2],
        )

    @property
    def differ(self) -> bool:
        """In anything that shows."""
        return self.labels_differ or self.features_differ

    @property
    def how(self) -> str:
        """In words."""
        parts = [("labels", self.labels_differ), ("features", self.features_differ)]
        return " and ".join(what for what, unlike in parts if unlike)


@dataclass(frozen=True)
class _Rule:
    method: str
    kind: str
    wanted: Callable[[Facts], bool]
    why: str
    """`{how}` and `{rows}` stand for how clients differ and how many rows they have."""


def _always(facts: Facts) -> bool:
    return True


_RULES = (
    _Rule(LOCAL, ALONE, _always, "what a client reaches by itself: the measure of taking part"),
    _Rule("fedavg", ONE_MODEL, _always, "one model for all: enough where clients are alike"),
    _Rule(
        "fedavg_ft", FINE_TUNED, _always, "one model that every client tunes: the simplest own one"
    ),
    _Rule(
        "fedper",
        PERSONAL_HEAD,
        _always,
        "a personal head on a common body, where {rows} rows are few to learn features from",
    ),
    _Rule(
        "fedrep",
        PERSONAL_HEAD,
        lambda facts: facts.differ,
        "as fedper, with head and body trained in turn, since {how} differ",
    ),
    _Rule(
        "fedbn",
        PERSONAL_FEATURES,
        lambda facts: facts.features_differ,
        "personal BatchNorm layers take up a shift of the features",
    ),
    _Rule(
        "fedavg + dbe",
        PERSONAL_FEATURES,
        lambda facts: facts.differ,
        "a personal bias of the representation takes up what is a client's own, since {how} differ",
    ),
    _Rule(
        "ditto",
        OWN_MODEL,
        lambda facts: facts.differ,
        "a model of one's own, held near the common one, since {how} differ",
    ),
    _Rule(
        "hypcluster",
        CLUSTERS,
        lambda facts: facts.features_differ and facts.clients >= LEAST_FOR_CLUSTERS,
        "rows of one class differ between clients, who may form groups",
    ),
    _Rule(
        "fedpac",
        PERSONAL_HEAD,
        lambda facts: facts.has_classes and facts.differ,
        "aligned features, and heads combined of those of similar clients, since {how} differ",
    ),
    _Rule(
        "fedcr",
        PERSONAL_HEAD,
        lambda facts: facts.has_classes and facts.labels_differ,
        "features of one class pulled together across clients, since labels differ",
    ),
    _Rule(
        "dualfed",
        PERSONAL_HEAD,
        lambda facts: facts.has_classes and facts.features_differ,
        "a common and a personal representation one after the other, since features differ",
    ),
)


@dataclass(frozen=True)
class Shortlist:
    """The methods to try, simplest first, and those that were left out although they fit."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Method and reason."""

    @property
    def methods(self) -> list[str]:
        """As expressions."""
        return [one.method for one in self.candidates]

    def kind(self, method: str) -> str:
        """Of a method on the list."""
        return next(one.kind for one in self.candidates if one.method == method)


def shortlist(checked: Checked, own: Sequence[str], model: Model | None) -> Shortlist:
    """The methods that suit the data, or the caller's `own` and the three that are always tried;
    without those that refuse the task or the network."""
    facts = Facts.of(checked)
    if own:
        always = [rule.method for rule in _RULES[:3]]
        wanted = [_named(m) for m in dict.fromkeys([*always, *own])]
    else:
        wanted = [_filled(rule, facts) for rule in _RULES if rule.wanted(facts)]
    kept, left_out = [], []
    for candidate in wanted:
        try:
            config = checked.config.changed(method=candidate.method, out=None)
            Experiment.build(config, None, checked.federated, model)
            kept.append(candidate)
        except FedloomError as e:
            if candidate.method in own:
                raise
            left_out.append((candidate.method, str(e)))
    return Shortlist(tuple(kept), tuple(left_out))


def _filled(rule: _Rule, facts: Facts) -> Candidate:
    why = rule.why.format(how=facts.how, rows=facts.median_rows)
    return Candidate(rule.method, rule.kind, why)


def _named(method: str) -> Candidate:
    """A method that the caller names, or one that is always tried."""
    for rule in _RULES:
        if rule.method == method:
            always = rule in _RULES[:3]
            return Candidate(method, rule.kind, rule.why if always else "named by you")
    parsed: Method = parse_method(method)
    return Candidate(method, parsed.family or "of its own", "named by you")


def describe(listed: Shortlist) -> list[dict[str, Any]]:
    """In JSON's types."""
    return [{"method": c.method, "kind": c.kind, "why": c.why} for c in listed.candidates]
