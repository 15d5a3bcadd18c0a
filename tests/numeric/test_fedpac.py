"""FedPAC: its matrix, its quadratic program, its phases, and which head goes to whom."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest
import torch
from game import Game, Watch, cloud, features, identity, part, rows
from torch import nn

from fedloom.core.message import Up
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, merge
from fedloom.core.tree import WeightedSum, clone, nbytes
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput
from fedloom.methods.fedpac import FedPAC
from fedloom.methods.fedrep import FedRep
from fedloom.ops import simplex_qp as qp
from fedloom.ops.combination import (
    centered,
    combination_programs,
    combination_weights,
    combined,
    head_statistics,
)
from fedloom.ops.prototypes import class_means, pooled_means
from fedloom.ops.shared_qp import likely_supports
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.runner import Runner
from helpers import mlp, run, same, tables


def simplex_qp(matrix):
    return qp.simplex_qp(torch.from_numpy(matrix)).numpy()


# ------------------------------------------------------------------ the matrix


def samples(m=4, d=3, classes=4, key=0):
    """Features and labels of m clients; client 0 has two classes only, client 1 one sample."""
    gen = generator("samples", key)
    clients = []
    for i in range(m):
        n = 1 if i == 1 else 6 + 3 * i
        y = torch.randint(2 if i == 0 else classes, (n,), generator=gen)
        z = torch.randn(n, d, generator=gen, dtype=torch.float64) + y[:, None] + 0.3 * i
        clients.append((z, y))
    return clients


def stacked(clients, classes, full):
    each = [head_statistics(z, y, classes, full) for z, y in clients]
    return {k: torch.stack([s[k] for s in each]) for k in each[0]}


def paper_matrix(clients, classes, i, full):
    """diag(V/n) + D_i by the loops of eq. (33)-(39) or, with the identity, (44)-(46)."""

    def prior(j, y):
        return float((clients[j][1] == y).double().mean())

    def of(j, y):
        return clients[j][0][clients[j][1] == y].numpy()

    def h(j, y):
        return prior(j, y) * of(j, y).mean(0) if len(of(j, y)) else np.zeros(d)

    m, d = len(clients), clients[0][0].shape[1]
    z = clients[i][0].numpy()
    inverse = np.linalg.inv(z.T @ z / len(z)) if full else np.eye(d)
    matrix = np.zeros((m, m))
    for j in range(m):
        for k in range(m):
            for y in range(classes):
                gap = np.outer(h(i, y) - h(j, y), h(i, y) - h(k, y))
                matrix[j, k] += np.trace(inverse @ gap)
        for y in range(classes):
            if len(f := of(j, y)):
                second = np.trace(inverse @ (f.T @ f / len(f)))
                variance = prior(j, y) * second - h(j, y) @ inverse @ h(j, y)
                matrix[j, j] += variance / len(clients[j][1])
    return matrix


@pytest.mark.parametrize("full", [False, True])
def test_matrix_is_the_papers_triple_loop(full):
    """For every i; clients that can serve as i in the full form have more samples than d, so
    that E[ff'] has an inverse."""
    clients, classes = samples(), 4
    programs = combination_programs(stacked(clients, classes, full))
    matrices = [matrix[torch.arange(4)].numpy() for matrix, _ in programs]
    for i in [0, 2, 3] if full else range(4):
        expected = paper_matrix(clients, classes, i, full)
        assert np.abs(matrices[i] - expected).max() < 1e-11 * np.abs(expected).max()


def test_weights_by_hand():
    """d = 1. Client 0: f = 1, 3 of class 0: h = (2, 0), V = (1 + 9)/2 - 4 = 1, n = 2.
    Client 1: f = 2 of class 0, 4 of class 1: h = (1, 2), V = (4 + 16)/2 - 1 - 4 = 5, n = 2.
    |h_0 - h_1|^2 = 1 + 4 = 5, so the programs have diag(1/2, 5/2 + 5) and diag(1/2 + 5, 5/2), and
    a_j is proportional to one over the diagonal: (15, 1)/16 and (5, 11)/16."""
    clients = [
        (torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0])),
        (torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1])),
    ]
    statistics = stacked(clients, 2, full=False)
    assert statistics["h"].flatten(1).tolist() == [[2.0, 0.0], [1.0, 2.0]]
    assert statistics["variance"].tolist() == [1.0, 5.0]
    assert statistics["counts"].tolist() == [[2.0, 0.0], [1.0, 1.0]]
    weights = combination_weights(statistics)
    assert np.allclose(weights, [[15 / 16, 1 / 16], [5 / 16, 11 / 16]], atol=1e-12)
    dropped = combination_weights(statistics, drop_below=0.1)
    assert np.allclose(dropped, [[1, 0], [5 / 16, 11 / 16]], atol=1e-12)


