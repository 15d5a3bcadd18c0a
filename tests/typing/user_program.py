"""A researcher's program: a term and a method of one's own, compared with others and stopped early.

It is part of the tests: it runs, `mypy --strict` accepts it, and a misspelt name in it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import fedloom as fl


@fl.register
@dataclass(frozen=True)
class SmallHeads(fl.Term):
    """Pulls the head towards zero: g <- g + mu * w."""

    name: ClassVar[str] = "small_heads"
    mu: float = 0.01

    def grads(self, g: fl.Tree, s: fl.Site) -> fl.Tree:
        return {k: v + self.mu * s.w[k] if k.startswith("head.") else v for k, v in g.items()}

    def _size(self, tree: fl.Tree) -> float:
        return sum(float(v.norm()) for k, v in tree.items() if k.startswith("head."))

    def finish(self, s: fl.Site) -> fl.State:
        s.own[self.name] = {"size": torch.tensor(self._size(s.w))}
        return {}


@fl.register
@dataclass(frozen=True, kw_only=True)
class WarmHeads(fl.Method):
    """Trains a personal head before the shared body; clients with more classes weigh more."""

    name: ClassVar[str] = "warm_heads"
    family: ClassVar[str] = "personal layers"
    shared: str = "* !head.*"
    head_epochs: int = 2
    smoothing: float = 0.1

    @property
    def phases(self) -> tuple[fl.Phase, ...]:
        return fl.Phase("head", "head.*", epochs=self.head_epochs), fl.Phase("body", "body.*")

    def inputs(self, b: fl.Batch, s: fl.Site) -> None:
        hard = torch.nn.functional.one_hot(b.y, s.data.classes).float()
        b.target = (1 - self.smoothing) * hard + self.smoothing / s.data.classes

    def loss(self, b: fl.Batch, s: fl.Site) -> Tensor:
        features = b.out[s.net.feature]
        return super().loss(b, s) + 1e-3 * features.square().mean()

    def finish(self, s: fl.Site) -> fl.State:
        return super().finish(s) | {self.name: {"classes": (s.counts > 0).sum().float()}}

    def weight(self, r: fl.Round, cid: int, up: fl.Up) -> float:
        return up.n * float(up.state[self.name]["classes"])

    def aggregate(self, r: fl.Round) -> fl.State:
        r.notes[self.name] = {"clients": len(r.ups), "round": r.plan.t}
        return super().aggregate(r)


class Patience(fl.Watcher):
    """Stops when the training loss has not fallen for some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.best: list[float] = []

    def step(self, run: fl.RunView, record: fl.RoundRecord) -> fl.Stop | None:
        losses = [past.loss for past in run.records if past.loss is not None]
        self.best.append(min(losses))
        if len(self.best) > self.rounds and self.best[-1] == self.best[-1 - self.rounds]:
            return fl.Stop(f"no progress since round {record.round - self.rounds}")
        return None


def hospitals(count: int = 4, rows: int = 60) -> fl.FederatedData:
    """Every site measures the same eight quantities, and draws its own line through them."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=8)
    sites = []
    for _ in range(count):
        x = rng.normal(size=(rows, 8)).astype(np.float32)
        y = (x @ (common + 0.8 * rng.normal(size=8)) > 0).astype(np.int64)
        sites.append((x, y))
    return fl.FederatedData.from_clients(sites)


def main() -> None:
    data = hospitals()
    mine = WarmHeads(head_epochs=1) + SmallHeads(mu=0.05)
    result: fl.Result = fl.run(mine, data, rounds=40, lr=0.5, watchers=[Patience(rounds=2)])
    summary: fl.Summary = result.summary
    print(f"{summary.method}: {100 * result.accuracy:.1f} % after {summary.rounds} rounds")
    print("stopped:", summary.stopped)
    print("worst client:", min(summary.result.by_client().values()))

    judged = fl.Protocol(moment="trained", also=("received",))
    budget: fl.RunSettings = {"rounds": 3, "eval_every": 3, "lr": 0.1, "protocol": judged}
    comparison = fl.compare(["local", fl.FedPer(), mine], data, seeds=[0, 1], **budget)
    for row in comparison.rows:
        print(f"{row.label}: {100 * row.accuracy:.1f} %, seeds {row.accuracies}")

    same = fl.analysis.linear_cka(torch.eye(4), torch.eye(4))
    print(f"CKA {same.value:.1f}, fedloom {fl.__version__}")
    try:
        fl.run("fedavgg")
    except fl.UnknownName as error:
        print(error)


if __name__ == "__main__":
    main()
