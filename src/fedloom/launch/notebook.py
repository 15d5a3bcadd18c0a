"""The terminal's tables in a notebook."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table


def as_html(table: Table) -> str:
    """A table as HTML that keeps its alignment and colours."""
    console = Console(file=StringIO(), record=True, width=120, force_jupyter=False)
    console.print(table)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
