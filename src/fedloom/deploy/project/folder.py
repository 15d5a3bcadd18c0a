"""A deployment's folder on the server: what lies where, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.deploy.settings import Settings
from fedloom.errors import BadInput
from fedloom.files import read_toml
from fedloom.runs.config import Names, checked

if TYPE_CHECKING:
    from fedloom.deploy.project.schema import Schema

EVERYWHERE = ("0.0.0.0", "::")
"""Addresses that mean every network of a machine."""

SCHEMA = "schema.toml"

WHICH_FOLDER = "name the folder that `fedloom deploy init` wrote"

PROJECT = "FEDLOOM_PROJECT"
"""Environment variable by which the SuperLink and its server apps know their project's folder."""

TLS_FILES = ("ca", "certificate", "key")


class LinkConfig(BaseModel):
    """The SuperLink, `server/link.toml`; paths in it are relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(9092, ge=1, le=65535)
    ca: Path | None = Field(None, description="certificate of the authority; none: no TLS")
    certificate: Path | None = Field(None, description="the server's certificate")
    key: Path | None = Field(None, description="its private key")
    hosts: Names = Field(
        (), description="further names by which sites call the server, beside its certificate's"
    )
    most_body_mb: float = Field(8, gt=0, description="megabytes of one request of a site")
    most_reply_mb: float = Field(
        1000, gt=0, description="megabytes of a reply, where the run does not say how much it is"
    )
    body_seconds: float = Field(120, gt=0, description="seconds for a request to arrive")
    connections: int = Field(1000, ge=10, description="open at a time")
    connections_per_address: int = Field(
        200, ge=5, description="of them, for one site, or for strangers at one address"
    )

    @property
    def tls(self) -> tuple[Path, Path, Path] | None:
        """Authority, certificate and key."""
        if self.ca is None or self.certificate is None or self.key is None:
            return None
        return self.ca, self.certificate, self.key

    @property
    def is_loopback(self) -> bool:
        """Is it for this machine alone?"""
        return self.bind.startswith("127.") or self.bind in ("::1", "localhost")

    @property
    def address(self) -> str:
        """Where this machine itself reaches it."""
        host = "127.0.0.1" if self.bind in EVERYWHERE else self.bind
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Project:
    """Written by `fedloom deploy init`, kept by whoever runs the server."""

    root: Path
    link: LinkConfig
    config: Mapping[str, Any]
    """Flower's run configuration, as written."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """From its folder."""
        root = root.resolve()  # the guard knows the project's commands by this path
        config = run_configuration(root)
        link = read_toml(root / "server" / "link.toml", "the project's", WHICH_FOLDER)
        for key in TLS_FILES:
            if isinstance(link.get(key), str):
                link[key] = root / "server" / link[key]
        if 0 < len([key for key in TLS_FILES if key in link]) < len(TLS_FILES):
            raise BadInput(f"{root / 'server' / 'link.toml'} needs all of {TLS_FILES}, or none")
        return cls(root, checked(LinkConfig, link), config)

    def settings(self, overrides: Mapping[str, Any] | None = None) -> Settings:
        """What a run with these overrides would be; refuses what would fail only later."""
        changes = {key.replace("_", "-"): value for key, value in (overrides or {}).items()}
        for key, value in changes.items():
            if key not in self.config:
                Settings.read({**self.config, key: value})  # a misspelt key is refused as such
                raise BadInput(f"{key} is not in {self.root / 'pyproject.toml'}; add it there")
        return Settings.read({**self.config, **changes})

    def schema(self) -> Schema:
        """What the data of all sites must look like."""
        from fedloom.deploy.project.schema import Schema

        hint = f"write it with `fedloom deploy schema {self.root} EXAMPLE.csv`"
        return Schema.read(self.schema_file, hint)

    def site(self, name: str) -> Path:
        """The configuration of a site, as it was handed out."""
        return self.root / "sites" / name / "site.toml"

    def out(self, settings: Settings) -> Path:
        """The server's folder of a run: `sites.json`, and the run's folder `run`."""
        return self.root / str(settings.run.out)

    @property
    def keys_folder(self) -> Path:
        """Public keys of the sites that may connect."""
        return self.root / "server" / "keys"

    @property
    def keys(self) -> list[Path]:
        """The files of them."""
        return sorted(self.keys_folder.glob("*.pub"))

    @property
    def schema_file(self) -> Path:
        """What the data of all sites must look like."""
        return self.root / SCHEMA

    @property
    def home(self) -> Path:
        """Flower's own folder on the server."""
        return self.root / "server" / "flower"


def run_configuration(root: Path) -> dict[str, Any]:
    """Flower's run configuration, as a project has it; all that a site's copy of one needs."""
    file = root / "pyproject.toml"
    try:
        return dict(read_toml(file, "the project's", WHICH_FOLDER)["tool"]["flwr"]["app"]["config"])
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{file} has no [tool.flwr.app.config]; {WHICH_FOLDER}") from None


def out_of(experiment: str) -> str:
    """The server's folder of an experiment, within the project."""
    return f"server/runs/{experiment}"


def toml_value(value: Any) -> str:
    """One value as TOML writes it; None, which TOML lacks, as the empty text.

    >>> toml_value(True), toml_value(0.1), toml_value(None), toml_value("it's")
    ('true', '0.1', '""', '"it\\'s"')
    """
    if value is None:
        return '""'
    if isinstance(value, tuple | list):
        return toml_value(",".join(map(str, value)))
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