def test_dropping_never_drops_all():
    """Four equal clients weigh 1/4 each; a threshold above that leaves them as they are, where
    dividing by the sum of nothing would give NaN."""
    z, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    weights = combination_weights(stacked([(z, y)] * 4, 2, full=False), drop_below=0.3)
    assert np.allclose(weights, 0.25)


@pytest.mark.parametrize("full", [False, True])
def test_centering_equals_subtracting_the_pooled_mean(full):
    """The server moves the statistics by the mean over all clients' samples; the same as if every
    client had subtracted that mean from its features."""
    clients = samples(key=1)
    mean = torch.cat([z for z, _ in clients]).mean(0)
    moved = [(z - mean, y) for z, y in clients]
    expected, shifted = stacked(moved, 4, full), centered(stacked(clients, 4, full))
    assert shifted.keys() == expected.keys()
    for k, v in expected.items():
        assert torch.allclose(shifted[k], v, atol=1e-12), k
    raw, central = (combination_weights(stacked(clients, 4, full), center=c) for c in (False, True))
    assert np.allclose(central, combination_weights(expected), atol=1e-9)
    assert not np.allclose(raw, central, atol=1e-2)


def test_fewer_samples_than_dimensions_in_the_full_form():
    """E[ff'] of two samples in five dimensions has no inverse; weights are still weights."""
    clients = [(z[:2], y[:2]) for z, y in samples(m=5, d=5, key=2)]
    weights = combination_weights(stacked(clients, 4, full=True)).numpy()
    assert np.isfinite(weights).all()
    assert np.allclose(weights.sum(1), 1)


def test_combined_by_hand():
    """Rows are results, columns sources; a transposed or permuted product gives other numbers."""
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]]).double()
    heads = torch.tensor([[[8.0]], [[16.0]], [[-4.0]]])
    assert combined(weights, heads).flatten().tolist() == [8.0, 7.0, 1.0]
    assert combined(weights, torch.tensor([8, 16, -6])).tolist() == [8, 6, 0]  # 6.5 and -0.5


# ------------------------------------------------------------------ the program


def by_enumeration(matrix):
    """The least a'Ma over all supports: inside one, a is proportional to M_SS^-1 1."""
    m, best = len(matrix), np.inf
    for size in range(1, m + 1):
        for inside in combinations(range(m), size):
            block = matrix[np.ix_(inside, inside)]
            a = np.linalg.solve(block, np.ones(size))
            if (a >= 0).all():
                best = min(best, 1 / a.sum())  # a'Ma / (1'a)^2
    return best


