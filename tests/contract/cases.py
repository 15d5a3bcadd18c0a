"""Every registered method, recipe and term as something that runs, and what some of them need.

A new file in `fedloom/methods` is a new case by being there. A line in `NEEDS` is wanted only
where a method cannot run on a small MLP, or where a rule of the contract does not hold by design.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from fedloom.core.method import Method
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.data import FederatedData
from fedloom.methods import parse_method, register
from fedloom.models import build_model
from helpers import Played, digits, run

CLIENTS = 4
ROUNDS = 3
OPT = Opt(lr=0.1, epochs=1, batch=8)


@dataclass(frozen=True)
class Need:
    """What one case needs beside the common ground."""

    model: str = "mlp(hidden=[16])"
    normed: str = "mlp(hidden=[16], norm=batch)"
    """A model with BatchNorm."""
    expression: str = ""
    """In place of `name`, or of `fedavg + name` for a term or a recipe of terms."""
    copies: tuple[str, ...] = ()
    """Kept slices that may equal what was sent, with the reason beside the entry."""
    rounds: int = 5
    """Until what clients receive predicts better than at the start."""


NEEDS: dict[str, Need] = {
    "fedbn": Need(model="mlp(hidden=[16], norm=batch)"),
    # The running statistics of its projector need a dozen visits to follow a body that moves.
    "dualfed": Need(rounds=15),
    # The negative of the next round's contrast is the extractor that was sent in this one.
    "moon": Need(copies=("model_contrast",)),
    "model_contrast": Need(copies=("model_contrast",)),
    # Delta begins at zero, so the first round takes steps of alpha = 0.1 of their length.
    "fedcm": Need(rounds=10),
    "client_momentum": Need(rounds=10),
    # A server step of 0.01 is small, and its momentum has to gather first.
    "pfedhn": Need(rounds=10),
    # It keeps the model it sent: the next round's mixture starts from it.
    "fedfomo": Need(copies=("fedfomo",)),
    # c_i begins at zero, so the first difference that is sent is c_i itself.
    "scaffold": Need(copies=("control_variates",)),
    "control_variates": Need(copies=("control_variates",)),
}
ALL = list(register)


def need(name: str) -> Need:
    return NEEDS.get(name, Need())


def expression(name: str) -> str:
    """What is run for a registered name."""
    alone = isinstance(register[name](), Method)
    return need(name).expression or (name if alone else f"fedavg + {name}")


def method(name: str) -> Method:
    return replace(parse_method(expression(name)), opt=OPT)


def program(name: str, clients: int = CLIENTS, model: str = "") -> Program:
    """Made from nothing every time: no object is shared between two calls."""
    net = build_model(model or need(name).model, (1, 8, 8), 10, seed=0)
    return Program(method(name), net, clients, seed=3)


def federation() -> FederatedData:
    """Four clients of four or five classes each, and a newcomer (id 4)."""
    return digits(
        ((0, 1, 2, 3), 20),
        ((2, 3, 4, 5), 16),
        ((4, 5, 6, 7), 25),
        ((6, 7, 8, 9, 0), 12),
        ((1, 5, 9), 15),
    )


@cache
def straight(name: str) -> Played:
    """The plain run that all others are compared with."""
    return run(program(name), federation(), ROUNDS)
