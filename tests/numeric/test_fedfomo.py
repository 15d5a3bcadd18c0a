"""FedFomo on quadratics f_i(w) = (w - a_i)^2 / 2; a client with one row validates on that row.

u_n = (L(theta_i') - L(theta_n)) / |theta_n - theta_i'|, theta_i' being the model before the last
training, and theta_i becomes the mean of the models with positive u, weighted by u, its own among
them. A step of lr = 1/4 goes a quarter of the way to a_i. A client that has never trained has the
gain 0 of its own model, as this is its theta_i'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from quadratic import Play, full, kept, point, product, rows, server_value, value

from fedloom.core.data import ClientData
from fedloom.core.net import METHOD
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Site, Visit
from fedloom.core.term import Term
from fedloom.core.tree import clone
from fedloom.errors import BadInput
from fedloom.method_tools.holdout import hold_out
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedfomo import FedFomo
from fedloom.methods.local import Local
from fedloom.ops.greedy import epsilon_greedy
from helpers import Table, finite, mlp, run, same, table, tables


def fomo(others=2, epsilon=0.0, **more):
    return FedFomo(models=others + 1, epsilon=epsilon, opt=full(0.25), **more)


def on_server(play, *values):
    """Put these models on the server, as if everybody had answered."""
    mine = play.server["fedfomo"]
    mine["head.weight"] = torch.tensor(values).double().reshape(-1, 1, 1)
    mine["answered"] = torch.ones(len(values), dtype=torch.bool)
    return play


def affinity(play):
    return play.server["fedfomo"]["affinity"].tolist()


def test_two_rounds_by_hand():
    """w = 16, a = (0, 32, -16). Round 1, nobody has models to offer: theta = (12, 20, 8).

    Round 2 measures from 16. Client 0, L = 128: its own 12 has u = (128 - 72)/4 = 14, u_1 =
    (128 - 200)/4 = -18, u_2 = (128 - 32)/8 = 12: it takes (14 * 12 + 12 * 8)/26 and trains from
    there. Client 1, L = 128: own 14, u_0 = -18, u_2 = (128 - 288)/8 = -20: its own 20, to 23.
    Client 2, L = 512: own (512 - 288)/8 = 28, u_0 = (512 - 392)/4 = 30, u_1 = (512 - 648)/4 = -34.
    P keeps what the models were worth, also where it is negative. Without their own models, clients
    0 and 2 would begin at 8 and 12 and client 1 at 16; from 12, 20 and 8, u would be as below.
    """
    play = Play(fomo(), point(16.0), rows(0.0), rows(32.0), rows(-16.0)).round()
    assert [kept(play, i, "fedfomo") for i in range(3)] == [12.0, 20.0, 8.0]
    assert affinity(play) == torch.eye(3).tolist()
    play.round()
    assert affinity(play) == [[1.0, -18.0, 12.0], [-18.0, 1.0, -20.0], [30.0, -34.0, 1.0]]
    starts = [(14 * 12 + 12 * 8) / 26, 20.0, (28 * 8 + 30 * 12) / 58]
    assert [kept(play, i, "fedfomo", "before/head.weight") for i in range(3)] == pytest.approx(
        starts
    )
    ends = [0.75 * w + 0.25 * a for w, a in zip(starts, (0, 32, -16), strict=True)]
    assert [kept(play, i, "fedfomo") for i in range(3)] == pytest.approx(ends)


def test_measured_from_the_current_model_by_hand():
    """As above, with baseline "current". Client 0 at 12, L = 72: u_1 = (72 - 200)/8 = -16,
    u_2 = (72 - 32)/4 = 10: it takes 8 and trains to 6. Client 1, L = 72: u_0 = (72 - 200)/8 = -16,
    u_2 = (72 - 288)/12 = -18: stays, 23. Client 2, L = 288: u_0 = (288 - 392)/4 = -26,
    u_1 = (288 - 648)/12 = -30: stays, 2."""
    method = fomo(baseline="current")
    play = Play(method, point(16.0), rows(0.0), rows(32.0), rows(-16.0)).round().round()
    assert [kept(play, i, "fedfomo") for i in range(3)] == [6.0, 23.0, 2.0]
    assert affinity(play) == [[1.0, -16.0, 10.0], [-16.0, 1.0, -18.0], [-26.0, -30.0, 1.0]]


@pytest.mark.parametrize(("baseline", "w"), [("before", 16.0), ("current", 12.0)])
def test_a_training_that_did_harm_is_undone(baseline, w):
    """Trained from 16 to 12, validated against 32: L rises from 128 to 200, nobody else is there,
    and the client begins again at 16. What it sent was 12; where it began stays with it."""
    data = replace(rows(0.0), val=rows(32.0).train)
    play = Play(fomo(baseline=baseline), point(16.0), data).round()
    assert value(play.site(0).w) == w
    assert value(play.up[0].state[METHOD]) == 12.0
    assert set(play.up[0].state["fedfomo"]) == {"gains"}
    assert set(play.server["fedfomo"]) == {"head.weight", "affinity", "answered"}


def test_weights_are_by_loss_over_distance():
    """theta = 16, a = 0, offered 8 and 12: u = (128 - 32)/8 = 12 and (128 - 72)/4 = 14, so
    theta = (12 * 8 + 14 * 12)/26. Without the distance it would be (96 * 8 + 56 * 12)/152."""
    play = on_server(Play(fomo(), point(16.0), rows(0.0), rows(0.0), rows(0.0)), 99.0, 8.0, 12.0)
    site = play.site(0)
    assert value(site.w) == pytest.approx((12 * 8 + 14 * 12) / 26, abs=1e-12)
    assert sorted(site.memo["fedfomo"].tolist()) == [0.0, 12.0, 14.0]


def test_the_distance_is_over_all_parameters():
    """theta = (b, h) = (4, 2), a = 2: L = 18; offered (1, 6): L = 8, at a distance of
    sqrt(3^2 + 4^2) = 5: u = 2."""
    play = Play(fomo(), product(4.0, 2.0), rows(2.0), rows(2.0))
    mine = play.server["fedfomo"]
    mine["body.weight"], mine["head.weight"] = (
        torch.tensor([9.0, v]).double().reshape(-1, 1, 1) for v in (1.0, 6.0)
    )
    mine["answered"] = torch.ones(2, dtype=torch.bool)
    site = play.site(0)
    assert site.memo["fedfomo"].tolist() == [0.0, 2.0]
    assert (value(site.w), value(site.w, "body.weight")) == (6.0, 1.0)


def test_the_distance_is_not_over_running_statistics():
    """A model whose head's bias is (3, 4, 0) further and whose running statistics are far away:
    u is the difference of losses over 5."""
    program = Program(FedFomo(), mlp(norm=True), 2)
    server, data = initial_server(program), with_validation(7, 10).members[0]
    mine = server["fedfomo"] = clone(server["fedfomo"])
    mine["head.bias"][1] += torch.tensor([3.0, 4.0, 0.0])
    mine["body.1.running_mean"][1] += 100.0
    mine["body.1.num_batches_tracked"][1] += 1000
    mine["answered"] = torch.ones(2, dtype=torch.bool)
    r = Round(program, program.schedule(1)[0], server)
    site = Site(Visit(program, 0, data, send(r, 0)))
    loss_of_own, loss_of_other = (
        site.task.loss(site.scan("head", w, data.val), data.val.y)
        for w in (site.net.tree(), {k: mine[k][1] for k in site.net.keys})
    )
    assert abs(loss_of_own - loss_of_other) > 0.01
    assert float(site.memo["fedfomo"][1]) == pytest.approx(
        float(loss_of_own - loss_of_other) / 5, rel=1e-4
    )


def test_a_model_that_is_ones_own_is_worth_nothing():
    """0/0 must not spoil the others: offered 16 and 8."""
    play = on_server(Play(fomo(), point(16.0), rows(0.0), rows(0.0), rows(0.0)), 0.0, 16.0, 8.0)
    site = play.site(0)
    assert sorted(site.memo["fedfomo"].tolist()) == [0.0, 0.0, 12.0]
    assert value(site.w) == 8.0


def sent(play, cid, t=1):
    r = Round(play.program, play.program.schedule(t)[-1], play.server)
    return sorted(send(r, cid).state["fedfomo"]["ids"].tolist())


def test_the_server_sends_the_models_of_highest_affinity_and_never_ones_own():
    """Row 0 of P is (9, 1, 3, 2, 0): clients 2 and 3. Where 2 has not answered, 1 and 3; with
    four others all that have answered. A newcomer may get any, and client 0 too."""
    play = on_server(Play(fomo(), point(16.0), *[rows(0.0)] * 5), *[1.0] * 5)
    play.server["fedfomo"]["affinity"][0] = torch.tensor([9.0, 1.0, 3.0, 2.0, 0.0])
    assert sent(play, 0) == [2, 3]
    play.server["fedfomo"]["answered"][2] = False
    assert sent(play, 0) == [1, 3]
    play.program = Program(fomo(others=4), point(16.0), 5, task=play.program.task)
    assert sent(play, 0) == [1, 3, 4]
    assert sent(play, 7) == [0, 1, 3, 4]


def test_epsilon_greedy_explores_as_often_as_it_should():
    """Ten scores, two wanted. epsilon = 0: always the best two. epsilon = 1: each place with
    probability 2/10. epsilon = 1/2: the best is left out only where both choices explore and miss
    it, 1/4 * 8/10, so it is there with probability 0.8."""
    score, gen = torch.arange(10.0), generator("greedy")

    def share_of_best(epsilon):
        drawn = [epsilon_greedy(score, 2, epsilon, gen).tolist() for _ in range(2000)]
        assert all(len(set(ids)) == 2 for ids in drawn)
        return sum(9 in ids for ids in drawn) / len(drawn)

    assert share_of_best(0.0) == 1.0
    assert share_of_best(1.0) == pytest.approx(0.2, abs=0.04)
    assert share_of_best(0.5) == pytest.approx(0.8, abs=0.04)
    ties = {tuple(epsilon_greedy(torch.zeros(3), 1, 0.0, gen).tolist()) for _ in range(50)}
    assert ties == {(0,), (1,), (2,)}


def test_epsilon_falls_to_nothing():
    """epsilon = 1, falling by 1/2: round 1 all at random, from round 3 on the best two."""
    method = fomo(epsilon=1.0, epsilon_decay=0.5)
    play = on_server(Play(method, point(16.0), *[rows(0.0)] * 9), *[1.0] * 9)
    play.server["fedfomo"]["affinity"] = torch.arange(9.0).expand(9, 9).clone()
    wanted = {cid: [j for j in (8, 7, 6) if j != cid][:2] for cid in range(9)}
    greedy = {t: sum(sent(play, cid, t) == sorted(wanted[cid]) for cid in range(9)) for t in (1, 3)}
    assert greedy[3] == 9
    assert greedy[1] < 5


# ------------------------------------------------------------------ validation rows


@dataclass(frozen=True)
class SeenRows(Term):
    """Writes down the inputs that train."""

    name: ClassVar[str] = "seen_rows"
    seen: ClassVar[list[float]] = []

    def inputs(self, b, s):
        self.seen.extend(b.x.flatten().tolist())


def test_a_fifth_of_the_training_rows_is_held_out_for_good():
    """Ten different rows: the same eight train in every round, and the other two validate."""
    data = ClientData(
        Table(torch.arange(10.0).double()[:, None], torch.zeros(10, 1)), None, None, 1
    )
    play = Play(replace(fomo(), opt=full(1e-3)) + SeenRows(), point(0.0), data)
    trained = []
    for _ in range(3):
        SeenRows.seen.clear()
        play.round()
        trained.append(sorted(SeenRows.seen))
    assert trained[0] == trained[1] == trained[2]
    assert len(trained[0]) == 8
    val = play.site(0).data.val
    assert sorted(val.x(torch.arange(2)).flatten().tolist() + trained[0]) == list(range(10))
    assert play.up[0].n == 10


def test_a_given_validation_split_is_used_and_all_training_rows_train():
    """Trained towards a = 0, validated against 32: of 20 and 8 the model 20 helps."""
    data = rows(0.0, n=5)
    data = replace(data, val=rows(32.0).train)
    play = on_server(
        Play(fomo() + SeenRows(), point(16.0), data, rows(0.0), rows(0.0)), 0.0, 20.0, 8.0
    )
    assert value(play.site(0).w) == 20.0
    SeenRows.seen.clear()
    play.round(0)
    assert len(SeenRows.seen) == 5


@pytest.mark.parametrize(("n", "held_out"), [(2, 1), (3, 1), (10, 2), (101, 20)])
def test_hold_out_keeps_at_least_one_row_on_either_side(n, held_out):
    split = table(n)
    rest, out = hold_out(split, 0.2, generator("hold"))
    assert (len(rest), len(out)) == (n - held_out, held_out)
    together = torch.cat([part.x(torch.arange(len(part))) for part in (rest, out)])
    assert sorted(together[:, 0].tolist()) == sorted(split.rows[:, 0].tolist())
    assert torch.equal(out.y, out.x(torch.arange(len(out)))[:, :3].argmax(1))


# ------------------------------------------------------------------ settings that change nothing


def with_validation(*sizes):
    data = tables(*sizes)
    members = [replace(m, val=table(4, key=50 + i)) for i, m in enumerate(data.members)]
    return replace(data, members=members)


def test_without_downloads_it_is_local_training_bit_for_bit():
    opt = Opt(lr=0.1, batch=3, epochs=2, momentum=0.5)
    fed, local = (
        run(Program(replace(m, opt=opt), mlp(norm=True), 3), with_validation(7, 10, 5), rounds=3)
        for m in (FedFomo(models=1, baseline="current"), Local())
    )
    for cid in range(3):
        kept_too = {k: v for k, v in fed.clients[cid]["fedfomo"].items() if "before/" not in k}
        assert same(kept_too, local.clients[cid][METHOD])


def test_the_first_round_is_fedavgs():
    """Nothing to download yet: everybody trains the initial model, and the server's mean is
    FedAvg's to the bit."""
    opt = Opt(lr=0.1, batch=3)
    ends = [
        run(Program(m, mlp(norm=True), 2), with_validation(7, 10), rounds=1).server[METHOD]
        for m in (FedAvg(opt=opt), FedFomo(opt=opt))
    ]
    assert same(*ends)