def random_problems(count):
    """Like FedPAC's, general, nearly singular, and with scales from 1e-6 to 1e6."""
    rng = np.random.default_rng(0)
    for i in range(count):
        m = int(rng.integers(1, 7))
        root = rng.normal(size=(m, m))
        if i % 4 == 0:  # a zero bias for one's own head
            gap = root - root[0]
            yield gap @ gap.T + np.diag(rng.uniform(0.01, 2, m))
        elif i % 4 == 1:
            yield root @ root.T
        elif i % 4 == 2:
            low = root[:, : max(1, m // 2)]
            yield low @ low.T + 1e-5 * np.eye(m)
        else:
            scale = np.diag(10.0 ** rng.uniform(-3, 3, m))
            yield scale @ (root @ root.T + 0.1 * np.eye(m)) @ scale


def test_solution_equals_enumeration():
    for matrix in random_problems(400):
        a = simplex_qp(matrix)
        assert (a >= 0).all()
        assert a.sum() == pytest.approx(1, abs=1e-12)
        assert a @ matrix @ a <= by_enumeration(matrix) * (1 + 1e-9)


def gap(matrix, a):
    """An upper bound on how far a'Ma is above the minimum, by convexity: for any b on the simplex
    b'Mb >= a'Ma + 2 (Ma)'(b - a) >= a'Ma - 2 (a'Ma - min Ma)."""
    return 2 * (a @ matrix @ a - (matrix @ a).min())


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("m", [5, 12])
def test_singular_matrices(rank, m):
    """A Gram matrix of low rank, some with equal clients: many solutions, or one of value zero."""
    rng = np.random.default_rng(rank)
    for i in range(40):
        root = rng.normal(size=(m, rank)) + (i % 2) * 3  # away from the origin: a value above zero
        if i % 3 == 0:
            root[1] = root[0]
        matrix = root @ root.T
        a = simplex_qp(matrix)
        assert (a >= 0).all()
        assert a.sum() == pytest.approx(1, abs=1e-12)
        assert gap(matrix, a) < 1e-9 * np.diag(matrix).mean()


def test_costless_clients():
    """All-equal costs nothing: uniform. One diagonal zero (a client with one sample has V = 0 and
    no bias to itself): all on it. Two: both, equally."""
    assert simplex_qp(np.zeros((3, 3))).tolist() == [1 / 3] * 3
    assert simplex_qp(np.diag([2.0, 0.0, 1.0])).tolist() == [0, 1, 0]
    assert simplex_qp(np.diag([0.0, 3.0, 0.0])).tolist() == [0.5, 0, 0.5]
    assert simplex_qp(np.ones((1, 1))).tolist() == [1]


def test_both_solvers_agree_and_large_problems_are_optimal(monkeypatch):
    rng = np.random.default_rng(5)
    problems = []
    for m in (40, 120):
        root = rng.normal(size=(m, 30)) + np.linspace(0, 3, m)[:, None]
        problems.append(root @ root.T + np.diag(rng.uniform(0.1, 1, m)))
    pivoted = [simplex_qp(p) for p in problems]
    assert all(gap(p, a) < 1e-9 * (a @ p @ a) for p, a in zip(problems, pivoted, strict=True))
    monkeypatch.setattr(qp, "_pivoting", lambda matrix, support: None)
    for p, a in zip(problems, pivoted, strict=True):
        assert np.allclose(simplex_qp(p), a, atol=1e-8)


def drawn_statistics(m, groups, spread, least_variance=0.5, k=4, d=8):
    """Of m clients in groups: h a group's h plus normal noise, V between a least one and 1."""
    gen = generator("drawn", m, groups)
    centre = torch.randn(groups, k, d, generator=gen)
    h = centre[torch.arange(m) % groups] + spread * torch.randn(m, k, d, generator=gen)
    variance = torch.rand(m, generator=gen).clamp_min(least_variance)
    counts = torch.randint(1, 30, (m, k), generator=gen).double()
    return {"h": h.double(), "variance": variance.double(), "counts": counts}


@pytest.mark.parametrize(
    "statistics",
    [
        drawn_statistics(80, groups=5, spread=0.05),
        drawn_statistics(60, groups=60, spread=0.0),
        drawn_statistics(60, groups=1, spread=0.02),
        drawn_statistics(60, groups=1, spread=0.0),
        drawn_statistics(60, groups=3, spread=1e-4, least_variance=1e-7),
        drawn_statistics(3, groups=2, spread=0.1),
        drawn_statistics(1, groups=1, spread=0.1),
    ],
    ids=["groups", "all unlike", "one group", "equal", "little variance", "three", "one"],
)
def test_a_guess_changes_the_time_and_not_the_solution(statistics):
    """The weights are those of the program solved from everyone, and optimal by the bound of
    `gap`. (Among clients that are all unlike, some of those programs give up pivoting and end in
    least squares: that is why not every bit is the same.)"""
    for matrix, start in combination_programs(statistics):
        whole = matrix[torch.arange(len(matrix))]
        a = qp.simplex_qp(matrix, start)
        assert torch.allclose(a, qp.simplex_qp(whole), rtol=0, atol=1e-12)
        assert gap(whole.numpy(), a.numpy()) <= 1e-9 * float(a @ whole @ a)


def test_guesses_are_right_and_leave_every_bit_as_it_was():
    programs = list(combination_programs(drawn_statistics(80, groups=5, spread=0.05)))
    solutions = [qp.simplex_qp(matrix) for matrix, _ in programs]
    right = [torch.equal(a > 0, start) for a, (_, start) in zip(solutions, programs, strict=True)]
    assert sum(right) > 0.95 * len(programs)
    for a, (matrix, start) in zip(solutions, programs, strict=True):
        assert torch.equal(qp.simplex_qp(matrix, start), a)


def test_a_wrong_guess_is_mended():
    """From any single client and from everyone else."""
    programs = list(combination_programs(drawn_statistics(12, groups=3, spread=0.3)))
    for i, (matrix, start) in enumerate(programs):
        alone = torch.arange(12) == i
        for wrong in (alone, ~alone, ~start | alone):
            assert torch.equal(qp.simplex_qp(matrix, wrong), qp.simplex_qp(matrix))


def test_supports_by_hand():
    """Q = diag(1, 2, 4). For b = 0 the weights are proportional to 1, 1/2, 1/4: everyone. For
    b = (0, 0, 9) the third alone: at a = (0, 0, 1) the slopes 2 (Qa - b) are 0, 0 and -10. For b =
    (3, 3, 0) the first two: a = (2/3, 1/3, 0) has slopes -14/3, -14/3 and 0."""
    q = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    b = torch.tensor([[0, 0, 0], [0, 0, 9], [3, 3, 0]], dtype=torch.float64)
    expected = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 1, 0]]).bool()
    assert torch.equal(likely_supports(q, b), expected)
    assert likely_supports(torch.zeros_like(q), b) is None


