"""FedPer against lgcollins/FedRep: the shared body and every client's head, also tuned."""

from __future__ import annotations

from reproduce.parity.lgcollins_fedrep import TRAINING, WEIGHTS, compared

METHOD = "fedper({}, epochs=2, adapt_epochs=10, " + TRAINING + ")"
PARITY = compared(
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.5")),
    algorithm="fedper",
    local_epochs=2,
    deviations=(WEIGHTS,),
)
