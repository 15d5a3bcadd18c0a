"""What there is, and what each thing says of itself."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedloom.core.method import Method
from fedloom.core.protocol import PROTOCOLS, Protocol
from fedloom.data import augmentations, modifiers, partitions, shifts, splits
from fedloom.data.hub import KNOWN, mirror
from fedloom.data.load import names as data_names
from fedloom.errors import UnknownName
from fedloom.methods import register
from fedloom.models import models
from fedloom.observed_traffic import Traffic, traffic
from fedloom.registry import Registry

Entry = dict[str, str]
_WIDE = 150
"""Columns of a terminal that shows every fact of a method in a column of its own."""
_NARROW = ("name", "is a")
_SAME = 0.01
"""Bytes that differ from FedAvg's by less than this share are not worth a word."""


def catalogue(kind: str) -> list[Entry]:
    """Every entry of a kind: its name, what it is, its first line."""
    if kind not in _KINDS:
        raise UnknownName("kind of thing to list", kind, _KINDS)
    return _KINDS[kind]()


def catalogue_table(kind: str, entries: list[Entry], width: int = 80) -> Table:
    """The same, for a terminal of this width."""
    if kind == "methods" and width < _WIDE:
        entries = [_folded(entry) for entry in entries]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, leading=int(kind == "methods"))
    columns = list(entries[0])
    for column in columns:
        narrow = column in _NARROW or (kind != "methods" and column != columns[-1])
        table.add_column(column, overflow="fold", no_wrap=narrow)
    for entry in entries:
        table.add_row(*(Text(entry[column]) for column in columns))
    return table


def _folded(entry: Entry) -> Entry:
    """A method in two columns: what it is and does, what travels, what it costs."""
    lines = [
        f"{entry['family']} ({entry['is a']}). {entry['what it does']}",
        f"Up: {entry['travels up']}. Down: {entry['comes down']}. Stays: {entry['stays']}."
        f" Cost: {entry['cost']}.",
    ]
    return {"name": entry["name"], "what it is, what travels, what stays, cost": "\n".join(lines)}


def page(name: str, width: int = 100) -> str:
    """A method's or term's docstring and the defaults of its hyper-parameters."""
    entry = register[name]
    head = f"{register.canonical(name)}({', '.join(_arguments(entry))})"
    paragraphs = (inspect.getdoc(entry) or "").split("\n\n")
    text = "\n\n".join(_wrapped(text, width) for text in (head, *paragraphs))
    return f"{text}\n\n{_facts(register.canonical(name), width)}"


def _facts(name: str, width: int) -> str:
    """What was found out about a method by running it."""
    seen = _seen(name)
    told = {
        "Family": family(name),
        "Travels up": seen.up,
        "Comes down": seen.down,
        "Stays": seen.stays,
        "Cost beside FedAvg": cost(name),
    }
    lines = (f"{what}: {fact}" for what, fact in told.items())
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def _wrapped(paragraph: str, width: int) -> str:
    """Prose in lines of this width; algorithm boxes and examples as they are."""
    if paragraph.startswith((" ", ">>>")) or "\n " in paragraph:
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), width, break_long_words=False)


def _arguments(entry: Callable[..., Any]) -> list[str]:
    hidden = {"opt", "server", "terms"}
    if isinstance(entry, type):
        return [f"{f.name}={f.default!r}" for f in fields(entry) if f.name not in hidden]
    taken = inspect.signature(entry).parameters.values()
    return [str(p) if p.default is p.empty else f"{p.name}={p.default!r}" for p in taken]


def _methods() -> list[Entry]:
    return [_method(name) for name in register]


def _method(name: str) -> Entry:
    seen = _seen(name)
    return {
        "name": name,
        "is a": _role(register[name]),
        "family": family(name),
        "travels up": seen.up,
        "comes down": seen.down,
        "stays": seen.stays,
        "cost": cost(name),
        "what it does": _summary(register[name]),
    }


def _seen(name: str) -> Traffic:
    """What travels; unknown for somebody's method that cannot run on a table of numbers."""
    try:
        return traffic(name)
    except Exception as e:  # a list must not break because of one method in it
        return Traffic(*[f"unknown ({type(e).__name__})"] * 3)


def family(name: str) -> str:
    """What kind of idea a registered name is; a recipe is what its last part is.

    >>> family("fedper"), family("moon")
    ('personal layers', 'drift correction')
    """
    made = register[name]()
    parts = made if isinstance(made, tuple) else getattr(made, "parts", (made,))
    found: str = parts[-1].family
    return found


