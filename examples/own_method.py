"""A method of one's own in one file, compared with two others on one's own data.

    python examples/own_method.py

The method shares the body and pulls every client's head gently towards zero. It needs no loop, no
aggregation and no file handling of its own, and `fedloom` already knows how to resume it.
"""

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

    def grads(self, g, s):
        return {k: v + self.mu * s.w[k] if k.startswith("head.") else v for k, v in g.items()}


def sites(count: int = 6, rows: int = 120) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every site measures the same eight quantities, and draws its own line through them."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=8)
    found = []
    for _ in range(count):
        x = rng.normal(size=(rows, 8)).astype(np.float32)
        y = (x @ (common + 0.8 * rng.normal(size=8)) > 0).astype(int)
        found.append((x, y))
    return found


if __name__ == "__main__":
    data = fl.FederatedData.from_clients(sites())
    compared = fl.compare(
        ["local", "fedavg", GentleHeads(mu=0.05)], data, seeds=[0, 1, 2], rounds=20, eval_every=20
    )
    for row in compared.rows:
        mean, deviation = row.over_seeds("accuracy")
        print(f"{row.label:24s} {100 * mean:.1f} ± {100 * deviation:.1f} %")
