"""HTML by construction: what is not marked as markup is escaped, so no label can become code."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
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


def page_head(title: str, style: str, policy: str) -> Html:
    """The head of a self-contained page; `policy` says what else than this style it may use."""
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; style-src {allowed(style)}; {policy}",
        ),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="fedloom"),
        tag("title", title),
        tag("style", Html(style)),
    )


def allowed(text: str) -> str:
    """A style or script as a content security policy names it."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


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
