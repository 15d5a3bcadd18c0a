"""What several files of tests are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from site_to_spoil import SiteToSpoil


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteToSpoil]:
    """A good site; what it serves ends with the test."""
    from site_to_spoil import SiteToSpoil

    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    with ExitStack() as stack:
        yield SiteToSpoil(tmp_path, stack)
