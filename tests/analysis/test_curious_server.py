"""The server of benchmarks/leaks.py on messages of real rounds, where the answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.analysis import identify, share_error
from fedloom.core.data import ClientData
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.methods import parse_method
from helpers import Table, Tables, mlp, play

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNTS = ((5, 1, 2), (0, 4, 4))


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import leak_attacks

    return leak_attacks


def rows_of(counts: tuple[int, ...], key: int) -> Table:
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Table(torch.randn(len(y), 4, generator=generator("curious", key)), y)


def federation() -> Tables:
    return Tables(
        [
            ClientData(rows_of(c, i), None, rows_of((9, 9, 9), -1 - i), 3)
            for i, c in enumerate(COUNTS)
        ]
    )


def heard(attacks: Any, method: str, rounds: int) -> tuple[Any, list[Any], Tables]:
    """The server, all messages of client 0, and the truth."""
    data, program = federation(), Program(parse_method(method), mlp(hidden=24), 2, seed=3)
    played = play(program, data, program.schedule(rounds))
    server = attacks.Curious(program, attacks.Rows.of(data.client(1).test))
    messages = [
        attacks.Message(a.plan, a.cid, a.down.state, a.up.state, a.up.n)
        for a in played.answers
        if a.cid == 0 and a.plan.kind != "adapt"
    ]
    return server, messages, data


def test_means_of_rows_that_the_seed_tells_are_one_linear_system(attacks: Any) -> None:
    """Two rounds after the first pseudo-images: 3 * 8 means of 3 of 8 rows determine them all."""
    server, messages, data = heard(attacks, "fedavg(batch_size=4) + fedbr(of=3, images=16)", 2)
    found = server._rows_of_means(messages)
    assert torch.allclose(found, data.client(0).train.rows, atol=1e-4)


def test_counts_that_are_sent_are_the_labels(attacks: Any) -> None:
    server, messages, _ = heard(attacks, "fedpac(batch_size=4)", 1)
    assert share_error(server.label_shares(messages[-1])["counts"], COUNTS[0]) == 0.0


def test_a_class_of_one_row_has_that_row_s_features_for_a_prototype(attacks: Any) -> None:
    server, messages, data = heard(attacks, "fedpac(batch_size=4)", 1)
    w, row = server.trained(messages[-1]), data.client(0).train.rows[5:6]
    assert torch.allclose(
        server._prototypes(messages[-1])[1], server.features(w, row)[0], atol=1e-5
    )


def test_a_step_of_one_row_gives_the_row(attacks: Any) -> None:
    server, messages, data = heard(attacks, "fedavg(batch_size=1, steps=1)", 1)
    found = server._rows_of_dense_layer(messages[0])
    told = identify(found, data.client(0).train.rows, data.client(1).train.rows)
    assert len(told.exact) == 1


def test_one_step_over_all_rows_tells_their_labels(attacks: Any) -> None:
    """Also from the body alone, with a head that the server trains itself."""
    server, messages, _ = heard(attacks, "fedavg(batch_size=100)", 1)
    assert share_error(server.label_shares(messages[0])["bias"], COUNTS[0]) < 0.15


def test_sums_of_precisions_show_which_classes_there_are(attacks: Any) -> None:
    data = federation()
    program = Program(
        parse_method("fedcr(batch_size=4, dim=4, samples=2)"), mlp(hidden=24), 2, seed=3
    )
    answers = play(program, data, program.schedule(1)[:1]).answers
    second = attacks.Message(
        answers[1].plan, 1, answers[1].down.state, answers[1].up.state, answers[1].up.n
    )
    server = attacks.Curious(program, attacks.Rows.of(data.client(0).test))
    shares = server.label_shares(second)["sums"]
    assert float(shares[0]) == 0.0
    assert share_error(shares, COUNTS[1]) < 0.1


def test_the_mean_of_a_round_is_weighted(attacks: Any) -> None:
    """(1 * 2 + 3 * 6) / 4 = 5."""
    each = [
        attacks.Message(None, i, {}, {"model": {"w": torch.tensor(v)}}, n)
        for i, (v, n) in enumerate(((2.0, 1), (6.0, 3)))
    ]
    mean = attacks.mean_message(each, lambda m: float(m.n))
    assert float(mean.up["model"]["w"]) == 5.0
    assert mean.n == 4


def test_an_attack_is_scored_on_clients_that_it_was_not_chosen_on(attacks: Any) -> None:
    values = {"a": [1.0, 0.0, 1.0, 0.0], "b": [0.0, 1.0, 0.0, 1.0]}
    assert attacks.strongest(values, [True, False, True, False]) == ("a", "b")
