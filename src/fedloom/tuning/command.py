"""The command that trains with what a tuning found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT

NOT_WRITTEN = {"method", "data", "model", "lr", "seed", "out", "workers", "title"}
"""Keys that are in the expression, belong to the tuning, or are written by themselves."""


def run_command(expression: str, config: RunConfig) -> str:
    """`fedloom run`, or the call in Python where data or model are objects.

    >>> run_command("fedavg(lr=0.1)", RunConfig(rounds=5, imports="a.py"))
    "fedloom run --method 'fedavg(lr=0.1)' --data digits --import a.py --rounds 5"
    """
    if _has_objects(config):
        return f"fl.run({expression!r}, {_arguments(config)}seed={config.seed})"
    seed = ["--seed", str(config.seed)] if config.seed else []
    return shlex.join(["fedloom", "run", "--method", expression, *_flags(config), *seed])


def compare_command(expressions: Sequence[str], config: RunConfig) -> str:
    """`fedloom compare` of several methods, over three seeds."""
    if _has_objects(config):
        return f"fl.compare({list(expressions)!r}, {_arguments(config)}seeds=[0, 1, 2])"
    return shlex.join(["fedloom", "compare", *expressions, *_flags(config), "--seeds", "3"])


def _has_objects(config: RunConfig) -> bool:
    return OBJECT in (config.data, config.model)


def _changed(config: RunConfig) -> dict[str, Any]:
    """The keys that the caller set."""
    return {
        name: value
        for name, value in config.model_dump().items()
        if name not in NOT_WRITTEN and value != RunConfig.model_fields[name].default
    }


def _flags(config: RunConfig) -> Iterator[str]:
    yield from ("--data", config.data)
    if config.model != "auto":
        yield from ("--model", config.model)
    for name, value in _changed(config).items():
        flag = name.replace("_", "-")
        if name == "imports":
            for spec in value:
                yield from ("--import", spec)
        elif isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", str(value))


def _arguments(config: RunConfig) -> str:
    data = "data" if config.data == OBJECT else repr(config.data)
    model = "model" if config.model == OBJECT else repr(config.model)
    settings = {"model": model, **{k: repr(v) for k, v in _changed(config).items()}}
    return ", ".join([data, *(f"{k}={v}" for k, v in settings.items()), ""])
