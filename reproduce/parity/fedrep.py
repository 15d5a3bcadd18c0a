"""FedRep against lgcollins/FedRep: the shared body and every client's head, also tuned."""

from __future__ import annotations

from dataclasses import replace

from reproduce.parity.harness import Deviation
from reproduce.parity.lgcollins_fedrep import TRAINING, WEIGHTS, compared

METHOD = "fedrep({}, body_epochs=1, adapt_epochs=10, " + TRAINING + ")"
PARITY = compared(
    method=METHOD.format("head_epochs=2, weighting=uniform"),
    wrong=(
        METHOD.format("head_epochs=2"),
        METHOD.format("head_epochs=3, weighting=uniform"),
        METHOD.format("head_epochs=2, weighting=uniform, head_lr=0.09"),
    ),
    algorithm="fedrep",
    local_epochs=3,
    deviations=(
        replace(WEIGHTS, paper="the same for every client"),
        Deviation(
            what="momentum of frozen tensors",
            paper="the head does not move while the body is trained",
            code="one optimiser for both; with torch before 2.0, whose zero_grad leaves zeros, the"
            " frozen head goes on by its momentum",
            flag="torch 2, under which the program holds the head fixed",
        ),
    ),
)
