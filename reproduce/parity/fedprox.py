"""FedProx against Lee-Gihun/FedNTD: the server's model and every upload.

FedProx's own program is written for TensorFlow 1; FedNTD's authors compare with this one.
"""

from __future__ import annotations

from reproduce.parity.gihun_fedntd import compared

PARITY = compared("proximal", right="mu=0.4", wrong=("mu=0.2", "mu=0.8"), mu=0.4)
