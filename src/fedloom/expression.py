"""`fedavg + proximal(mu=0.01)`: the small language of methods, models, partitions and shifts.

An expression is one or more calls joined by `+`. It is parsed, never evaluated: a name is looked
up in a registry, arguments are literals (numbers, strings, booleans, none, lists); a bare word is
a string, so `weighting=uniform` needs no quotes.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Container
from dataclasses import dataclass, field, fields
from typing import Any

from fedloom.errors import BadInput

# What Python's parser raises on text: bad syntax, bytes that are no text, too deep a nesting.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_WORDS = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class Call:
    """One named thing with its arguments, as written.

    >>> str(Call("proximal", (), {"mu": 0.01}))
    'proximal(mu=0.01)'
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


def written(thing: Any, name: str, without: Container[str] = ()) -> str:
    """The expression that reads back to a dataclass: its name, and the fields that are not as they
    are by default; `without` names some that do not belong to it."""
    changed = {
        f.name: value
        for f in fields(thing)
        if f.name not in without and (value := getattr(thing, f.name)) != f.default
    }
    return str(Call(name, (), changed))


def parse(text: str, like: str = "fedavg + proximal(mu=0.01)") -> list[Call]:
    """The calls of an expression, in order; what cannot be read is told to be written `like` this.

    >>> parse("fedavg + proximal(mu=1e-2)")
    [Call(name='fedavg', args=(), kwargs={}), Call(name='proximal', args=(), kwargs={'mu': 0.01})]
    """
    try:
        tree = ast.parse(_as_python(text.strip()), mode="eval")
        return [_call(node, text) for node in _summands(tree.body)]
    except _UNREADABLE as e:
        raise BadInput(
            f"cannot read the expression {text!r} ({getattr(e, 'msg', e)}); write it like {like!r}"
        ) from None


def parse_one(text: str) -> Call:
    """The single call of an expression that may not be a sum."""
    calls = parse(text, like="name(argument=value)")
    if len(calls) != 1:
        raise BadInput(f"{text!r} must be one name with arguments, without '+'")
    return calls[0]


def literal(text: str) -> Any:
    """The value of one `key=value` override; what is no literal is a string.

    >>> literal("0.1"), literal("true"), literal("fedavg + moon")
    (0.1, True, 'fedavg + moon')
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (*_UNREADABLE, TypeError):
        return text


def _as_python(text: str) -> str:
    """The expression with what Python's grammar would not take, outside quotes, written otherwise.

    Papers write FedAvg-FT and ResNet-18: such a hyphen belongs to the name. `model=global` has a
    keyword of Python for its value, which is a word like any other here.
    """
    within_name = r"(?<=[A-Za-z])-(?=[A-Za-z])|(?<=[A-Za-z]{2})-(?=[0-9])"
    pieces = re.split(r"('[^']*'|\"[^\"]*\")", text)
    for i in range(0, len(pieces), 2):
        words = re.sub(within_name, "_", pieces[i])
        pieces[i] = re.sub(r"\b[a-z]+\b(?!\s*[=(.])", _quoted_if_keyword, words)
    return "".join(pieces)


def _quoted_if_keyword(word: re.Match[str]) -> str:
    return repr(word[0]) if keyword.iskeyword(word[0]) else word[0]


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _call(node: ast.expr, text: str) -> Call:
    if isinstance(node, ast.Name):
        return Call(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kwargs = {k.arg: _value(k.value, text) for k in node.keywords if k.arg is not None}
        if len(kwargs) == len(node.keywords):
            return Call(node.func.id, tuple(_value(a, text) for a in node.args), kwargs)
    raise BadInput(
        f"cannot read {ast.unparse(node)!r} in {text!r}; expected name or name(key=value)"
    )


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(e, text) for e in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise BadInput(f"{ast.unparse(node)!r} in {text!r} is not a plain value") from None
