"""Arguments that several commands of `fedloom deploy` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProjectFolder = Annotated[Path, typer.Argument(help="Folder made by `fedloom deploy init`.")]
SiteFile = Annotated[Path, typer.Argument(help="The site's site.toml.")]
