"""What several files of tests are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from site_to_spoil import SiteToSpoil
    from trouble import FederationUnderTest

collect_ignore = ["flower_waits"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteToSpoil]:
    """A good site; what it serves ends with the test."""
    from site_to_spoil import SiteToSpoil

    from fedloom.deploy.check import connection

    monkeypatch.setattr(connection, "PATIENCE", 60.0)  # the server's threads may be slow
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    with ExitStack() as stack:
        yield SiteToSpoil(tmp_path, stack)


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationUnderTest]:
    """One link and four sites for all tests with real processes, each with its own experiment.

    Such tests have the mark `xdist_group("federation")`, so that one worker runs them all.
    """
    from trouble import federation_under_test

    with federation_under_test(tmp_path_factory.mktemp("federation")) as started:
        yield started
