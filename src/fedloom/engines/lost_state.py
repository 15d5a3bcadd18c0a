"""A state that a site was asked to go on from and cannot; imports no torch."""

from __future__ import annotations

from fedloom.errors import FedloomError


class LostState(FedloomError):
    """The server counts on a state that this site does not have, or may not use."""
