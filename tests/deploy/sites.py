"""Sites' data for tests: written to their folders, and gathered in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedloom.data import FederatedData, Partition, load
from fedloom.data.partition.assignment import ClientRows
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig


def write_rows(file: Path, kinds: Sequence[int], most: int = 90) -> None:
    """Digits of these classes as a site's .npz."""
    source = load("digits")
    rows = np.flatnonzero(np.isin(source.y, kinds))[:most]
    np.savez(file, x=np.asarray(source.x)[rows], y=np.asarray(source.y)[rows])


def digits_schema() -> Schema:
    """What the digits look like, whatever classes a site has of them."""
    names = tuple("0123456789")
    return Schema(kind="image", shape=(1, 8, 8), class_names=names, vocabulary=0, columns=())


def with_policy(site: str, rules: str) -> str:
    """The text of a site's file with this table of rules, which is its last one."""
    return re.split(r"(?m)^\[policy\]$", site)[0] + f"[policy]\n{rules}\n"


def gathered(files: Sequence[Path], settings: Settings) -> FederatedData:
    """What the sites hold, in one place: client i has exactly the rows and splits of site i.

    A site measures its own training rows only, which is `site` where all rows are in one place.
    """
    measured = settings.run.normalization in ("channel", "site")
    sites = [SiteData(SiteConfig.read(file), settings).divided for file in files]
    offsets = np.cumsum([0, *(len(site.source) for site in sites)])
    rows = [
        ClientRows(*(part + offset for part in site.partition.clients[0]))
        for site, offset in zip(sites, offsets, strict=False)
    ]
    source = type(sites[0].source).from_arrays(
        np.concatenate([site.source.x for site in sites]),
        np.concatenate([site.source.y for site in sites]),
        class_names=settings.class_names,
        normalize="site" if measured else None,
    )
    return FederatedData(source, Partition(tuple(rows), source=source.fingerprint))