# ------------------------------------------------------------------ alignment, by hand

STILL = Opt(lr=0.0, batch=100)


def test_alignment_by_hand():
    """f(x) = Wx, W = I, d = 2, a head of zeros that is not trained (rate 0), so cross-entropy has
    no gradient in W and alignment alone moves it. x = (1, 0), (3, 0), one class.

    Round 1 has no centroid: W stays. The centroid is then (2, 0). Round 2, one step:
    grad = lam 2/(n d) sum (f - c) x' = 2/4 (-1 * 1 + 1 * 3) = 1 at [0, 0], so with lam = 1/2 and
    lr = 1/4, W[0, 0] = 1 - 1/8. Without the mean over d it would be 3/4, summed over the batch 3/4.
    """
    method = FedPAC(lam=0.5, head_lr=0.0, opt=Opt(lr=0.25, batch=100))
    game = Game(method, identity(2, classes=2), rows([[1, 0], [3, 0]], [1, 1], 2)).round()
    assert game.up[0].state["model"]["body.weight"].tolist() == [[1, 0], [0, 1]]
    assert game.server["fedpac"]["centroids"].tolist() == [[[0, 0], [2, 0]]]
    assert game.server["fedpac"]["known"].tolist() == [[False, True]]
    game.round()
    assert game.up[0].state["model"]["body.weight"].tolist() == [[0.875, 0], [0, 1]]


def test_a_class_without_centroid_uses_the_clients_own():
    """Round 1 with client 0 (class 0) only. Client 1, class 1, x = (1, 0), (3, 0), is new in
    round 2: its own mean is (2, 0), so as above the gradient is 1, W[0, 0] = 1 - 1/4. Aligned to
    the server's zero it would be 2/4 (1 + 9) = 5, to client 0's class something else."""
    method = FedPAC(head_lr=0.0, opt=Opt(lr=0.25, batch=100))
    data = rows([[5, 1], [5, 1]], [0, 0], 2), rows([[1, 0], [3, 0]], [1, 1], 2)
    game = Game(method, identity(2, classes=2), *data).round(0).round(1)
    assert game.down[1].state["fedpac"]["known"].tolist() == [True, False]
    assert game.up[1].state["model"]["body.weight"].tolist() == [[0.75, 0], [0, 1]]


def test_centroids_are_weighted_by_class_counts():
    """Class 0: one sample at 0 (client 0, six samples in all), three at 4 (client 1): centroid
    (1 * 0 + 3 * 4)/4 = 3; by n_i it would be 12/9, unweighted 2. Class 1 is client 0's alone: 1.
    Class 2 is nobody's: unknown. Client 1 alone in round 2: class 0 becomes 4, class 1 is kept."""
    data = rows([[0]] + [[1]] * 5, [0] + [1] * 5, 3), rows([[4]] * 3, [0] * 3, 3)
    game = Game(FedPAC(head_lr=0.0, opt=STILL), identity(1, classes=3), *data).round()
    assert game.server["fedpac"]["centroids"].flatten().tolist() == [3, 1, 0]
    assert game.server["fedpac"]["known"].tolist() == [[True, True, False]]
    game.round(1)
    assert game.server["fedpac"]["centroids"].flatten().tolist() == [4, 1, 0]
    assert game.server["fedpac"]["known"].tolist() == [[True, True, False]]


def test_pooled_means_of_an_absent_class_are_zero_not_nan():
    mean, n = pooled_means(
        torch.ones(2, 2, 1), torch.tensor([[1.0, 0], [2.0, 0]]), torch.ones(1, 2)
    )
    assert mean.flatten().tolist() == [1, 0]
    assert n.tolist() == [[3, 0]]


