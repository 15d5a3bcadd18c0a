"""FedProx against Lee-Gihun/FedNTD: the server's model and every upload.

FedProx's own program is written for TensorFlow 1; FedNTD's authors compare with this one.
"""

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

METHOD = "fedavg(" + TRAINING + ") + proximal({})"


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's run."""
    return drive(recorded, "fedprox", mu=0.4)


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("mu=0.4"),
    wrong=(METHOD.format("mu=0.2"), METHOD.format("mu=0.8")),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=uploads,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    patches=(LOGGING,),
)
