"""One thread, as in a run: the bytes of a sum depend on how many threads share it; and processes
that start at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from fedloom import extensions
from warm_processes import install

torch.set_num_threads(1)
install()


@pytest.fixture(autouse=True)
def _nothing_to_import_stays_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Worker processes of the next test would look for the modules of this one."""
    monkeypatch.setattr(extensions, "_modules", dict(extensions._modules))
    path = list(sys.path)
    yield
    sys.path[:] = path


collect_ignore = ["own_code"]
"""Files that tests give to processes of their own: importing them here would register them."""