def test_combined_centroids_under_concept_shift():
    """Two clients, d = 1, labels exchanged: client 0 has class 0 at 1 and class 1 at -1, client 1
    the reverse. h_0 = (1/2, -1/2), V = 1 - 1/2 = 1/2, V/n = 1/4, |h_0 - h_1|^2 = 2: the programs
    are diag(1/4, 9/4) and diag(9/4, 1/4), so a_0 = (9, 1)/10.

    Combined centroids of client 0: class 0 (9 * 1 - 1 * 1)/10 = 0.8, class 1 -0.8; the reverse
    for client 1. One centroid for all would be 0 for both classes, a pull that destroys them."""
    data = rows([[1], [-1]], [0, 1], 2), rows([[-1], [1]], [0, 1], 2), rows([[1]], [0], 2)
    method = FedPAC(centroids="combined", head_lr=0.0, opt=STILL)
    game = Game(method, identity(1, classes=2), *data, members=2).round()
    assert game.notes["fedpac"]["weights"] == [[0.9, 0.1], [0.1, 0.9]]
    for cid, expected in ((0, [0.8, -0.8]), (1, [-0.8, 0.8])):
        received = game.site(cid).down["fedpac"]
        assert torch.allclose(received["centroids"].flatten(), torch.tensor(expected))
        assert received["known"].all()
    newcomer = game.site(2).down["fedpac"]  # nobody's mixture is a newcomer's
    assert not newcomer["known"].any()
    assert not newcomer["centroids"].any()
    shared = Game(FedPAC(head_lr=0.0, opt=STILL), identity(1, classes=2), *data[:2]).round()
    assert shared.server["fedpac"]["centroids"].flatten().tolist() == [0, 0]


def test_combined_centroids_of_unlike_clients():
    """Client 0: f = 1, 3 of class 0, h = (2, 0), V/n = 1/2. Client 1: f = 4 of class 0 and of
    class 1, h = (2, 2), V/n = (16 - 8)/2 = 4. |h_0 - h_1|^2 = 4, programs diag(1/2, 8) and
    diag(9/2, 4): a_0 = (16, 1)/17, a_1 = (8, 9)/17. Class 0, means 2 and 4, counts 2 and 1:
    (16 * 2 * 2 + 1 * 4)/(16 * 2 + 1) = 68/33 for client 0, (8 * 2 * 2 + 9 * 4)/25 = 68/25 for 1."""
    data = rows([[1], [3]], [0, 0], 2), rows([[4], [4]], [0, 1], 2)
    method = FedPAC(centroids="combined", head_lr=0.0, opt=STILL)
    game = Game(method, identity(1, classes=2), *data).round()
    centroids = game.server["fedpac"]["centroids"].squeeze(-1)
    assert torch.allclose(centroids, torch.tensor([[68 / 33, 4], [68 / 25, 4]]))


# ------------------------------------------------------------------ a round

OPT = Opt(lr=0.05, epochs=3, batch=8, momentum=0.5, weight_decay=5e-4)
CLOUDS = [
    cloud(0, 20, (0, 1)),
    cloud(1, 14, (1, 2)),
    cloud(2, 17, (0, 1)),
    cloud(3, 1, (2,)),
    cloud(4, 12, (0, 1, 2)),
]


