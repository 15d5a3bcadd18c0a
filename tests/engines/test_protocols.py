"""What a protocol asks of clients gives the same bytes and scores on every engine."""

from __future__ import annotations

import pytest

import fedloom as fl
from helpers import digits, with_shared_tests

DATA = with_shared_tests(digits(*[((i, i + 1), 16) for i in range(4)]))
"""Four equal clients, which small engines train side by side."""


@pytest.mark.parametrize("engine", ["vectorized", "pool", "flower"])
@pytest.mark.parametrize(
    ("method", "protocol"),
    [
        ("fedavg", "fedcr(head_epochs=2)"),
        ("ditto", "fedcr(head_epochs=2)"),
        ("local", "fedbr"),
        ("fedper", "fedloom(moment=trained, on=shared)"),
        ("fedavg", "fedbr(select=best_val)"),
    ],
)
def test_every_engine_answers_a_protocol_alike(engine: str, method: str, protocol: str) -> None:
    first, other = (
        fl.run(
            method,
            DATA,
            model="mlp(hidden=[8])",
            rounds=2,
            participation=0.5,
            protocol=protocol,
            engine=name,
            progress=False,
        )
        for name in ("inline", engine)
    )
    assert other.summary.state_sha256 == first.summary.state_sha256
    assert [r.scores for r in other.records] == [r.scores for r in first.records]
    assert other.summary.result == first.summary.result
