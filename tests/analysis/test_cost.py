"""Megabytes, parameters and seconds, against printed tables and by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from torch import nn

import fedloom
from fedloom.analysis.cost import (
    client_pace,
    dualfed_parameters,
    dualfed_table8,
    pace,
    sent_to_target,
    sizes,
)
from fedloom.core.net import Net
from fedloom.errors import BadInput, UnknownName
from fedloom.methods.dualfed import projector
from fedloom.models.resnet import resnet18

# ------------------------------------------------------------------ DualFed's Table 8


@pytest.mark.parametrize(
    ("method", "parameters", "rounds", "mebibytes"),
    [
        ("fedavg", 11_444_551, 22, 1920.93),
        ("fedprox", 11_444_551, 21, 1833.62),
        ("fedrod", 11_444_551, 13, 1135.09),
        ("dualfed", 11_444_551, 7, 611.20),
        ("fedper", 11_440_960, 19, 1658.46),
        ("fedbn", 11_433_415, 17, 1482.91),
    ],
)
def test_table_8_for_pacs(method, parameters, rounds, mebibytes):
    """7 classes. A round is 8 P / 2^20: 87.3150 MiB for the whole model, 87.2876 without the
    classifier, 87.2300 without normalisation."""
    assert dualfed_parameters(method, 7) == parameters
    assert dualfed_table8(rounds, parameters) == pytest.approx(mebibytes, abs=0.006)


def test_table_8_counts_the_networks_of_this_library():
    """Encoder and classifier, projector and normalisation weights as they are built here."""
    net = resnet18((3, 64, 64), 7)
    net.add("projector", projector(512, 256, 2, batch_norm=True), reads="body")
    whole = sizes(net, net.match("*")).shared
    assert whole == dualfed_parameters("dualfed", 7)
    assert sizes(net, net.match("* !head.*")).shared == dualfed_parameters("fedrep", 7)
    assert sizes(net, net.match("* !@bn")).shared == dualfed_parameters("fedbn", 7)


def test_table_8_half_precision_and_never():
    assert dualfed_table8(22, 11_444_551, 2) == dualfed_table8(22, 11_444_551) / 2
    assert dualfed_table8(None, 11_444_551) is None
    with pytest.raises(UnknownName, match="'fedperr'; did you mean 'fedper'"):
        dualfed_parameters("fedperr", 7)


# ------------------------------------------------------------------ bytes of a journal


def test_traffic_up_to_the_target():
    """Round 0 is special; rounds 0 to 2 send 1 + 2 + 4 million bytes up, 8 + 16 + 32 down."""
    up, down, rounds = [1e6, 2e6, 4e6, 99e6], [8e6, 16e6, 32e6, 99e6], [0, 1, 2, 3]
    sent = sent_to_target(2, up, down, rounds=rounds)
    assert (sent.up, sent.down, sent.total, sent.rounds) == (7.0, 56.0, 63.0, 3)
    less = sent_to_target(2, up, down, rounds=rounds, first_broadcast=False)
    assert (less.up, less.down) == (7.0, 48.0)


def test_traffic_of_one_client():
    """2 and 4 participants: 2/2 + 4/4 = 2 million; for the average of 4 clients (2 + 4)/4."""
    assert sent_to_target(2, [2e6, 4e6], [0, 0], participants=[2, 4]).up == 2.0
    assert sent_to_target(2, [2e6, 4e6], [0, 0], participants=4).up == 1.5


def test_units():
    """2^20 bytes are 1 MiB and 1.048576 MB."""
    assert sent_to_target(1, [2**20], [0], unit="MiB").up == 1.0
    assert sent_to_target(1, [2**20], [0]).up == 1.048576
    with pytest.raises(UnknownName, match="unit 'mib'"):
        sent_to_target(1, [1], [1], unit="mib")


def test_never_reached_costs_nothing_that_can_be_told():
    assert sent_to_target(None, [1.0], [1.0]) is None


def test_arrays_of_the_caller_stay_as_they_were():
    down = np.array([1.0, 2.0])
    sent_to_target(2, [1.0, 1.0], down, first_broadcast=False)
    assert down.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: sent_to_target(3, [1, 1], [1, 1]), "traffic ends with round 2"),
        (lambda: sent_to_target(1, [1, 1], [1]), "up 2, down 1"),
        (lambda: sent_to_target(1, [1], [1], participants=0), "participants must be 1 or more"),
        (lambda: sent_to_target(1, [1], [1], participants=[1, 2]), "participants 2"),
        (lambda: pace([1.0], warm_up=-1), "warm_up must be 0"),
    ],
)
def test_bad_input(bad, says):
    with pytest.raises(BadInput, match=says):
        bad()


def test_fits_a_journal():
    """To the last round and over all clients, up is that of the summary; a message of the
    model is 4 bytes for each of its numbers, once in each direction."""
    run = fedloom.run("fedavg", rounds=3, clients=4, partition="iid", participation=0.5)
    up, down = [r.bytes_up for r in run.records], [r.bytes_down for r in run.records]
    average = sent_to_target(3, up, down, participants=4)
    assert average.up == pytest.approx(run.summary.bytes_up / run.summary.clients / 1e6)
    cohorts = [len(r.cohort) for r in run.records]
    program = run.experiment.program
    one = sent_to_target(3, up, down, participants=cohorts, unit="MiB")
    numbers = sizes(program.net(0), program.shared(0)).shared
    assert one.total == pytest.approx(dualfed_table8(3, numbers))
    assert pace([r.seconds for r in run.records]).rounds == 2


# ------------------------------------------------------------------ parameters


def test_a_linear_layer_and_normalisation():
    """Linear(512, 10): 5120 + 10. BatchNorm(64): 64 + 64 trained; mean, variance, one counter."""
    linear = Net((512,), body=nn.Identity(), head=nn.Linear(512, 10))
    assert sizes(linear, linear.match("*")).shared == 5130
    norm = Net((64,), body=nn.BatchNorm1d(64), head=nn.Identity())
    numbers = sizes(norm, norm.match("*"))
    assert (numbers.shared, numbers.buffers, numbers.personal, numbers.frozen) == (128, 129, 0, 0)


def test_every_number_is_counted_once():
    """Body 3 x 4 + 3 = 15 sent, head 2 x 3 + 2 = 8 kept but for a frozen bias (2): 6 and 2."""
    head = nn.Linear(3, 2)
    head.bias.requires_grad_(False)
    net = Net((4,), body=nn.Linear(4, 3), head=head)
    numbers = sizes(net, net.match("body.*"))
    assert (numbers.shared, numbers.personal, numbers.frozen, numbers.buffers) == (15, 6, 2, 0)
    assert numbers.trained == 21
    assert sizes(net, frozenset()).shared == 0


# ------------------------------------------------------------------ time


def test_the_first_round_warms_up():
    """A clock that reads 0, 5, 6, 8 at the ends of rounds: 5, 1, 2 seconds; (1 + 2)/2."""
    laps = [b - a for a, b in pairwise([0, 5, 6, 8])]
    assert pace(laps).mean == 1.5
    assert pace(laps, warm_up=0).mean == pytest.approx(8 / 3)
    assert pace([5, 1, 2, 6]).median == 2.0


def test_rounds_times_pace_is_dbes_total():
    """Table 6 from Table 8: 230 x 1.59 = 365.7, 115 x 4.09 = 470.35."""
    assert pace([9.0, 1.59, 1.59]).seconds_for(230) == pytest.approx(365.7)
    assert pace([9.0, 4.09]).seconds_for(115) == pytest.approx(470.35)


def test_nothing_left_after_the_warm_up():
    speed = pace([3.0])
    assert speed.rounds == 0
    assert math.isnan(speed.mean)
    assert math.isnan(speed.median)


def test_clients_one_by_one_or_at_once():
    """After the first round: sums 4 and 2, maxima 3 and 2; who is absent spends nothing."""
    speed = client_pace([[9, 9], [1, 3], [2, None]])
    assert speed.sequential.mean == 3.0
    assert speed.parallel.mean == 2.5
