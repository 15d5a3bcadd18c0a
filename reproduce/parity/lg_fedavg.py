"""LG-FedAvg against lgcollins/FedRep: the shared head and every client's body."""

from __future__ import annotations

from reproduce.parity.lgcollins_fedrep import TRAINING, WEIGHTS, compared

METHOD = "lg_fedavg({}, epochs=2, " + TRAINING + ")"
PARITY = compared(
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.5")),
    algorithm="lg",
    local_epochs=2,
    deviations=(WEIGHTS,),
)
