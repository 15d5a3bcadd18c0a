"""What an honest-but-curious server makes of a round: the attacks of `benchmarks/leaks.py`.

The server follows the protocol, keeps every message, knows the run's settings and seed (it wrote
them) and the range of inputs, and has rows of its own from the same distribution (here the test
rows of the other clients). It changes nothing that it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom import analysis
from fedloom.core.data import ClientData, Split
from fedloom.core.message import Plan
from fedloom.core.net import METHOD
from fedloom.core.optimizers import make_optimizer
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.tree import State, Tree, WeightedSum

RANGE = (-1.0, 1.0)
"""Of inputs under `normalize=half`."""
MOST_UNITS = 8
"""Units of a dense layer behind convolutions whose features are inverted: the most plausible."""
PICTURES = analysis.Search(steps=300, lr=0.1, smooth=1e-2)
FEATURES = analysis.Search(steps=200, lr=0.1, smooth=1e-3)


@dataclass(frozen=True)
class Message:
    """What went down to a client in a round, and what came up; or the mean of all that came up."""

    plan: Plan
    cid: int
    down: State
    up: State
    n: int
    """Training rows of the client."""


@dataclass(frozen=True)
class Rows:
    """Inputs with labels."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, *splits: Split) -> Rows:
        x = torch.cat([s.x(torch.arange(len(s))) for s in splits])
        return cls(x.contiguous(), torch.cat([s.y for s in splits]))


