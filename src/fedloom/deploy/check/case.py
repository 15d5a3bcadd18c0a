"""A site under examination: what its file says, and what of that can be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedloom.deploy.check.connection import Server
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput, FedloomError, suggestion
from fedloom.policy import modules_of


class CannotTell(FedloomError):
    """A check that has nothing to go by."""


@dataclass(frozen=True)
class Case:
    """The site's file, read as far as it can be."""

    file: Path
    settings: Settings | None
    project: Path | None
    """The federation's project, where the site has a copy."""
    code_may_run: bool
    """Somebody agreed to run what that project imports."""
    config: SiteConfig
    """Placeholders stand in for what is needed and unusable."""
    unusable: frozenset[str]
    """Keys that are missing, unknown or have a value that is not allowed."""
    about_file: str
    """What is wrong with the file itself, or that nothing is."""

    @classmethod
    def read(
        cls,
        file: Path,
        settings: Settings | None,
        project: Path | None = None,
        code_may_run: bool = True,
    ) -> Self:
        """From the site's file, whatever is wrong with it."""
        written: dict[str, Any] = {}
        try:
            written = SiteConfig.written(file)
        except BadInput as e:
            unusable, about_file = frozenset(SiteConfig.model_fields), str(e)
        else:
            errors = _errors(written)
            unusable = frozenset(str(error["loc"][0]) for error in errors)
            wrong = "; ".join(map(_sentence, errors))
            about_file = f"{file}: {wrong}" if wrong else f"{file} says all that is needed"
        fields = SiteConfig.model_fields
        missing = {key: "?" for key in unusable if key in fields and fields[key].is_required()}
        usable = {key: value for key, value in written.items() if key not in unusable}
        config = SiteConfig(**{**missing, **usable})
        return cls(file, settings, project, code_may_run, config, unusable, about_file)

    def require(self, keys: Iterable[str]) -> None:
        """Refuse to go on without these keys."""
        wrong = [key for key in keys if key in self.unusable]
        if wrong:
            raise CannotTell(f"not checked: put {', '.join(wrong)} right in {self.file} first")

    @property
    def code_to_run(self) -> list[str]:
        """Modules of the federation that looking at the data would run, and nobody agreed to."""
        return modules_of(self.settings.run) if self.settings and not self.code_may_run else []

    @cached_property
    def server(self) -> Server:
        """Where the site connects to."""
        return Server.of(self.config.superlink)

    @property
    def reached(self) -> Server:
        """The server, for checks that make sense only where a connection can be made."""
        try:
            reachable = self.server.unreachable is None
        except BadInput:
            reachable = False
        if not reachable:
            raise CannotTell("not checked: the server cannot be reached")
        return self.server


def _errors(written: dict[str, Any]) -> list[ErrorDetails]:
    try:
        SiteConfig.model_validate(written)
    except ValidationError as e:
        return e.errors()
    return []


def _sentence(error: ErrorDetails) -> str:
    key, fields = str(error["loc"][0]), SiteConfig.model_fields
    if error["type"] == "missing":
        return f"the key {key} is missing ({fields[key].description})"
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}{suggestion(key, fields)}"
    return f"{key} = {error['input']!r} will not do ({fields[key].description})"
