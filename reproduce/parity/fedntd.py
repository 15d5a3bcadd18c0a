"""FedNTD against Lee-Gihun/FedNTD: the server's model and every upload."""

from __future__ import annotations

from reproduce.parity.gihun_fedntd import compared

PARITY = compared(
    "fedntd",
    right="beta=0.7, tau=3.0",
    wrong=("beta=0.7, tau=1.0", "beta=0.6, tau=3.0"),
    beta=0.7,
    tau=3.0,
)
