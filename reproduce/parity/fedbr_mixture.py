"""FedBR with mixed pseudo-images (Algorithm 3) against LINs-lab/FedBR."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from reproduce.parity import fedbr
from reproduce.parity.harness import Deviation, federation

METHOD = fedbr.METHOD.replace("steps=4", "steps=1")
PUBLISHED = fedbr.PUBLISHED + ", pseudo=mixture, proxy=digits"


def network() -> Net:
    """For images as large as the proxy's."""
    with rng_scope("parity", "net"):
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, fedbr.WIDTH), nn.ReLU())
        return Net((1, 8, 8), body=body, head=nn.Linear(fedbr.WIDTH, fedbr.CLASSES))


PARITY = replace(
    fedbr.PARITY,
    method=METHOD.format(PUBLISHED),
    wrong=(
        METHOD.format(PUBLISHED + ", mix=2"),
        METHOD.format(PUBLISHED + ", lam=0.9"),
        METHOD.format(PUBLISHED.replace("multiply=true", "multiply=false")),
    ),
    data=federation((14, 11, 17), fedbr.CLASSES, (1, 8, 8), held=[(0, 1, 2), (1, 2, 3), (0, 3)]),
    net=network,
    theirs=partial(fedbr.theirs, mixture=True),
    deviations=(
        *(d for d in fedbr.PARITY.deviations if "number" not in d.what and "mixture" not in d.what),
        Deviation(
            what="the received model's features",
            paper="of the same mixture as the local model's",
            code="of the first step's mixture, at all steps",
            flag="steps=1: fedloom has no flag for it",
        ),
    ),
)
