"""SphereFed: lengths do not count, the classifier never moves, calibration is least squares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from game import Game, cloud, features, identity, part, rows

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Batch
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.dbe import DBE
from fedloom.methods.spherefed import SphereFed
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.2, epochs=2, batch=4, momentum=0.5, weight_decay=0.01)
STILL = Opt(lr=0.0, epochs=1, batch=64)
K = 3


def whole_run(method: SphereFed, net: Net, *data, rounds: int = 1) -> Game:
    game = Game(method, net, *data)
    for plan in game.program.schedule(rounds):
        game._play(plan, ())
    return game


def test_loss_by_hand_and_without_length():
    """W = I, f(x) = (3, 4) so z = (0.6, 0.8), y = 0: (0.4^2 + 0.8^2)/2 = 0.4; f(x) = (0, 2), y = 1:
    0. Mean 0.2, and the same for features ten times as long. A sum over classes would double it."""
    data = rows([[3.0, 4.0], [0.0, 2.0]], [0, 1], 2)
    s = Game(SphereFed(), identity(2, 2), data).site(0)
    s.w["head.weight"] = torch.eye(2)
    for scale in (1.0, 10.0):
        b = Batch(scale * data.train.rows, data.train.y, torch.arange(2), data.train.y)
        b.out = s.net(s.w, b.x)
        assert float(s.method.loss(b, s)) == pytest.approx(0.2, abs=1e-6)


def test_the_classifier_is_orthonormal_and_never_moves():
    """Not by gradient, not by weight decay, not by rounding in the mean of three rounds."""
    game = Game(SphereFed(opt=OPT), mlp(), *CLOUDS)
    net = game.program.nets[0]
    w = net.initial["head.weight"]
    assert torch.allclose(w @ w.T, torch.eye(K), atol=1e-6)
    assert not net.params & net.match("head.*")
    game.round().round(0, 2).round(1, 3)
    assert torch.equal(game.server["model"]["head.weight"], w)
    assert not same(part(game.server["model"], "body"), net.tree("body.*"))


@pytest.mark.parametrize(
    ("ridge", "expected"),
    [
        (1e-9, [[1.0, -0.75], [0.0, 1.25]]),
        (1.0, [[3.28 / 5.28, -0.96 / 5.28], [0.6 / 5.28, 2.4 / 5.28]]),
    ],
)
def test_calibration_by_hand(ridge, expected):
    """Client 0: two rows z = (1, 0) of class 0; client 1: one row z = (0.6, 0.8) of class 1.
    Z'Z = [[2.36, 0.48], [0.48, 0.64]], Z'Y = [[2, 0.6], [0, 0.8]].
    ridge 0: det 1.28, W' = [[1, 0], [-0.75, 1.25]]: both kinds of rows are fitted exactly.
    ridge 1: det 3.36 * 1.64 - 0.48^2 = 5.28, W' = [[3.28, 0.6], [-0.96, 2.4]] / 5.28.
    Weighting clients by their sizes or averaging solutions of each would give another W."""
    clients = rows([[5.0, 0.0]] * 2, [0, 0], 2), rows([[3.0, 4.0]], [1], 2)
    game = whole_run(SphereFed(ridge=ridge, opt=STILL), identity(2, 2), *clients)
    calibrated = game.server["model"]["head.weight"]
    assert torch.allclose(calibrated, torch.tensor(expected), atol=1e-6)


def test_calibration_is_ridge_regression_on_all_data():
    """Against least squares on the pooled, augmented rows [Z; sqrt(ridge) I] -> [Y; 0]; trained
    features, one client of one row."""
    ridge = 0.5
    game = whole_run(SphereFed(ridge=ridge, opt=OPT), mlp(), *CLOUDS, rounds=2)
    net, model = game.program.nets[0], game.server["model"]
    z = torch.cat([features(net, model, d, "sphere") for d in CLOUDS]).double()
    y = torch.nn.functional.one_hot(torch.cat([d.train.y for d in CLOUDS]), K).double()
    d = z.shape[1]
    left = torch.cat([z, ridge**0.5 * torch.eye(d, dtype=torch.float64)])
    right = torch.cat([y, torch.zeros(d, K, dtype=torch.float64)])
    direct = torch.linalg.lstsq(left, right).solution.T
    assert torch.allclose(model["head.weight"].double(), direct, atol=1e-6)


def test_calibration_uses_the_features_that_dbe_translates():
    """PRBM's translation stands between body and sphere: z = (f(x) + v) / |f(x) + v|, v the
    client's own. Z'Z of the raw features would give another classifier."""
    ridge = 0.5
    method = replace(SphereFed(ridge=ridge), opt=OPT) + DBE()
    game = whole_run(method, mlp(), *CLOUDS, rounds=2)
    net, model = game.program.nets[0], game.server["model"]
    zz, zy = torch.zeros(5, 5).double(), torch.zeros(5, K).double()
    for cid, data in enumerate(CLOUDS):
        shift = game.own[cid]["model"]["prbm.vector"]
        assert shift.abs().max() > 0
        z = features(net, model, data) + shift
        z = (z / z.norm(dim=1, keepdim=True)).double()
        zz += z.T @ z
        zy += z.T @ torch.nn.functional.one_hot(data.train.y, K).double()
    expected = torch.linalg.solve(zz + ridge * torch.eye(5).double(), zy).T
    assert torch.allclose(model["head.weight"].double(), expected, atol=1e-5)


def test_calibration_changes_the_classifier_and_nothing_else():
    plain, calibrated = (
        whole_run(SphereFed(calibrate=c, opt=OPT), mlp(), *CLOUDS, rounds=2) for c in (False, True)
    )
    assert same(part(plain.server["model"], "body"), part(calibrated.server["model"], "body"))
    before, after = (g.server["model"]["head.weight"] for g in (plain, calibrated))
    assert torch.equal(before, plain.program.nets[0].initial["head.weight"])
    assert not torch.allclose(before, after, atol=1e-2)
    assert set(calibrated.up[0].state) == {"spherefed"}
    d = 5
    assert nbytes(calibrated.up[0].state) == 8 * (d * d + d * K)  # float64
    assert calibrated.server.keys() == {"model"}


@pytest.mark.parametrize("terms", ["fedbr", "dbe", "proximal"])
def test_terms_go_on_it(terms):
    method = replace(parse_method(f"spherefed + {terms}"), opt=OPT)
    assert finite(whole_run(method, mlp(), *CLOUDS).server)


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="ridge must be more than 0"):
        SphereFed(ridge=0.0)
    with pytest.raises(BadInput, match="as many features as classes"):
        Program(SphereFed(), mlp(hidden=2), 1)