def cost(name: str) -> str:
    """Time and bytes beside FedAvg's, as `benchmarks/costs.py` measured them."""
    found = _costs().get(name)
    if found is None:
        return "not measured"
    much = {"time": found["time"], "up": found["up"], "down": found["down"]}
    said = [f"x{_number(v)} {k}" for k, v in much.items() if k == "time" or abs(v - 1) > _SAME]
    once = f"{_number(found['once'])} rounds of FedAvg once"
    return ", ".join([*said, once] if found["once"] > _SAME else said)


@cache
def _costs() -> dict[str, dict[str, float]]:
    file = files("fedloom.methods") / "costs.json"
    if not file.is_file():
        return {}
    found: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))["methods"]
    return found


def _number(value: float) -> str:
    """Two digits, or all before the point.

    >>> _number(1.0), _number(0.034), _number(12.3)
    ('1.0', '0.034', '12')
    """
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _role(entry: Callable[..., Any]) -> str:
    if not isinstance(entry, type):
        return "recipe"
    return "method" if issubclass(entry, Method) else "term"


def _registry(registry: Registry) -> Callable[[], list[Entry]]:
    return lambda: [{"name": n, "what it does": _summary(registry[n])} for n in registry]


def _partitions() -> list[Entry]:
    return _registry(partitions)() + [
        {**entry, "what it does": f"(+) {entry['what it does']}"}
        for entry in _registry(modifiers)()
    ]


def _data() -> list[Entry]:
    return [
        {"name": name, "kind": _kind(name), "comes from": _origin(name)} for name in data_names()
    ]


def _kind(name: str) -> str:
    kind = KNOWN[name].kind if name in KNOWN else "image"
    return "signal" if kind == "har" else kind


def _origin(name: str) -> str:
    """Where `load` would take it from, here and now."""
    if name not in KNOWN:
        return "fedloom itself"
    folder = mirror(name)
    if folder is not None:
        return f"FEDLOOM_DATA/{folder.name}"
    repo = KNOWN[name].repo
    return f"the hub: {repo}" if repo else f"a folder FEDLOOM_DATA/{name} (not there)"


def _protocols() -> list[Entry]:
    return [{"name": name, "what is tested": _tested(p)} for name, p in PROTOCOLS.items()]


def _tested(p: Protocol) -> str:
    """A protocol in words."""
    moment = {
        "received": "as received",
        "trained": "after local training",
        "adapted": "after fine-tuning",
        "final": "fine-tuned if the method does so, else as received",
    }[p.moment]
    where = "on shared test sets" if p.on == "shared" else f"on {p.clients} clients' {p.split} rows"
    chosen = {
        "last": "last round",
        "best_val": "best round on validation rows",
        "best_test": "best round on test rows",
        "best_test_per_client": "each client's best round on its test rows",
        "mean_of_five_best_test": "mean of the five best rounds on test rows",
    }[p.select]
    average = "clients by samples" if p.average == "samples" else "clients alike"
    last = "; everybody in the last round" if p.full_last_round else ""
    return f"the {p.model} model {moment}, {where}; {chosen}; {average}{last}"


def _engines() -> list[Entry]:
    return [
        {"name": "inline", "what it does": "One client after another in this process."},
        {"name": "pool", "what it does": "`workers` processes on this machine; the same bytes."},
        {
            "name": "vectorized",
            "what it does": "This process, small equal clients in blocks; the same bytes.",
        },
        {"name": "ray", "what it does": "`workers` actors on a Ray cluster; the same bytes."},
        {
            "name": "flower",
            "what it does": "This process, every message through Flower's encoding, as a"
            " rehearsal of `fedloom deploy`; the same bytes.",
        },
    ]


def _summary(entry: Callable[..., Any]) -> str:
    """The docstring's first sentence, or its first paragraph where that is none."""
    text = " ".join((inspect.getdoc(entry) or "").split("\n\n")[0].split())
    sentence = re.match(r"(.+?(?<!et al)\.)(?= [A-Z`]|$)", text)
    return sentence[1] if sentence else text


_KINDS: dict[str, Callable[[], list[Entry]]] = {
    "methods": _methods,
    "models": _registry(models),
    "data": _data,
    "partitions": _partitions,
    "shifts": _registry(shifts),
    "splits": _registry(splits),
    "augmentations": _registry(augmentations),
    "protocols": _protocols,
    "engines": _engines,
}
