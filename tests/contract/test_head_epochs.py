"""A protocol's head epochs, with every registered method: only the head moves, and it is the head
of the model that the client would be tested with."""

from __future__ import annotations

import pytest
import torch
from cases import ALL, case

from fedloom.core.evaluate import FINAL, kept_final, model_at
from fedloom.core.net import METHOD, stage_of
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.errors import BadInput
from fedloom.models import build_model
from fedloom.testing.case import CLIENTS
from fedloom.testing.rounds import digest, play, same

WITHOUT_HEAD = ("fedproto", "spherefed")
"""The nearest prototype predicts; the classifier is fixed."""


def program(name: str, head_epochs: int = 1) -> Program:
    net = build_model(case(name).model, (1, 8, 8), 10, seed=0)
    return Program(case(name).method_anew(), net, CLIENTS, seed=3, head_epochs=head_epochs)


@pytest.mark.parametrize("name", [name for name in ALL if name not in WITHOUT_HEAD])
def test_only_the_head_of_the_tested_model_is_trained(name: str) -> None:
    prog, data = program(name), case(name).data
    *training, adapting = prog.schedule(1)
    before = play(prog, data, training)
    after = play(prog, data, [adapting], before)
    answer = after.answers[0]
    assert answer.up.state == {}
    visit = Visit(prog, 0, data.client(0), answer.down, before.clients[0])
    tested = model_at(visit, "received")[METHOD]
    final = kept_final(after.clients[0])[METHOD]
    net = prog.net(0)
    # A term's stages are trained in every phase. BatchNorm statistics of the body stay.
    of_method = {k for k in net.keys if net.owner[stage_of(k)] == METHOD}
    heads = net.match(prog.method.head_pattern) & net.params
    moved = {k for k in of_method if not torch.equal(final[k], tested[k])}
    assert moved == heads
    kept = {name: tree for name, tree in after.clients[0].items() if not name.startswith(FINAL)}
    assert digest(kept) == digest(before.clients[0]), "more rounds would begin from another state"


@pytest.mark.parametrize("name", WITHOUT_HEAD)
def test_a_method_without_a_head_to_train_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} makes its predictions without a head that could"):
        program(name)


@pytest.mark.parametrize("name", ["fedcr", "fedrep"])
def test_ten_head_epochs_are_what_fedcr_and_fedrep_do_by_themselves(name: str) -> None:
    """To the bit, so that the protocol `fedcr` changes nothing for the method of the paper."""
    data = case(name).data
    own, of_protocol = program(name, 0), program(name, 10)
    assert own.adapt == of_protocol.adapt
    played = [play(prog, data, prog.schedule(1)) for prog in (own, of_protocol)]
    for cid in range(CLIENTS):
        one, other = (kept_final(run.clients[cid])[METHOD] for run in played)
        assert same(one, other)
