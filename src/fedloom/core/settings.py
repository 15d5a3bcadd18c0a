"""Training settings: their names in a configuration, and which of them are a method's own.

Without torch, which `--help` does not wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from fedloom.errors import BadInput

OptimizerName = Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"]
"""Optimisers of the clients."""
ServerOptimizerName = Literal["sgd", "momentum", "adagrad", "adam", "yogi"]
"""Optimisers of the server."""

OPT_KEYS = {
    "optimizer": "name",
    "lr": "lr",
    "epochs": "epochs",
    "steps": "steps",
    "batch_size": "batch",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "keep_state": "keep_state",
    "clip": "clip",
    "decay": "decay",
    "drop_last": "drop_last",
    "replacement": "replacement",
}
"""Configuration key -> field of `Opt`."""
SERVER_KEYS = {
    "server_optimizer": "name",
    "server_lr": "lr",
    "server_beta1": "beta1",
    "server_beta2": "beta2",
    "server_tau": "tau",
}
"""Configuration key -> field of `ServerOpt`."""


@dataclass(frozen=True)
class Settings:
    """Values of which some are the method's own and the others are the run's to choose.

    A method's own are those that its expression writes, and those that differ from the default of
    its class.
    """

    written: frozenset[str] = field(default=frozenset(), kw_only=True, repr=False, compare=False)
    """Fields that the method's expression writes, be it with their defaults."""
    from_run: frozenset[str] = field(default=frozenset(), kw_only=True, repr=False, compare=False)
    """Fields that hold a run's value."""

    def own(self, default: Self) -> dict[str, Any]:
        """The method's own values, where its class has these defaults."""
        names = [f.name for f in fields(self) if f.compare]
        return {
            name: value
            for name in names
            if (
                (value := getattr(self, name)) != getattr(default, name)
                and name not in self.from_run
            )
            or name in self.written
        }

    def _unread(self) -> dict[str, Any]:
        """Fields that only other optimisers read, with their defaults."""
        return {}

    def _refuse_unread(self, optimizer: str, prefix: str = "") -> None:
        """Refuse a value that nothing would come of."""
        for name, default in self._unread().items():
            if getattr(self, name) != default:
                raise BadInput(
                    f"{optimizer} does not read {prefix}{name}; leave it out, or choose another"
                    f" {prefix}optimizer"
                )

    def with_own(self, values: Mapping[str, Any]) -> Self:
        """The same with these values, as the method's own."""
        return replace(self, **values, written=self.written | values.keys())

    def filled(self, values: Mapping[str, Any], own: Collection[str]) -> Self:
        """The same with a run's values, but for what is the method's own; a method with an
        optimiser of its own takes no values that only others read."""
        foreign = self._unread() if "name" in own else {}
        rest = {k: value for k, value in values.items() if k not in own and k not in foreign}
        return replace(self, **rest, from_run=self.from_run | rest.keys())