def test_the_global_model_is_the_mean_and_goes_to_nobody():
    play = Play(fomo(), point(16.0), rows(0.0), rows(32.0), rows(-16.0)).round()
    assert server_value(play) == pytest.approx(40 / 3)
    play.round()
    assert set(play.down[0].state[METHOD]) == set()


@pytest.mark.parametrize("term", ["dbe", "fedbr", "proximal(mu=0.1)"])
def test_composes(term):
    method = replace(parse_method(f"fedfomo + {term}"), opt=Opt(lr=0.05, batch=4))
    played = run(Program(method, mlp(norm=True), 3), tables(9, 6, 12), rounds=3)
    assert finite(played.server)
    rows_held = {k.split(".")[0] for k in played.server["fedfomo"]}
    assert rows_held == {"body", "head", "affinity", "answered"}
    if term == "fedbr":  # its projection is averaged, as everywhere, and reaches the clients
        last = [a for a in played.answers if a.plan.t == 3]
        assert all(k.startswith("fedbr.") for a in last for k in a.down.state[METHOD])
        assert any(a.down.state[METHOD] for a in last)


@pytest.mark.parametrize(
    "wrong",
    [{"models": 0}, {"epsilon": 1.5}, {"validation": 0.0}, {"validation": 1.0}, {"baseline": "w"}],
)
def test_bad_values(wrong):
    with pytest.raises(BadInput):
        FedFomo(**wrong)
