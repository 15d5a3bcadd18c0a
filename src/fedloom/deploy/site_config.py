"""A site's own file, `site.toml`; imports no torch, so that `fedloom deploy node` stays small."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.files import read_toml
from fedloom.runs.config import checked


class SiteConfig(BaseModel):
    """A site's own file, `site.toml`; paths in it are relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="what the federation calls this site")
    data: Path = Field(description="file (.npz, .csv, .parquet) or folder of images per class")
    label: str | None = Field(None, description="label column of a table")
    state: Path = Field(description="folder for what stays here: states and the personal model")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps ...")
    superlink: str = Field("127.0.0.1:9092", description="host:port of the server's SuperLink")
    ca: Path | None = Field(None, description="certificate of the authority; none: no TLS")
    key: Path | None = Field(None, description="this site's private key; none: no authentication")
    port: int = Field(9094, ge=1, le=65535, description="port of the SuperNode, on this machine")

    @classmethod
    def read(cls, file: Path) -> Self:
        """From a TOML file."""
        return checked(cls, cls.written(file))

    @staticmethod
    def written(file: Path) -> dict[str, Any]:
        """What a TOML file says, with its paths made absolute; not validated."""
        written = read_toml(file, "the site's configuration")
        for key in ("data", "state", "ca", "key"):
            if isinstance(written.get(key), str):
                written[key] = file.absolute().parent / written[key]
        return written
