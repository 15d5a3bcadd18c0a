"""A site's own file, `site.toml`; imports no torch, so that `fedloom deploy node` stays small."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.files import read_toml
from fedloom.policy import Policy
from fedloom.policy.policy import Size
from fedloom.runs.config import checked


class SiteConfig(BaseModel):
    """A site's own file, `site.toml`; paths in it are relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="what the federation calls this site")
    data: Path = Field(description="file (.npz, .csv, .parquet) or folder of images per class")
    label: str | None = Field(None, description="label column of a table")
    schema_file: Path | None = Field(
        None, description="what the data of all sites must look like, from the server"
    )
    units: dict[str, str] = Field(
        {}, description="units of columns, where your table has others than the schema"
    )
    state: Path = Field(description="folder for what stays here: states and the personal model")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps ...")
    superlink: str = Field("127.0.0.1:9092", description="host:port of the server's SuperLink")
    ca: Path | None = Field(None, description="certificate of the authority; none: no TLS")
    key: Path | None = Field(None, description="this site's private key; none: no authentication")
    port: int = Field(9094, ge=1, le=65535, description="port of the SuperNode, on this machine")
    most_disk: Size = Field(
        10**10, description="what state may take on the disk, as bytes or text such as '10 GB'"
    )
    most_memory: Size | None = Field(
        None,
        description="memory that looking into a proposal may take, as bytes or text such as"
        " '8 GB'; by default half of the machine's",
    )
    policy: Policy = Field(
        Policy.checked(), description="what this site permits: the table [policy]"
    )

    @classmethod
    def read(cls, file: Path) -> Self:
        """From a TOML file."""
        written = cls.written(file)
        return checked(cls, {**written, "policy": Policy.of(written, file)})

    @staticmethod
    def written(file: Path) -> dict[str, Any]:
        """What a TOML file says, with its paths made absolute; not validated."""
        written = read_toml(file, "the site's configuration")
        for key in ("data", "schema_file", "state", "ca", "key"):
            if isinstance(written.get(key), str):
                written[key] = file.absolute().parent / written[key]
        return written
