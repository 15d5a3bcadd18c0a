"""What there is, and what each thing says of itself."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedloom.core.aggregation import aggregations
from fedloom.core.compression import compressions
from fedloom.core.hostile import hostilities
from fedloom.core.method import Method
from fedloom.core.privacy import privacies
from fedloom.core.protocol import PROTOCOLS, Protocol
from fedloom.core.secure.setting import secure_aggregations
from fedloom.core.task import tasks
from fedloom.core.term import Term
from fedloom.data import augmentations, modifiers, partitions, register_data, shifts, splits
from fedloom.data.hub import KNOWN, mirror
from fedloom.data.load import names as data_names
from fedloom.engines import ENGINES
from fedloom.errors import BadInput, UnknownName
from fedloom.methods import register
from fedloom.models import models
from fedloom.models.projector import PROJECTOR
from fedloom.observed_traffic import Traffic, traffic
from fedloom.registry import Registry, squash

Entry = dict[str, str]
_WIDE = 150
"""Columns of a terminal that shows every fact of a method in a column of its own."""
_NARROW = ("name", "is a")
MEASURE = "fedavg"
"""The method whose cost all others are compared with."""
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
    """What a name means: of a method its docstring, hyper-parameters, traffic and cost; of anything
    else what it is and takes. A name of several kinds (`dbe`) has a page of each."""
    pages = [text for kind in _KINDS for text in _pages(kind, name, width)]
    if pages:
        return "\n\n".join(pages)
    registries = [register, *(r for several in _REGISTRIES.values() for r in several)]
    known = {*data_names(), *PROTOCOLS, *ENGINES, *(n for names in registries for n in names)}
    if near := get_close_matches(name, known, n=1):
        raise UnknownName("name", name, near)
    raise BadInput(
        f"nothing is called {name!r}; `fedloom list KIND` shows what there is, KIND being one of"
        f" {', '.join(_KINDS)}"
    )


def _pages(kind: str, name: str, width: int) -> list[str]:
    if kind == "methods":
        return [_method_page(register.canonical(name), width)] if name in register else []
    registries = [registry for registry in _REGISTRIES.get(kind, ()) if name in registry]
    if registries:
        return [_entry_page(registry, name, width) for registry in registries]
    entries = [] if kind in _REGISTRIES else _KINDS[kind]()
    return [_plain_page(kind, e, width) for e in entries if squash(e["name"]) == squash(name)]


def _method_page(name: str, width: int) -> str:
    text = _signature_and_text(name, register[name], width)
    return f"{text}\n\n{_facts(name, width)}"


def _entry_page(registry: Registry, name: str, width: int) -> str:
    name = registry.canonical(name)
    more = (f"{PROJECTOR}=0",) if registry is models else ()
    return f"{registry.kind} {_signature_and_text(name, registry[name], width, more)}"


def _plain_page(kind: str, entry: Entry, width: int) -> str:
    """Of something that is no function: all that `list` tells of it."""
    facts = ", ".join(fact for column, fact in entry.items() if column != "name")
    return f"{kind.removesuffix('s')} {entry['name']}\n\n{_wrapped(facts, width)}"


def _signature_and_text(
    name: str, entry: Callable[..., Any], width: int, more: tuple[str, ...] = ()
) -> str:
    """A call with its defaults and what all of its kind take, then the docstring."""
    head = f"{name}({', '.join([*_arguments(entry), *more])})"
    paragraphs = (inspect.getdoc(entry) or "").split("\n\n")
    return "\n\n".join(_wrapped(text, width) for text in (head, *paragraphs))


def _facts(name: str, width: int) -> str:
    """What travels and what it costs, found out by running the method."""
    observed = _observed(name)
    facts = {
        "Family": family(name),
        "Travels up": observed.up,
        "Comes down": observed.down,
        "Stays": observed.stays,
        "Cost beside FedAvg": cost(name),
        "Worth tuning": worth_tuning(name),
    }
    lines = (f"{what}: {fact}" for what, fact in facts.items())
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def _wrapped(paragraph: str, width: int) -> str:
    """Prose in lines of this width; algorithm boxes and examples as they are."""
    if paragraph.startswith((" ", ">>>")) or "\n " in paragraph:
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), width, break_long_words=False)


def _arguments(entry: Callable[..., Any]) -> list[str]:
    """What an expression may write, with the defaults; not what a run fills in itself."""
    filled = {"opt", "server", "terms", "shape", "classes", "vocabulary"}
    parameters = inspect.signature(entry).parameters.values()
    return [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in parameters
        if p.name not in filled and not (p.kind is p.KEYWORD_ONLY and p.default is p.empty)
    ]


def _methods() -> list[Entry]:
    return [_method(name) for name in register]


def _method(name: str) -> Entry:
    observed = _observed(name)
    return {
        "name": name,
        "is a": _role(register[name]),
        "family": family(name),
        "travels up": observed.up,
        "comes down": observed.down,
        "stays": observed.stays,
        "cost": cost(name),
        "what it does": _summary(register[name]),
    }


def _observed(name: str) -> Traffic:
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
    return parts_of(name)[-1].family


def worth_tuning(name: str) -> str:
    """The hyper-parameters that `fedloom tune` searches, with their ranges.

    >>> worth_tuning("fedprox")
    'lr, mu in 0.001 .. 1 (log)'
    """
    ranges = {key: where for part in parts_of(name) for key, where in part.tunable.items()}
    return ", ".join(["lr"] * ("lr" not in ranges) + [f"{k} in {w}" for k, w in ranges.items()])


def parts_of(name: str) -> tuple[Term, ...]:
    """What a registered name is made of."""
    built = register[name]()
    parts: tuple[Term, ...] = (
        built if isinstance(built, tuple) else getattr(built, "parts", (built,))
    )
    return parts


def cost(name: str) -> str:
    """Time and bytes beside FedAvg's, as `benchmarks/costs.py` measured them."""
    if name == MEASURE:
        return "x1 (the measure)"
    measured = _costs().get(name)
    if measured is None:
        return "not measured"
    ratios = {key: measured[key] for key in ("time", "up", "down")}
    words = [f"x{_number(v)} {k}" for k, v in ratios.items() if k == "time" or abs(v - 1) > _SAME]
    if measured["once"] > _SAME:
        words.append(f"{_number(measured['once'])} rounds of FedAvg once")
    return ", ".join(words)


