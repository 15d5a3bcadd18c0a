"""A method of one's own in one file, compared with two others on one's own data.

    python examples/own_method.py

The method shares the body and pulls every client's head gently towards zero. It needs no loop, no
aggregation and no file handling of its own. The command line finds it too, and resumes its runs:

    fedloom run --import examples/own_method.py --method 'gentle_heads(mu=0.05)'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedloom as fl


@fl.register
@dataclass(frozen=True, kw_only=True)
class GentleHeads(fl.Method):
    """FedPer whose personal heads are kept small: g <- g + mu * head."""

    name: ClassVar[str] = "gentle_heads"
    shared: str = "* !head.*"
    mu: float = 0.01

    def grads(self, g: fl.Tree, s: fl.Site) -> fl.Tree:
        return {k: v + self.mu * s.w[k] if k.startswith("head.") else v for k, v in g.items()}


def hospitals(count: int = 6, rows: int = 120) -> fl.FederatedData:
    """Every site measures the same eight quantities, and draws its own line through them."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=8)
    sites = []
    for _ in range(count):
        x = rng.normal(size=(rows, 8)).astype(np.float32)
        y = (x @ (common + 0.8 * rng.normal(size=8)) > 0).astype(int)
        sites.append((x, y))
    return fl.FederatedData.from_clients(sites)


if __name__ == "__main__":
    mine = GentleHeads(mu=0.05)
    comparison = fl.compare(
        ["local", "fedavg", mine], hospitals(), seeds=[0, 1, 2], rounds=20, eval_every=20
    )
    for row in comparison.rows:
        print(f"{row.label:24s} {100 * row.accuracy:.1f} ± {100 * (row.deviation or 0):.1f} %")
