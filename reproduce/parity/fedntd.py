"""FedNTD against Lee-Gihun/FedNTD: the server's model and every upload."""

from __future__ import annotations

from fedloom.core.tree import Tree
from reproduce.parity.driving import uploads
from reproduce.parity.gihun_fedntd import (
    COMMIT,
    LOGGING,
    REPOSITORY,
    TRAINING,
    drive,
)
from reproduce.parity.harness import Parity, Recorded, federation, two_layers

METHOD = "fedavg(" + TRAINING + ") + fedntd({})"


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's run."""
    return drive(recorded, "fedntd", tau=3.0, beta=0.7)


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("beta=0.7, tau=3.0"),
    wrong=(METHOD.format("beta=0.7, tau=1.0"), METHOD.format("beta=0.6, tau=3.0")),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=uploads,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    patches=(LOGGING,),
)
