"""HTML by construction: what is not marked as markup is escaped, so no label can become code."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fedloom.files import jsonable

_VOID = {"meta", "input", "br"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes: `class_` is `class`, `data_sort` is `data-sort`; None and False are
    left out, True is a bare name.

    >>> tag("td", "a < b", class_="num", hidden=True, title=None)
    '<td class="num" hidden>a &lt; b</td>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Elements and texts one after the other; lists are opened, None is nothing.

    >>> join("&", [tag("b", 1), None])
    '&amp;<b>1</b>'
    """
    parts: list[str] = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, list | tuple):
            parts.append(join(*child))
        elif child is not None:
            parts.append(escape(str(child)))
    return Html("".join(parts))


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no `<`, and NaN is null.

    >>> script_json({"label": "</script>", "p": float("nan")})
    '{"label":"\\\\u003c/script>","p":null}'
    """
    text = json.dumps(jsonable(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