@cache
def _costs() -> dict[str, dict[str, float]]:
    file = files("fedloom.methods") / "costs.json"
    if not file.is_file():
        return {}
    costs: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))["methods"]
    return costs


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


def _registered(kind: str) -> Callable[[], list[Entry]]:
    """The entries of a kind's registries; of a second one, which comes after a `+`, marked so."""

    def entries() -> list[Entry]:
        return [
            {"name": name, "what it does": mark + _summary(registry[name])}
            for registry, mark in zip(_REGISTRIES[kind], ("", "(+) "), strict=False)
            for name in registry
        ]

    return entries


def _data() -> list[Entry]:
    return [
        {"name": name, "kind": _kind(name), "comes from": _origin(name)} for name in data_names()
    ]


def _kind(name: str) -> str:
    if name in register_data:
        return "your own"
    kind = KNOWN[name].kind if name in KNOWN else "image"
    return "signal" if kind == "har" else kind


def _origin(name: str) -> str:
    """Where `load` would take it from, here and now."""
    if name in register_data:
        return _summary(register_data[name]) or register_data[name].__module__
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
        "personalized": "fine-tuned if the method does so, else after local training if clients"
        " keep something personal, else as received",
    }[p.moment]
    if p.head_epochs:
        moment = f"after {p.head_epochs} final epochs of the head alone"
    model = {"global_if_any": "global (if there is one, else personal)"}.get(p.model, p.model)
    where = {
        "clients": f"on {p.clients} clients' {p.split} rows",
        "shared": "on shared test sets",
        "shared_if_any": f"on shared test sets (if there are any, else {p.clients} clients' rows)",
    }[p.on]
    chosen = {
        "last": "last round",
        "best_val": "best round on validation rows",
        "best_test": "best round on test rows",
        "best_test_per_client": "each client's best round on its test rows",
        "mean_of_five_best_test": "mean of the five best rounds on test rows",
    }[p.select]
    average = "clients by samples" if p.average == "samples" else "clients alike"
    last = "; everybody in the last round" if p.full_last_round else ""
    joining = "" if p.newcomer_epochs is None else f"; newcomers train {p.newcomer_epochs} epochs"
    return f"the {model} model {moment}, {where}; {chosen}; {average}{last}{joining}"


def _engines() -> list[Entry]:
    return [{"name": name, "what it does": e.description} for name, e in ENGINES.items()]


def _summary(entry: Callable[..., Any]) -> str:
    """The docstring's first sentence, or its first paragraph where that is none."""
    text = " ".join((inspect.getdoc(entry) or "").split("\n\n")[0].split())
    end = r"(?<!et al)(?<!\b[A-Z])\."  # no end is the dot of "et al." or of an initial
    sentence = re.match(rf"(.+?{end})(?= [A-Z`]|$)", text)
    return sentence[1] if sentence else text


_REGISTRIES: dict[str, tuple[Registry, ...]] = {
    "models": (models,),
    "tasks": (tasks,),
    "partitions": (partitions, modifiers),
    "shifts": (shifts,),
    "splits": (splits,),
    "augmentations": (augmentations,),
    "aggregation": (aggregations,),
    "secure_aggregation": (secure_aggregations,),
    "compression": (compressions,),
    "privacy": (privacies,),
    "hostile": (hostilities,),
}
_KINDS: dict[str, Callable[[], list[Entry]]] = {
    "methods": _methods,
    "models": _registered("models"),
    "tasks": _registered("tasks"),
    "data": _data,
    "partitions": _registered("partitions"),
    "shifts": _registered("shifts"),
    "splits": _registered("splits"),
    "augmentations": _registered("augmentations"),
    "aggregation": _registered("aggregation"),
    "secure_aggregation": _registered("secure_aggregation"),
    "compression": _registered("compression"),
    "privacy": _registered("privacy"),
    "hostile": _registered("hostile"),
    "protocols": _protocols,
    "engines": _engines,
}