def test_phases_rates_and_epochs():
    """One head epoch at 0.1 with the body frozen, then E = 3 body epochs at the run's rate with the
    head frozen; 20 rows in batches of 8 are 3 steps an epoch."""
    Watch.seen.clear()
    Game(FedPAC(opt=OPT) + Watch(), mlp(), CLOUDS[0]).round()
    body, head = frozenset(mlp().match("body.*")), frozenset(mlp().match("head.*"))
    expected = [("head", 0, 0.1, head)] * 3
    expected += [("body", e, 0.05, body) for e in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    assert Watch.seen == expected


def test_statistics_come_before_training_and_centroids_after():
    game = Game(FedPAC(opt=OPT), mlp(), *CLOUDS).rounds(2)
    net, data = game.program.nets[0], CLOUDS[0]
    received, trained = game.down[0].state["model"], game.up[0].state["model"]
    assert not same(part(received, "body"), part(trained, "body"))
    before, after = (features(net, tree, data) for tree in (received, trained))
    up, y = game.up[0].state["fedpac"], data.train.y
    assert same(
        {k: up[k] for k in ("h", "variance", "counts")}, head_statistics(before, y, 3, False)
    )
    assert torch.equal(up["centroids"], class_means(after, y, 3)[0])
    assert not torch.allclose(up["centroids"], class_means(before, y, 3)[0])


def test_no_alignment_in_the_first_round_but_at_once_for_who_joins_later():
    """Round 1 equals the round of a FedPAC that never aligns, in every bit that is uploaded;
    client 1, first selected in round 2, is aligned there."""
    aligned, plain = (Game(FedPAC(align=a, opt=OPT), mlp(), *CLOUDS) for a in (True, False))
    aligned.round(0), plain.round(0)
    assert same(aligned.up[0].state["model"], plain.up[0].state["model"])
    assert same(aligned.server["model"], plain.server["model"])
    aligned.round(1), plain.round(1)
    assert not same(aligned.up[1].state["model"], plain.up[1].state["model"])


def test_heads_are_combined_from_uploaded_heads_in_client_order():
    """Cohort 1, 2, 4 of five. The expected head of each is the sum of the heads as uploaded, with
    weights from the paper's loops and enumeration of supports. Weights applied to another order of
    clients, or heads mixed from already mixed ones, are told apart."""
    game = Game(FedPAC(opt=OPT), mlp(), *CLOUDS)
    before = clone(game.server["fedpac"])
    game.round(1, 2, 4)
    ids, net = [1, 2, 4], game.program.nets[0]
    at = [features(net, game.down[i].state["model"], CLOUDS[i]).double() for i in ids]
    clients = [(z, CLOUDS[i].train.y) for z, i in zip(at, ids, strict=True)]
    matrices = [paper_matrix(clients, 3, i, full=False) for i in range(3)]
    a = np.stack([simplex_qp(matrix) for matrix in matrices])
    for row, matrix in zip(a, matrices, strict=True):
        assert row @ matrix @ row <= by_enumeration(matrix) * (1 + 1e-9)
    assert game.notes["fedpac"]["clients"] == ids
    assert np.allclose(game.notes["fedpac"]["weights"], a, atol=1e-4)
    assert ((a > 0.02).sum(1) > 1).any()  # a mixture, not everybody alone

    heads = torch.stack([game.up[i].state["model"]["head.weight"] for i in ids]).double()
    expected = torch.einsum("ij,jkd->ikd", torch.from_numpy(a), heads)
    combined_heads = game.server["fedpac"]["head.weight"]
    assert torch.allclose(combined_heads[ids].double(), expected, atol=1e-6)
    permuted = torch.einsum("ij,jkd->ikd", torch.from_numpy(a[:, [1, 2, 0]]), heads)
    one_by_one = heads.clone()
    for i in range(3):
        one_by_one[i] = torch.einsum("j,jkd->kd", torch.from_numpy(a[i]), one_by_one)
    assert (permuted - expected).abs().max() > 1e-3
    assert (one_by_one - expected).abs().max() > 1e-5

    for k in ("head.weight", "head.bias"):  # non-participants keep their head
        assert torch.equal(game.server["fedpac"][k][[0, 3]], before[k][[0, 3]])
        for i in range(5):
            assert torch.equal(game.site(i).w[k], game.server["fedpac"][k][i])


def test_a_client_keeps_its_head_through_rounds_without_it():
    game = Game(FedPAC(opt=OPT), mlp(), *CLOUDS).round()
    head = clone(part(game.site(2).w, "head"))
    body = clone(part(game.site(2).w, "body"))
    game.round(0, 1, 4)
    assert same(part(game.site(2).w, "head"), head)
    assert not same(part(game.site(2).w, "body"), body)


def test_a_newcomer_gets_the_mean_head_and_the_centroids():
    """The mean of the uploaded heads by n_i, as for the body."""
    game = Game(FedPAC(opt=OPT), mlp(), *CLOUDS, members=4).round()
    mean = WeightedSum()
    for i in range(4):
        mean.fold(game.up[i].state["model"], len(CLOUDS[i].train))
    newcomer = game.site(4)
    assert newcomer.newcomer
    assert same(newcomer.w, mean.mean())
    assert torch.equal(newcomer.down["fedpac"]["centroids"], game.server["fedpac"]["centroids"][0])


def test_one_sample_keeps_its_own_head():
    """n = 1 has V = |f|^2 - |f|^2 = 0 and no bias to itself, so its own head costs nothing."""
    game = Game(FedPAC(opt=OPT), mlp(), *CLOUDS).rounds(2)
    assert game.up[3].n == 1
    assert game.notes["fedpac"]["weights"][3] == [0, 0, 0, 1, 0]
    for k in ("head.weight", "head.bias"):
        assert torch.equal(game.server["fedpac"][k][3], game.up[3].state["model"][k])


def test_what_travels():
    """K = 3 classes, d = 5. By default body, head, h, V, centroids, counts; the ablations leave out
    what they do not use; down comes one head, never the others'."""
    keys = {"h", "variance", "counts", "centroids"}
    cases = [
        (FedPAC(), keys, True),
        (FedPAC(covariance="full"), keys - {"variance"} | {"second"}, True),
        (FedPAC(align=False), keys - {"centroids"}, True),
        (FedPAC(combine=False), {"centroids", "counts"}, False),
        (FedPAC(align=False, combine=False), set(), False),
    ]
    for method, expected, with_head in cases:
        game = Game(method, mlp(), *CLOUDS[:2]).round()
        net = game.program.nets[0]
        model = net.match("*") if with_head else net.match("body.*")
        assert game.up[0].state["fedpac"].keys() == expected
        assert game.up[0].state["model"].keys() == model
        assert game.down[0].state["model"].keys() == model
        assert game.own[0].get("model", {}).keys() == net.match("*") - model
    down = Game(FedPAC(), mlp(), *CLOUDS[:2]).round().down[0].state
    model = (4 * 5 + 5) + (5 * 3 + 3)
    assert nbytes(down) == 4 * (model + 3 * 5) + 3  # floats, and a byte for each class


# ------------------------------------------------------------------ reductions


def test_neither_is_fedrep_bit_for_bit():
    """With its phases, over three rounds of half the clients: every upload, the server's body and
    what clients keep."""
    data = tables(20, 14, 17, 1)
    rep = FedRep(head_epochs=1, head_lr=0.1, body_epochs=3, adapt_epochs=0, opt=OPT)
    runs = [
        run(Program(m, mlp(norm=True), 4, seed=3), data, 3, participation=0.5)
        for m in (FedPAC(align=False, combine=False, opt=OPT), rep)
    ]
    for pac, fedrep in zip(*(r.answers for r in runs), strict=True):
        assert pac.cid == fedrep.cid
        assert same(pac.up.state["model"], fedrep.up.state["model"])
        assert same(pac.kept["model"], fedrep.kept["model"])
    assert same(runs[0].server["model"], runs[1].server["model"])


def test_alignment_alone_and_combination_alone():
    """FA alone with lam = 0 is FedRep again, with lam = 1 it is not, and heads stay at home. CC
    alone differs from FedRep in heads from round 1 on, in bodies from round 2 on."""

    def played(method, rounds):
        return Game(method, mlp(), *CLOUDS).rounds(rounds)

    rep = FedRep(head_epochs=1, head_lr=0.1, body_epochs=3, adapt_epochs=0, opt=OPT)
    base = played(rep, 2)
    null = played(FedPAC(combine=False, lam=0.0, opt=OPT), 2)
    aligned = played(FedPAC(combine=False, opt=OPT), 2)
    assert same(null.server["model"], base.server["model"])
    assert same(null.own[0]["model"], base.own[0]["model"])
    assert not same(aligned.server["model"], base.server["model"])
    mixed, base = played(FedPAC(align=False, opt=OPT), 1), played(rep, 1)
    assert same(part(mixed.server["model"], "body"), base.server["model"])
    assert not torch.equal(mixed.site(0).w["head.weight"], base.site(0).w["head.weight"])
    mixed.round(), base.round()
    assert not same(part(mixed.server["model"], "body"), base.server["model"])


def test_homogeneous_clients_share_one_head():
    """Remark 1: equal data, no bias, so the weights are those of equal variances, 1/m."""
    game = Game(FedPAC(opt=OPT), mlp(), *[CLOUDS[0]] * 4).round()
    assert np.allclose(game.notes["fedpac"]["weights"], 0.25)


# ------------------------------------------------------------------ options


def test_centre_and_covariance_reach_the_weights():
    """Each choice gives the weights of its own statistics; they differ."""
    weights = {}
    for name, method in {
        "identity": FedPAC(opt=OPT),
        "centred": FedPAC(center=True, opt=OPT),
        "full": FedPAC(covariance="full", opt=OPT),
    }.items():
        game = Game(method, mlp(), *CLOUDS).round()
        z = [
            features(game.program.nets[0], game.down[i].state["model"], CLOUDS[i]) for i in range(5)
        ]
        if name == "centred":
            mean = torch.cat(z).mean(0)
            z = [f - mean for f in z]
        clients = [(f.double(), data.train.y) for f, data in zip(z, CLOUDS, strict=True)]
        expected = combination_weights(stacked(clients, 3, name == "full"))
        weights[name] = np.array(game.notes["fedpac"]["weights"])
        assert np.allclose(weights[name], expected, atol=2e-3), name
    for a, b in combinations(weights.values(), 2):
        assert not np.allclose(a, b, atol=1e-2)


def test_noise_is_on_statistics_and_centroids_only():
    """s = 0.2, q = 0.5: K d = 600 values of h and centroids move by N(0, 0.1^2); counts and the
    model do not; every client and statistic has its own noise, the same one when run again."""

    def played(**noise):
        return Game(FedPAC(opt=OPT, **noise), mlp(hidden=200), *CLOUDS[:2]).round()

    clean, noisy, again = played(), *[played(noise_scale=0.2, noise_weight=0.5) for _ in range(2)]
    moved = {}
    for cid in (0, 1):
        a, b = clean.up[cid].state, noisy.up[cid].state
        assert same(a["model"], b["model"])
        assert torch.equal(a["fedpac"]["counts"], b["fedpac"]["counts"])
        assert same(b["fedpac"], again.up[cid].state["fedpac"])
        assert a["fedpac"]["variance"] != b["fedpac"]["variance"]
        for k in ("h", "centroids"):
            moved[cid, k] = b["fedpac"][k] - a["fedpac"][k]
            assert 0.09 < float(moved[cid, k].std()) < 0.11
    for a, b in combinations(moved.values(), 2):
        assert not torch.allclose(a, b)
    for method in (FedPAC(noise_scale=0.2, opt=OPT), FedPAC(noise_weight=0.5, opt=OPT)):
        quiet = Game(method, mlp(hidden=200), *CLOUDS[:2]).round()
        assert same(quiet.up[0].state["fedpac"], clean.up[0].state["fedpac"])


def test_noisy_full_covariance_still_gives_weights():
    """Noise makes E[ff'] asymmetric and indefinite."""
    method = FedPAC(covariance="full", noise_scale=5.0, noise_weight=1.0, opt=OPT)
    weights = np.array(Game(method, mlp(), *CLOUDS).round().notes["fedpac"]["weights"])
    assert np.isfinite(weights).all()
    assert np.allclose(weights.sum(1), 1, atol=1e-3)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadInput, match="combine=true"):
        FedPAC(centroids="combined", combine=False)
    with pytest.raises(BadInput, match="combines heads"):
        Program(FedPAC(shared="body.*"), mlp(), 2)


