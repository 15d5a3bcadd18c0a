"""`fedloom new method|model|data NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.scaffold import KINDS, write_start


def new(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}.")],
    name: Annotated[str, typer.Argument(help="What it is to be called, e.g. my_method.")],
    *,
    to: Annotated[Path, typer.Option("--out", help="The folder to write in.")] = Path(),
) -> None:
    """Write a starting file for a method, model or data of your own, with a test that passes."""
    file, test = write_start(kind, name, to)
    print(f"wrote {file} and {test}")
    print(f"try: pytest {test}")
    print(f"     fedloom run --import {file} --{kind} {file.stem} --rounds 5")
