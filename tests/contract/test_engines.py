"""Every registered method, recipe and term on worker processes and over Flower's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from cases import ALL, case

from fedloom.engines.pool import Pool
from fedloom.testing.checks import check_flower_gives_the_same, check_pool_gives_the_same

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One for all methods; the data it shares with its processes are in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        pool = Pool(workers=2)
        yield pool
        pool.close()


@pytest.mark.parametrize("name", ALL)
def test_worker_processes_change_nothing(name: str, pool: Pool) -> None:
    check_pool_gives_the_same(replace(case(name), engines={"pool": pool}))


@pytest.mark.parametrize("name", ALL)
def test_flowers_messages_change_nothing(name: str) -> None:
    check_flower_gives_the_same(case(name))
