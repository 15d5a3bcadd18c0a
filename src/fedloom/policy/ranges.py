"""Which methods a site permits, and within which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedloom.errors import UnknownName
from fedloom.policy.policy import Policy, Range
from fedloom.policy.refusal import Refusal
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.method import Method
    from fedloom.core.term import Term

USUAL: Mapping[tuple[str, str], tuple[float, float]] = {
    ("client_momentum", "alpha"): (0.05, 1.0),  # below, steps follow the server and not the rows
    ("proximal", "mu"): (0.0, 0.5),  # above, each step undoes the one before
    ("fedrod", "gamma"): (0.0, 1.5),  # above, only rows of rare classes have a gradient
    ("fedetf", "gamma"): (0.0, 1.5),
    ("hypcluster", "server_lr"): (0.1, 1.0),  # below, rounds begin at the same model
    ("pfedhn", "server_lr"): (0.001, 1.0),
    ("perfedavg", "alpha"): (0.0, 1.0),
    ("perfedavg", "delta"): (1e-5, 0.1),
    ("fedem", "learners"): (1, 10),  # above, a learner may fit a single row
    ("fedfomo", "validation"): (0.1, 0.5),
}
"""(part, setting) -> from where to where it is permitted unless the policy has a range for it."""
USUAL_NUMBERS = (-1000.0, 1000.0)
"""The same of every other number that is no count."""
USUAL_COUNTS = (0, 10_000)


def method_of(run: RunConfig) -> Method | None:
    """The method with all settings of the run; None: a part of it is not registered here."""
    from fedloom.methods import parse_method, with_run_settings

    try:
        return with_run_settings(parse_method(run.method), run.model_dump())
    except UnknownName:
        return None


def plain_method(run: RunConfig) -> Method:
    """Averaging with the run's settings: what an unknown method is taken for."""
    from fedloom.core.method import Method
    from fedloom.methods import with_run_settings

    return with_run_settings(Method(), run.model_dump())


def permitted(policy: Policy, run: RunConfig, method: Method) -> Iterator[Refusal]:
    """Parts that the policy does not list, and settings outside its ranges."""
    if not policy.methods:
        return
    listed = {name: parts_of(name) for name in policy.methods}
    for part in method.parts:
        entries = [name for name, parts in listed.items() if part.name in parts]
        if not entries:
            yield Refusal(
                "methods",
                f"{part.name} is not one of the methods this site permits:"
                f" {', '.join(policy.methods)}",
            )
        for entry in entries:
            for key, within in policy.methods[entry].items():
                yield from _setting(key, within, entry, part, method, run)


def usual(policy: Policy, method: Method) -> Iterator[Refusal]:
    """Numbers of parts that are far from what their papers use; a range of the policy's own for a
    setting is in place of this."""
    bounded = {
        (part, key)
        for name, keys in policy.methods.items()
        for part in parts_of(name)
        for key in keys
    }
    for part in method.parts:
        for f in fields(part):
            value = getattr(part, f.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            within = USUAL_COUNTS if isinstance(value, int) else USUAL_NUMBERS
            least, most = USUAL.get((part.name, f.name), within)
            if (part.name, f.name) not in bounded and not least <= value <= most:
                yield Refusal(
                    "odd_settings",
                    f"{part.name}: {f.name} = {value!r} is outside of the usual {least:g} to"
                    f" {most:g}",
                )


def parts_of(name: str) -> frozenset[str]:
    """Names of the parts that a registered name stands for; a recipe's are several."""
    from fedloom.core.method import Method
    from fedloom.methods import register

    if name not in register:
        return frozenset({name})
    built: Any = register[name]()
    parts = built.parts if isinstance(built, Method) else built
    return frozenset(part.name for part in (parts if isinstance(parts, tuple) else (parts,)))


def _setting(
    key: str, within: Range, entry: str, part: Term, method: Method, run: RunConfig
) -> Iterator[Refusal]:
    values = settings_of(part, method, run)
    if key not in values:
        if len(parts_of(entry)) == 1:  # of a recipe, another part may have it
            yield Refusal(
                "methods", f"the policy bounds {entry}'s {key!r}, which is no setting of it"
            )
    elif not inside(values[key], within):
        yield Refusal("methods", f"{entry}: {key} = {values[key]!r} is outside of {_text(within)}")


def settings_of(part: Term, method: Method, run: RunConfig) -> dict[str, Any]:
    """Every setting that may be bounded for a part: its own, defaults included; and of the method
    those of its training and of the run."""
    from fedloom.methods import training_settings

    own = {f.name: getattr(part, f.name) for f in fields(part)}
    if part is not method:
        return own
    return {**run.model_dump(), **training_settings(method), **own}


def inside(value: object, within: Range) -> bool:
    """Is a setting what it may be?

    >>> inside(0.05, (0.001, 0.1)), inside("sgd", ("sgd", "adam")), inside(None, (1, 5))
    (True, True, False)
    """
    if not isinstance(within, tuple):
        return value == within and isinstance(value, bool) == isinstance(within, bool)
    numbers = [w for w in within if isinstance(w, int | float) and not isinstance(w, bool)]
    if len(within) == len(numbers) == 2:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return numbers[0] <= value <= numbers[1]
    return any(inside(value, one) for one in within)


def _text(within: Range) -> str:
    return f"[{', '.join(map(repr, within))}]" if isinstance(within, tuple) else repr(within)
