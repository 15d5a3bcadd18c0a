"""All requests of the service on one page, from its OpenAPI document; needs nothing from outside.

FastAPI's own page fetches its script from elsewhere, so that it is blank where there is no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #bbb; padding: .5rem 0 1rem }
h2 { font-size: 1.1rem } code { background: #eee; padding: .1rem .3rem; border-radius: .2rem }
th, td { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0 }
@media (prefers-color-scheme: dark) {
  body { background: #1b1b1b; color: #ddd } code { background: #333 } a { color: #8bf }
}
"""


def requests_page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    info = document["info"]
    sections = "".join(
        _section(verb, path, operation)
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} For programs:"
        f' <a href="openapi.json">openapi.json</a>.</p>{sections}</body></html>'
    )


def _section(verb: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in _details(operation)
    )
    return (
        f"<section><h2><code>{escape(verb.upper())} {escape(path)}</code></h2>"
        f"<p>{escape(operation['summary'])}</p><table>{rows}</table></section>"
    )


def _details(operation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What goes in and what comes out: a name and a text each."""
    for parameter in operation.get("parameters", ()):
        yield parameter["name"], parameter.get("description", "")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"body, {kind}", _described(content["schema"])
    for status, response in operation["responses"].items():
        yield f"answer {status}", response["description"]


def _described(schema: Mapping[str, Any]) -> str:
    """A body in words: its own, or those of its fields."""
    fields = (f'"{name}": {_described(of)}' for name, of in schema.get("properties", {}).items())
    return schema.get("description") or f"{{{', '.join(fields)}}}"