class Head(NamedTuple):
    """A linear head on features with mean and deviation taken out."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.std @ self.weight.T + self.bias


@dataclass
class Curious:
    """The server of a run, with what it knows."""

    program: Program
    own_rows: Rows
    """Of the same distribution as the clients', and none of theirs."""
    heads: dict[int, tuple[Tree, Head]] = field(default_factory=dict)
    """Heads that it trained itself, with the model they are for, by its identity."""

    def __post_init__(self) -> None:
        self.net = self.program.nets[0]
        self.method, self.opt = self.program.method, self.program.method.opt
        self.classes = self.net.shape_of(self.net.logits)[-1]

    # ------------------------------------------------------------------ models

    def received(self, m: Message) -> Tree:
        """The model as the client received it; what it never sends is as it was at the start."""
        return {**self.net.tree(), **m.down.get(METHOD, {})}

    def trained(self, m: Message) -> Tree:
        """The model as the client sent it back."""
        return {**self.received(m), **m.up.get(METHOD, {})}

    def features(self, w: Tree, x: Tensor) -> Tensor:
        """What the head reads, without random draws."""
        if "gauss" in self.net.reads:
            return self._run(w, x, "gauss")[:, 0]
        return self._run(w, x, self.net.representation).flatten(1)

    def logits(self, w: Tree, x: Tensor, head_of: Tree | None = None) -> Tensor:
        """Of the head that was sent; where heads stay at home, of one that the server trains on
        the model's features of its own rows, or on another model's."""
        if self.sends_head:
            return self._run(w, x, self.net.logits)
        return self._own_head(w if head_of is None else head_of)(self.features(w, x))

    @property
    def sends_head(self) -> bool:
        return "head.bias" in self.program.shared(0) and "gauss" not in self.net.reads

    def _run(self, w: Tree, x: Tensor, stage: str) -> Tensor:
        stats = self.net.match("@stats")
        if stats <= self.program.shared(0):
            return self.net(w, x, want=stage)[stage]
        # Running statistics that stay at home are replaced by those of the rows themselves.
        fresh = {**w, **{k: w[k].clone() for k in stats}}
        return self.net(fresh, x, train=True, want=stage)[stage]

    def _own_head(self, w: Tree) -> Head:
        if id(w) in self.heads:
            return self.heads[id(w)][1]
        with torch.no_grad():
            z = self.features(w, self.own_rows.x)
        weight = torch.zeros(self.classes, z.shape[1], requires_grad=True)
        bias = torch.zeros(self.classes, requires_grad=True)
        head = Head(weight, bias, z.mean(0), z.std(0).clamp_min(1e-3))
        adam = make_optimizer([weight, bias], Opt("adam", lr=0.05))
        for _ in range(100):
            with torch.enable_grad():  # whoever asks for the head may not want gradients of his own
                loss = F.cross_entropy(head(z), self.own_rows.y) + 1e-3 * weight.square().sum()
            adam.step(torch.autograd.grad(loss, [weight, bias]))
        head = Head(*(tensor.detach() for tensor in head))
        self.heads[id(w)] = (w, head)  # the model too, or another could come to its identity
        return head

    # ------------------------------------------------------------------ labels

    def label_shares(self, m: Message) -> dict[str, Tensor]:
        """Estimated shares of classes, by attack."""
        found: dict[str, Tensor] = {}
        before, after = self.received(m), self.trained(m)
        extra = m.up.get(self.method.name, {})
        if "counts" in extra:
            found["counts"] = analysis.shares_of_counts(extra["counts"])
        if "precision" in extra:
            found["sums"] = self._shares_of_precisions(extra["precision"], after)
        if METHOD not in m.up:
            return found
        if self.sends_head:
            change = m.up[METHOD]["head.bias"] - before["head.bias"]
            moved = self.head_rate * self.head_steps(m.n)
            change = change + moved * self._pseudo_pull(m, (before, after))
            of_class = self._predictions((before, after))
            found["bias"] = analysis.shares_of_bias(change, moved, of_class)
        keys = self._trained_keys(m)
        update = torch.cat([(before[k] - after[k]).flatten() for k in keys])
        per_class = torch.stack(
            [self._class_gradient(k, (before, after), keys) for k in range(self.classes)]
        )
        found["update"] = analysis.shares_of_update(update, per_class)
        return found

    def steps(self, n: int) -> int:
        """Local steps of a round that trains the model."""
        if self.opt.steps:
            return self.opt.steps
        batches = n // self.opt.batch if self.opt.drop_last else -(-n // self.opt.batch)
        return self.opt.epochs * max(1, batches)

    def head_steps(self, n: int) -> int:
        if self.method.name != "fedpac":
            return self.steps(n)
        return max(1, -(-n // self.opt.batch))  # its phase of one epoch

    @property
    def head_rate(self) -> float:
        return getattr(self.method, "head_lr", None) or self.opt.lr

    def _shares_of_precisions(self, sums: Tensor, w: Tree) -> Tensor:
        """A class's sum over what one of its rows adds, as the server's own rows do."""
        with torch.no_grad():
            sigma = self._run(w, self.own_rows.x, "gauss")[:, 1]
        per_row = sigma.pow(-2).sum(1)
        one = torch.stack(
            [per_row[self.own_rows.y == k].mean() for k in range(self.classes)]
        ).nan_to_num(float(per_row.mean()))
        return analysis.shares_of_counts(sums.sum(1) / one)

    def _pseudo_pull(self, m: Message, models: Sequence[Tree]) -> Tensor:
        """What FedBR's pseudo-images, which the server sent, do to the bias in a step."""
        images = m.down.get("fedbr", {}).get("x")
        if images is None:
            return torch.zeros(self.classes)
        term = next(t for t in self.method.terms if t.name == "fedbr")
        with torch.no_grad():
            p = torch.stack([self.logits(w, images).softmax(1).mean(0) for w in models]).mean(0)
        return term.lam * (p - 1 / self.classes)

    def _predictions(self, models: Sequence[Tree]) -> Tensor:
        """Mean predictions [K, K] for rows of each class, halfway through a round."""
        x, y = self.own_rows.x, self.own_rows.y
        with torch.no_grad():
            p = torch.stack([self.logits(w, x).softmax(1) for w in models]).mean(0)
        uniform = torch.full((self.classes,), 1 / self.classes)
        return torch.stack(
            [p[y == k].mean(0) if (y == k).any() else uniform for k in range(self.classes)]
        )

    def _trained_keys(self, m: Message) -> list[str]:
        path = set(self.net.path_to(self.net.logits))
        return [
            k
            for k in m.up[METHOD]
            if k in self.net.params
            and k.split(".")[0] in path
            and (self.sends_head or "head" not in k)
        ]

    def _class_gradient(self, k: int, models: Sequence[Tree], keys: Sequence[str]) -> Tensor:
        chosen = self.own_rows.y == k
        x, y = self.own_rows.x[chosen], self.own_rows.y[chosen]
        if not len(y):
            return torch.zeros(sum(models[0][key].numel() for key in keys))
        both = [torch.cat([g.flatten() for g in self.gradient(w, keys, x, y)]) for w in models]
        return torch.stack(both).mean(0).detach()

    def gradient(
        self, w: Tree, keys: Sequence[str], x: Tensor, y: Tensor, graph: bool = False
    ) -> tuple[Tensor, ...]:
        """Of the cross-entropy, by tensors of the model."""
        leaves = {k: w[k].detach().clone().requires_grad_(True) for k in keys}
        loss = F.cross_entropy(self.logits({**w, **leaves}, x, head_of=w), y)
        return torch.autograd.grad(loss, list(leaves.values()), create_graph=graph)

    # ------------------------------------------------------------------ rows

    def rows(self, m: Message, history: Sequence[Message]) -> dict[str, Tensor]:
        """Reconstructed inputs, by attack; `history` are the client's earlier messages."""
        found: dict[str, Tensor] = {}
        if METHOD in m.up:
            found["dense layer"] = self._rows_of_dense_layer(m)
            if self.steps(m.n) == 1:
                found["search"] = self._searched(m)
        if "fedbr" in m.up and "x" in m.up["fedbr"]:
            found["means"] = self._rows_of_means([*history, m])
        if (wanted := self._prototypes(m)) is not None:
            w = self.trained(m)
            found["prototypes"] = analysis.invert_features(
                lambda x: self.features(w, x), wanted, self.net.shape, FEATURES
            ).rows
        return found

    def _rows_of_dense_layer(self, m: Message) -> Tensor:
        """Of the first dense layer; behind convolutions, inputs with the features it read."""
        body = self.net.body
        place = next(i for i, layer in enumerate(body) if isinstance(layer, nn.Linear))
        before, after = self.received(m), self.trained(m)
        weight, bias = (
            after[k] - before[k] for k in (f"body.{place}.weight", f"body.{place}.bias")
        )
        if not float(bias.abs().max()):
            return torch.zeros(0, *self.net.shape)
        if not any(isinstance(layer, nn.Conv2d) for layer in body[:place]):
            ratios = analysis.rows_of_dense_layer(weight, bias, *RANGE)
            return ratios.float().view(-1, *self.net.shape)
        ratios = analysis.rows_of_dense_layer(weight, bias, low=0.0, most=MOST_UNITS).float()
        first = body[:place].eval()
        names = [name for name, _ in (*first.named_parameters(), *first.named_buffers())]
        weights = {name: before[f"body.{name}"] for name in names}
        return analysis.invert_features(
            lambda x: torch.func.functional_call(first, weights, (x,)),
            ratios,
            self.net.shape,
            FEATURES,
        ).rows

    def _searched(self, m: Message) -> Tensor:
        """Images whose gradient points where the update of one step does, with labels as they
        leaked."""
        before, after, keys = self.received(m), self.trained(m), self._trained_keys(m)
        count = min(self.opt.batch, m.n)
        shares = self.label_shares(m)
        y = analysis.labels_of_shares(next(iter(shares.values())), count)
        update = [before[k] - after[k] for k in keys]
        if not any(float(u.abs().max()) for u in update):
            return torch.zeros(0, *self.net.shape)
        return analysis.invert_update(
            lambda x: self.gradient(before, keys, x, y, graph=True),
            update,
            count,
            self.net.shape,
            PICTURES,
        ).rows

    def _rows_of_means(self, messages: Sequence[Message]) -> Tensor:
        """FedBR's means are of rows that the seed tells; all means so far are one linear system."""
        term = next(t for t in self.method.terms if t.name == "fedbr")
        means, members = [], []
        for m in messages:
            if "x" not in m.up.get("fedbr", {}):
                continue
            x = m.up["fedbr"]["x"].flatten(1)
            gen = m.plan.gen(m.cid, term.name)
            drawn = torch.multinomial(
                torch.ones(m.n), len(x) * term.of, replacement=True, generator=gen
            ).view(len(x), term.of)
            means.append(x)
            members += [torch.bincount(rows, minlength=m.n) for rows in drawn]
        solved = analysis.rows_of_means(torch.cat(means), torch.stack(members))
        return solved.rows.float().view(-1, *self.net.shape)

    def _prototypes(self, m: Message) -> Tensor | None:
        """Mean features that were sent: per class, or one of all rows."""
        extra = m.up.get(self.method.name, {})
        if "centroids" in extra:
            return extra["centroids"][analysis.present_classes(extra["centroids"])]
        if "precision" in extra:
            there = analysis.present_classes(extra["precision"])
            return (extra["precision_mean"] / extra["precision"].clamp_min(1e-12))[there]
        if "mean" in m.up.get("mean_regularization", {}):
            return m.up["mean_regularization"]["mean"].flatten()[None]
        return None

    # ------------------------------------------------------------------ members

    def membership_scores(
        self, m: Message, others: Sequence[Message], rows: Rows
    ) -> dict[str, Tensor]:
        """A score of every row, by attack; the other clients' models of the round are models that
        never saw the row in it."""
        before, after = self.received(m), self.trained(m)
        with torch.no_grad():
            start = analysis.log_odds(self.logits(before, rows.x), rows.y)
            own = analysis.log_odds(self.logits(after, rows.x), rows.y)
            moved = (self.features(after, rows.x) - self.features(before, rows.x)).norm(dim=1)
            references = [
                analysis.log_odds(self.logits(self.trained(o), rows.x), rows.y) for o in others
            ]
        scores = {"loss": own, "less before": own - start, "moved features": moved.double()}
        if references:
            scores["likelihood ratio"] = analysis.likelihood_ratio(own, torch.stack(references, 1))
        return scores


def mean_message(messages: Sequence[Message], weight: Callable[[Message], float]) -> Message:
    """What secure aggregation shows of a round: the mean alone, of all clients' rows together."""
    first = messages[0]
    state: State = {}
    for name in first.up:
        total = WeightedSum()
        for m in messages:
            total.fold(m.up[name], weight(m))
        state[name] = total.mean()
    return Message(first.plan, -1, first.down, state, sum(m.n for m in messages))


def strongest(by_attack: Mapping[str, Sequence[float]], half: Sequence[bool]) -> tuple[str, str]:
    """The attacks that do best on the one half of clients, and on the other: each is then scored on
    the half that it was not chosen on."""

    def best(of: bool) -> str:
        means = {
            name: sum(v for v, h in zip(values, half, strict=True) if h is of)
            for name, values in by_attack.items()
        }
        return max(means, key=lambda name: means[name])

    return best(True), best(False)


def client_rows(data: ClientData) -> tuple[Rows, Rows]:
    """Members and others of one distribution: the client's training and test rows."""
    assert data.test is not None
    return Rows.of(data.train), Rows.of(data.test)