# ------------------------------------------------------------------ the run


def test_weights_are_in_the_journal():
    """A row per participant and a column per participant, in the order of `clients`."""
    config = RunConfig(
        method="fedpac", model="mlp(hidden=[8])", clients=4, rounds=2, participation=0.5
    )
    runner = Runner(Experiment.build(config), Inline())
    runner.run()
    for record in runner.records:
        noted = record.notes["fedpac"]
        assert noted["clients"] == list(record.cohort)
        assert np.allclose(np.sum(noted["weights"], axis=1), 1, atol=1e-3)
        assert np.shape(noted["weights"]) == (2, 2)


def test_server_step_for_300_participants():
    """K = 10, d = 128, five groups: statistics to heads and centroids in less than two seconds of
    one processor (0.4 measured on a busy one; with everyone in every first support 1.5, with
    eigenvalues and NNLS per client 4.8)."""
    m, k, d = 300, 10, 128
    with rng_scope("net"):
        net = Net((20,), body=nn.Linear(20, d), head=nn.Linear(d, k))
    program = Program(FedPAC(), net, m)
    gen = generator("statistics")
    group = 0.3 * torch.randn(5, k, d, generator=gen)
    r = Round(program, program.schedule(1)[0], initial_server(program), range(m))
    for cid in range(m):
        statistics = {
            "h": group[cid % 5] + 0.02 * torch.randn(k, d, generator=gen),
            "variance": 40 + torch.rand((), generator=gen),
            "counts": torch.full((k,), 60.0),
            "centroids": torch.randn(k, d, generator=gen),
        }
        r.add(cid, Up({"model": net.tree(), "fedpac": statistics}, 600))
    start = time.process_time()
    server = merge(r)
    seconds = time.process_time() - start
    weights = np.array(r.notes["fedpac"]["weights"])
    same_group = np.arange(m)[:, None] % 5 == np.arange(m) % 5
    assert float(weights[~same_group].max()) < 0.01
    assert int((weights > 0).sum(1).min()) > 10
    assert server["fedpac"]["head.weight"].shape == (m, k, d)
    assert seconds < 2, seconds
