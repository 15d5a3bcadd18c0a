"""What `fedloom verify` draws: the stated odds are those of the draw, over many seeds."""

from __future__ import annotations

import pytest

from fedloom.verification.draw import Answer, Drawn, Lottery

SEEDS = 4000
TEN = [range(10)] * 12
"""Twelve rounds that ten clients answered."""


def computed(drawn: Drawn, lottery: Lottery) -> set[Answer]:
    """Every answer that a draw has computed again."""
    whole = {(t, c) for steps in drawn.stretches for t in steps for c in lottery.answered[t]}
    return whole | set(drawn.answers)


def caught_share(lottery: Lottery, changed: set[Answer]) -> float:
    hits = sum(bool(changed & computed(lottery.draw(seed), lottery)) for seed in range(SEEDS))
    return hits / SEEDS


@pytest.mark.parametrize("begins", [range(12), [0, 3, 6, 9], [0, 1, 2, 3, 4, 8], [0]])
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({(1, 3)}, id="one answer"),
        pytest.param({(10, 3)}, id="one late answer"),
        pytest.param({(1, c) for c in range(10)}, id="a round"),
        pytest.param({(t, 3) for t in range(12)}, id="a client"),
    ],
)
def test_the_stated_odds_are_those_of_the_draw(begins: list[int], changed: set[Answer]) -> None:
    lottery = Lottery(TEN, begins, share=0.1)
    assert caught_share(lottery, changed) == pytest.approx(lottery.caught(changed), abs=0.03)


def test_odds_worked_by_hand() -> None:
    """Before each of 12 rounds of 10 answers all is kept: 5 % are 1 round of 12 and 6 of 120
    answers, so one answer is missed with 11/12 * 114/120, and all ten of a round by chance of the
    six falling among the other 110."""
    odds = Lottery(TEN, range(12), share=0.05).odds()
    assert odds is not None
    others = 1.0
    for i in range(10):
        others *= (120 - 6 - i) / (120 - i)
    assert odds.answer == pytest.approx(1 - 11 / 12 * 114 / 120)
    assert odds.round == pytest.approx(1 - 11 / 12 * others)
    assert odds.client == 1.0  # the round that is computed whole has every client
    assert odds.server == pytest.approx(1 / 12)


def test_at_least_the_share_is_computed_again_for_every_place() -> None:
    for begins in (range(12), [0, 5], [0]):
        lottery = Lottery(TEN, begins, share=0.05)
        assert all(lottery.caught([(t, c)]) >= 0.05 for t in range(12) for c in range(10))


def test_a_stretch_ends_with_the_last_round_that_is_wanted() -> None:
    lottery = Lottery(TEN, begins=[0, 6], share=1.0, steps=[7, 8])
    assert lottery.draw(0) == Drawn((range(6, 9),), ())


def test_of_chosen_clients_only_these_answers_are_drawn() -> None:
    lottery = Lottery(TEN, begins=range(12), share=1.0, clients=[3])
    assert lottery.draw(0) == Drawn((), tuple((t, 3) for t in range(12)))
    odds = lottery.odds()
    assert odds is not None
    assert (odds.answer, odds.server) == (1.0, 0.0)


def test_the_same_seed_draws_the_same() -> None:
    lottery = Lottery(TEN, range(12), share=0.3)
    assert lottery.draw(7) == lottery.draw(7) != lottery.draw(8)
