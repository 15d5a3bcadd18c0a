"""FedPer against lgcollins/FedRep: the shared body and every client's head, also tuned."""

from __future__ import annotations

from fedloom.core.tree import Tree
from reproduce.parity.driving import matching, models_and_tuned, without_bias
from reproduce.parity.harness import Parity, Recorded, federation
from reproduce.parity.lgcollins_fedrep import (
    BIASES,
    COMMIT,
    LATECOMERS,
    REPOSITORY,
    TRAINING,
    WEIGHTS,
    drive,
)

METHOD = "fedper({}, epochs=2, adapt_epochs=10, " + TRAINING + ")"


def theirs(recorded: Recorded) -> list[Tree]:
    """Their script; the server's mean of the heads, which nobody receives, is left out."""
    return matching(drive(recorded, "fedper", local_epochs=2), models_and_tuned(recorded))


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.5")),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=without_bias,
    ours=models_and_tuned,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    deviations=(WEIGHTS, BIASES, LATECOMERS),
)
