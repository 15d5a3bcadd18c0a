"""Rows from the features of a convolutional network, with settings that the default policy permits.

    PYTHONPATH=tests/policy python attacks/convolution_features.py

An honest server reads the layer behind the convolutions: a unit that fires for one row alone sends
that row's features (docs/policy.md says so). With more features than pixels they have one row that
makes them, which is found by least squares.
"""

from __future__ import annotations

import torch
from test_policy_attacks import answer, experiment, refused, rows
from torch import Tensor
from torch.nn import functional

HONEST = {"batch_size": 10, "drop_last": True, "epochs": 1, "lr": 0.01}
MODELS = (
    "small_cnn(channels=[64], hidden=1000)",
    "small_cnn(channels=[64], hidden=1000, norm=batch)",
)


def features(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of the network's one convolution."""
    return functional.max_pool2d(
        functional.conv2d(images, weight, bias, padding=1).relu(), 2
    ).flatten(1)


def sent_features(before: dict[str, Tensor], after: dict[str, Tensor]) -> Tensor:
    """Ratios that could be features: none of those is below zero."""
    weight = next(k for k, v in after.items() if k.startswith("body") and v.dim() == 2)
    bias = weight.replace("weight", "bias")
    weights = after[weight].double() - before[weight].double()
    biases = after[bias].double() - before[bias].double()
    moved = biases.abs() > 1e-5
    ratios = weights[moved] / biases[moved][:, None]
    possible = (ratios > -1e-2 * ratios.abs().amax(1, keepdim=True)).all(1)
    return ratios[possible]


def inverted(wanted: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Images with these features, and how well they have them."""
    images = torch.zeros(len(wanted), 1, 8, 8, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([images], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        off = (features(images, weight, bias) - wanted).square().sum(1)
        off.sum().backward()
        optimizer.step()
    return images.detach().flatten(1), off.detach().sqrt() / wanted.norm(dim=1)


def main() -> None:
    torch.manual_seed(0)
    for model in MODELS:
        attack = experiment(model=model, **HONEST)
        print(model, "refused by:", refused(attack) or "nothing")
        before, up = answer(attack)
        wanted = sent_features(before, up.state["model"])
        print(
            f"  {len(rows(attack))} rows, {len(wanted)} units send what may be one row's features"
        )
        if not len(wanted):
            continue
        images, off = inverted(
            wanted, before["body.0.weight"].double(), before["body.0.bias"].double()
        )
        known = rows(attack)
        distance = torch.cdist(images, known) / known.norm(dim=1)
        nearest, which = distance.min(1)
        for bound in (0.01, 0.05, 0.1):
            print(f"  to {bound:.0%}: {len(set(which[nearest < bound].tolist()))} rows")
        print(f"  best {nearest.min():.1e}, fits {off.min():.1e}")


if __name__ == "__main__":
    main()
