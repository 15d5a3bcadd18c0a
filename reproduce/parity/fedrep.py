"""FedRep against lgcollins/FedRep: the shared body and every client's head, also tuned."""

from __future__ import annotations

from dataclasses import replace

from fedloom.core.tree import Tree
from reproduce.parity.driving import matching, models_and_tuned, without_bias
from reproduce.parity.harness import Deviation, Parity, Recorded, federation
from reproduce.parity.lgcollins_fedrep import (
    BIASES,
    COMMIT,
    LATECOMERS,
    REPOSITORY,
    TRAINING,
    WEIGHTS,
    drive,
)

METHOD = "fedrep({}, body_epochs=1, adapt_epochs=10, " + TRAINING + ")"


def theirs(recorded: Recorded) -> list[Tree]:
    """Their script; the server's mean of the heads, which nobody receives, is left out."""
    return matching(drive(recorded, "fedrep", local_epochs=3), models_and_tuned(recorded))


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("head_epochs=2, weighting=uniform"),
    wrong=(
        METHOD.format("head_epochs=2"),
        METHOD.format("head_epochs=3, weighting=uniform"),
        METHOD.format("head_epochs=2, weighting=uniform, head_lr=0.09"),
    ),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=without_bias,
    ours=models_and_tuned,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    deviations=(
        replace(WEIGHTS, paper="the same for every client"),
        BIASES,
        LATECOMERS,
        Deviation(
            what="momentum of frozen tensors",
            paper="the head does not move while the body is trained",
            code="one optimiser for both; with torch before 2.0, whose zero_grad leaves zeros, the"
            " frozen head goes on by its momentum",
            flag="torch 2, under which the program holds the head fixed",
        ),
    ),
)
