"""The evaluation protocol: moments, clients, splits and presets, on a method whose accuracy at each
moment is known by construction.

`Staged` has one bias per class and always predicts one of four classes: class 0 as received (the
server never moves), 1 after local training, 2 after fine-tuning within the rounds, 3 after the
final adaptation. So every score is a share of labels:

    client  n    share of class 0, 1, 2, 3     = received, trained, adapted, final
    0       10   0, 1, 3, 6 of 10              = 0, 0.1, 0.3, 0.6
    1       30   16, 8, 4, 2 of 30
    mean         0.8/3, 0.55/3, 0.65/3, 1/3    (0 + 16/30)/2 = 0.2667, ...
    by samples   16/40, 9/40, 7/40, 8/40
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import log
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.core.client import client
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.evaluate import Ask, evaluate, global_state, model_at, predictions, score_rows
from fedloom.core.message import Down
from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.outputs import rows_per_prediction
from fedloom.core.phase import Opt, Phase
from fedloom.core.program import Program
from fedloom.core.protocol import PROTOCOLS, Protocol, parse_protocol
from fedloom.core.round import initial_server
from fedloom.core.score import ClientScore
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.site import Visit
from fedloom.core.task import Classification
from fedloom.core.tree import clone_state
from fedloom.data import FederatedData, Partition, Source
from fedloom.data.partition.assignment import ClientRows
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput, UnknownName
from fedloom.methods import parse_method
from fedloom.methods.ditto import Ditto
from fedloom.methods.fedavg import FedAvg
from fedloom.models import build_model
from fedloom.models.resnet import BasicBlock
from fedloom.record import At, RoundRecord
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.runner import Runner
from helpers import Table, digest, digits, mlp, table

CLASSES = 4
TEST = ((0, 1, 3, 6), (16, 8, 4, 2), (2, 1, 4, 3))
"""Test rows by client and class; client 2 is the newcomer."""
VAL = ((2, 0, 0, 0), (0, 2, 0, 0), (1, 1, 0, 0))
SHARED = {"a": (3, 1, 0, 0), "b": (1, 0, 1, 0)}
MEAN = {"received": 0.8 / 3, "trained": 0.55 / 3, "adapted": 0.65 / 3, "final": 1 / 3}
POOLED = {"received": 0.4, "trained": 0.225, "adapted": 0.175, "final": 0.2}


@dataclass(frozen=True, kw_only=True)
class Staged(Method):
    """Moves all mass to the class that stands for what is being done."""

    name: ClassVar[str] = "staged"
    server: ServerOpt = field(default_factory=lambda: ServerOpt(lr=0.0))
    opt: Opt = field(default_factory=lambda: Opt(lr=1.0, batch=64))
    tunes: bool = True

    @property
    def adapt(self):
        return (Phase("tune"),) if self.tunes else ()

    def loss(self, b, s):
        chosen = 3 if s.plan.kind == "adapt" else 2 if s.phase.name == "tune" else 1
        return -8 * b.out["head"][:, chosen].mean()


def biased(bias=(1.0, 0.0, 0.0, 0.0)) -> Net:
    """Inputs are zero, so the logits are the bias."""
    head = nn.Linear(1, CLASSES)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(bias))
    return Net((1,), body=nn.Flatten(), head=head)


def federation(clients: int = 2, shared: bool = True, val: bool = True) -> FederatedData:
    y: list[int] = []

    def take(counts):
        start = len(y)
        y.extend(k for k, n in enumerate(counts) for _ in range(n))
        return np.arange(start, len(y))

    rows = tuple(
        ClientRows(take((1, 1, 1, 1)), take(VAL[i]) if val else np.arange(0), take(TEST[i]))
        for i in range(clients)
    )
    tests = {name: take(counts) for name, counts in SHARED.items()} if shared else {}
    source = Source.from_arrays(np.zeros((len(y), 1), np.float32), y, normalize="none")
    return FederatedData(source, Partition(rows, tests, source=source.fingerprint))


def runner(protocol: str | Protocol, method: Method | None = None, **settings) -> Runner:
    shared, val = settings.pop("shared", True), settings.pop("val", False)
    data = federation(2 + settings.get("newcomers", 0), shared, val)
    config = RunConfig.checked({"rounds": 2, "protocol": protocol, **settings})
    return Runner(Experiment.build(config, method or Staged(), data, biased()), Inline())


def visit(method: Method, kind: str = "train", own=None, **changes) -> Visit:
    program = Program(method, biased(), 2)
    plan = replace(program.schedule(3)[0], kind=kind)
    down = Down(plan, initial_server(program))
    return replace(Visit(program, 0, federation().client(0), down, own), **changes)


# ------------------------------------------------------------------ passes


def test_rows_are_predicted_in_passes_but_where_a_network_draws_in_those_of_a_scan(
    monkeypatch: pytest.MonkeyPatch,
):
    """300 rows: passes of 128, 128 and 44, and every row's own prediction in its place. FedCR's
    and FedSR's networks draw, and what they draw for a row depends on the rows beside it."""
    seen: list[int] = []
    program = Program(parse_method("fedavg"), mlp(), 2)
    net, state = program.nets[0], {"model": program.nets[0].tree()}
    monkeypatch.setattr("fedloom.core.outputs.WIDEST_PASS", 130 * net.widest_output)
    net.get_submodule("head").register_forward_hook(lambda _, x, out: seen.append(len(out)))
    x = torch.randn(300, *net.shape, generator=torch.Generator().manual_seed(0))
    rows = HeldRows(x, torch.zeros(300, dtype=torch.long))
    predicted = predictions(program, net, rows, state)["personal"]
    assert seen == [128, 128, 44]
    assert torch.allclose(predicted, net(net.tree(), x)[net.logits].softmax(1), atol=1e-6)
    drawing = [Program(parse_method(name), mlp(), 2).nets[0] for name in ("fedcr", "fedsr")]
    assert [rows_per_prediction(net) for net in drawing] == [512, 512]


def test_passes_take_fewer_rows_the_wider_a_network_is():
    """The first convolution's output, before pooling, is 18,432 and 65,536 numbers of an image."""
    networks = [("mlp", (1, 28, 28)), ("cnn4", (1, 28, 28)), ("resnet18", (3, 64, 64))]
    nets = [build_model(name, shape, 10, seed=0) for name, shape in networks]
    assert [net.widest_output for net in nets] == [784, 32 * 24 * 24, 64 * 32 * 32]
    assert [rows_per_prediction(net) for net in nets] == [512, 256, 128]
    assert rows_per_prediction(build_model("resnet18", (3, 224, 224), 10, seed=0)) == 32


# ------------------------------------------------------------------ moments of one client


def accuracies(scores: Iterable[ClientScore]) -> dict[str, float]:
    return {f"{s.moment}/{s.split}": s.metrics["accuracy"] for s in scores}


def accuracy(scores: Iterable[ClientScore]) -> float:
    (score,) = scores
    return score.metrics["accuracy"]


def test_moments_of_one_client():
    """Shares of classes 0, 1, 2 among client 0's labels; validation holds class 0 only."""
    ask = Ask(("received", "trained", "adapted"), ("test", "val"))
    assert accuracies(evaluate(visit(Staged()), ask)) == pytest.approx(
        {
            "received/test": 0.0,
            "trained/test": 0.1,
            "adapted/test": 0.3,
            "received/val": 1.0,
            "trained/val": 0.0,
            "adapted/val": 0.0,
        }
    )


def test_final_is_what_the_last_round_stored():
    """Measured inside the adapting call and read back from what the client keeps."""
    up, own = client(visit(Staged(), "adapt"), Ask(("final",)))
    assert accuracies(up.scores) == pytest.approx({"final/test": 0.6})
    scores = evaluate(visit(Staged(), own=own), Ask(("final", "received")))
    assert accuracies(scores) == pytest.approx({"final/test": 0.6, "received/test": 0.0})


def test_no_final_model_before_the_last_round():
    _, own = client(visit(Staged()))
    with pytest.raises(BadInput, match="client 0 has no final model"):
        evaluate(visit(Staged(), own=own), Ask(("final",)))


def test_only_what_is_asked_is_measured_inside():
    assert client(visit(Staged()))[0].scores == ()
    up, _ = client(visit(Staged()), Ask(("received",)))
    assert up.scores == ()
    up, _ = client(visit(Staged()), Ask(("trained",), ("val", "test")))
    assert accuracies(up.scores).keys() == {"trained/val", "trained/test"}


def test_adapted_without_adaptation_is_received_and_for_a_newcomer_trained():
    """A method that does not adapt has nothing to do for a member; a newcomer warms up by local
    training."""
    plain = Staged(tunes=False)
    assert accuracies(evaluate(visit(plain), Ask(("adapted",)))) == {"adapted/test": 0.0}
    joining = visit(plain, cid=2)
    assert accuracies(evaluate(joining, Ask(("received", "adapted")))) == pytest.approx(
        {"received/test": 0.0, "adapted/test": 0.1}
    )
    tuned = visit(Staged(), cid=2)
    assert accuracies(evaluate(tuned, Ask(("adapted",)))) == pytest.approx({"adapted/test": 0.3})


def test_trained_inside_the_call_is_trained_from_outside():
    """Mini-batches of a real problem: both train from the same model in the same order."""
    data = ClientData(table(20), None, table(40, key=9), 3)
    program = Program(FedAvg(opt=Opt(lr=0.5, batch=4, epochs=2)), mlp(), 1)
    at = Visit(program, 0, data, Down(program.schedule(1)[0], initial_server(program)))
    up, _ = client(at, Ask(("trained",)))
    outside = evaluate(at, Ask(("trained",)))
    assert outside == up.scores
    assert outside[0].metrics["nll"] != evaluate(at, Ask(("received",)))[0].metrics["nll"]


def test_evaluation_changes_no_state_and_no_training():
    """Bytes of what was sent and what is kept, torch's stream, and the next visit's upload."""
    _, own = client(visit(Staged(), "adapt"))
    before = visit(Staged(), own=own)
    bytes_before = digest(before.down.state), digest(before.own), torch.get_rng_state()
    first, _ = client(before)
    evaluate(before, Ask(("received", "trained", "adapted", "final"), ("test", "val")))
    assert (digest(before.down.state), digest(before.own)) == bytes_before[:2]
    assert torch.equal(torch.get_rng_state(), bytes_before[2])
    assert digest(client(before)[0].state) == digest(first.state)


def test_a_split_a_client_lacks_is_not_scored():
    data = ClientData(table(4), None, Table(torch.zeros(0, 4), torch.zeros(0).long()), 3)
    program = Program(FedAvg(), mlp(), 1)
    at = Visit(program, 0, data, Down(program.schedule(1)[0], initial_server(program)))
    assert evaluate(at, Ask(("received",), ("test", "val"))) == ()


# ------------------------------------------------------------------ which model


def test_personal_and_global_model():
    """Ditto's own v says class 3, the server's model class 0: 0.6 and 0 of client 0's labels."""
    v = biased((0.0, 0.0, 0.0, 1.0)).tree()
    at = visit(Ditto(), own={"model": {}, "ditto": v})
    assert accuracy(evaluate(at, Ask(("received",)))) == pytest.approx(0.6)
    ask = Ask(("received",), model="global")
    assert accuracy(evaluate(at, ask)) == 0.0


def test_the_global_model_predicts_as_plain_averaging_does():
    """A method that turns its personal predictions round has nothing to say on the global one."""

    class Reversed(FedAvg):
        def predict(self, net, state, x):
            return super().predict(net, state, x).flip(-1)

    personal, common = (
        accuracy(evaluate(visit(Reversed()), Ask(("received",), model=model)))
        for model in ("personal", "global")
    )
    assert (personal, common) == (pytest.approx(0.6), 0.0)


def norm_net() -> Net:
    block = nn.Sequential(
        BasicBlock(1, 2, 2, nn.BatchNorm2d), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return Net((1, 4, 4), body=block, head=nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("fedper", "head.bias"),
        ("fedrep", "head.bias"),
        ("fedbabu", "head.bias"),
        ("lg_fedavg", "body.0.bn1.bias"),
        ("fedbn", "body.0.bn1.bias"),
        ("local", "body.0.bn1.bias"),
        ("fedper + proximal", "head.bias"),
    ],
)
def test_a_global_model_that_does_not_exist_is_refused_by_name(text, key):
    program = Program(parse_method(text), norm_net(), 2)
    name = program.method.name
    with pytest.raises(BadInput, match=rf"^{name} has no global model \('{key}' stays"):
        Protocol(model="global").settled(program, shared_tests=False)
    either = Protocol(model="global_if_any", on="shared")
    assert either.settled(program, shared_tests=True).model == "personal"


@pytest.mark.parametrize(
    "text", ["fedavg", "fedprox", "scaffold", "moon", "ditto", "fedavg_ft", "fedper(shared='*')"]
)
def test_methods_with_a_global_model(text):
    program = Program(parse_method(text), norm_net(), 2)
    settled = PROTOCOLS["fedbr"].settled(program, shared_tests=True)
    assert (settled.model, settled.on) == ("global", "shared")


def test_protocols_refuse_before_anything_is_trained():
    with pytest.raises(BadInput, match="fedper has no global model"):
        runner("fedbr(model=global)", parse_method("fedper"))


# ------------------------------------------------------------------ presets

EXPECTED = {
    "fedloom": MEAN["final"],
    "cohort": MEAN["trained"],
    "dbe": MEAN["final"],
    "fedbr": (3 / 4 + 1 / 2) / 2,  # the global model says class 0 on the two shared sets
    "dualfed": MEAN["received"],
    "fedcr": MEAN["final"],
    "fedpac": MEAN["adapted"],
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_preset_reports_its_own_number(name):
    assert EXPECTED.keys() == PROTOCOLS.keys()
    assert runner(name).run().accuracy == pytest.approx(EXPECTED[name])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedloom", MEAN["received"]),
        ("dbe", MEAN["received"]),
        ("dbe(average=samples)", POOLED["received"]),
        ("fedcr(head_epochs=0)", MEAN["received"]),
        ("fedcr", MEAN["final"]),
        ("fedpac", MEAN["received"]),
    ],
)
def test_presets_on_a_method_that_does_not_adapt(name, expected):
    """Final is then as received."""
    assert runner(name, Staged(tunes=False)).run().accuracy == pytest.approx(expected)


def test_what_the_presets_say():
    """The papers' protocols: DBE averages all clients before local training and takes the best
    round; FedBR takes the mean of the five best of the global model on shared domains; DualFed
    every client's best round after aggregation; FedCR the end after head-only epochs; FedPAC
    personal models after local training or tuning, with everybody in the last round."""
    changed = {name: str(protocol) for name, protocol in PROTOCOLS.items()}
    assert changed == {
        "fedloom": "fedloom",
        "cohort": "fedloom(moment='trained', clients='cohort', also=())",
        "dbe": "fedloom(select='best_test', newcomer_epochs=10)",
        "fedbr": "fedloom(model='global_if_any', moment='received', on='shared_if_any',"
        " select='mean_of_five_best_test')",
        "dualfed": "fedloom(moment='received', select='best_test_per_client')",
        "fedcr": "fedloom(head_epochs=10)",
        "fedpac": "fedloom(moment='personalized', full_last_round=True)",
    }
    assert Protocol() == Protocol(
        model="personal",
        moment="final",
        clients="all",
        split="test",
        on="clients",
        select="last",
        average="uniform",
        also=("received", "trained"),
        full_last_round=False,
        head_epochs=0,
        newcomer_epochs=None,
    )


def test_an_unknown_preset_offers_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown protocol 'fedpack'; did you mean 'fedpac'\?"):
        parse_protocol("fedpack")


# ------------------------------------------------------------------ when and on whom


def scored(r: Runner) -> list[tuple[int, str, set[str]]]:
    return [(rec.round, rec.kind, {str(s.at) for s in rec.scores}) for rec in r.records]


def by_client(record: RoundRecord, at: At) -> dict[int, float]:
    score = record.score(at)
    assert score is not None
    return score.by_client()


def test_a_curve_beside_the_final_number():
    """`fedloom`: received and trained every round, final once."""
    r = runner("fedloom")
    r.run()
    every = {"received/test", "trained/test"}
    assert scored(r) == [(1, "train", every), (2, "train", every), (3, "adapt", {"final/test"})]
    for moment in ("received", "trained"):
        score = r.records[1].score(At(moment, "test"))
        assert score is not None
        assert score.spread().mean == pytest.approx(MEAN[moment])


def test_adapted_in_every_round_is_not_the_final_model():
    r = runner(Protocol(moment="adapted"))
    assert r.run().accuracy == pytest.approx(MEAN["adapted"])
    assert scored(r)[2][2] == {"final/test"}


def test_the_adapting_round_does_not_count_the_last_model_twice():
    """The server is the same after it, so a mean of the five best must not see it again."""
    for protocol, at in (
        ("fedbr", At("received", "test", "global", "shared tests")),
        (Protocol(moment="received"), At("received", "test")),
    ):
        r = runner(protocol, rounds=3)
        r.run()
        assert [rec.round for rec in r.records if rec.score(at)] == [1, 2, 3]


def test_eval_every_and_always_the_last():
    r = runner("dualfed", Staged(tunes=False), rounds=5, eval_every=2)
    r.run()
    assert [rec.round for rec in r.records if rec.scores] == [2, 4, 5]
    adapting = runner("fedloom", rounds=3, eval_every=2)
    adapting.run()
    every = {"received/test", "trained/test"}
    assert [at for _, _, at in scored(adapting)] == [set(), every, every, {"final/test"}]


@pytest.mark.parametrize("who", ["all", "cohort"])
@pytest.mark.parametrize("moment", ["received", "trained"])
def test_all_or_the_cohort(who, moment):
    """One of two clients trains in a round; `all` scores the other one too."""
    r = runner(Protocol(moment=moment, clients=who), Staged(tunes=False), participation=0.5)
    r.run()
    for rec in r.records:
        assert len(rec.cohort) == 1
        ids = (0, 1) if who == "all" else rec.cohort
        assert tuple(by_client(rec, At(moment, "test"))) == ids


@dataclass(frozen=True, kw_only=True)
class OneClassOn(Method):
    """Local training moves the prediction on by one class: in round t, from class t - 1 to t."""

    name: ClassVar[str] = "one_class_on"

    def local(self, s):
        s.w = {**s.w, "head.bias": s.w["head.bias"].roll(1)}


def test_trained_is_of_what_this_round_sent_for_participants_and_absent_clients():
    """One of two clients trains in a round, and what it sends is the next server model. Whoever
    trains in round t from what was sent predicts class t: 1/10 and 8/30 of the test rows are of
    class 1, 3/10 and 4/30 of class 2. An absent client that trained from the new server model
    would be a class ahead, at 3/10 or 4/30 in the first round."""
    r = runner(Protocol(moment="trained"), OneClassOn(), participation=0.5)
    r.run()
    for record, expected in zip(r.records, ({0: 0.1, 1: 8 / 30}, {0: 0.3, 1: 4 / 30}), strict=True):
        assert len(record.cohort) == 1
        assert by_client(record, At("trained", "test")) == pytest.approx(expected)


def test_moments_logged_beside_are_of_the_cohort():
    """`also` costs no second training: only who trained anyway is measured."""
    r = runner("fedloom", Staged(tunes=False), participation=0.5)
    r.run()
    for rec in r.records:
        assert tuple(by_client(rec, At("trained", "test"))) == rec.cohort
        assert tuple(by_client(rec, At("received", "test"))) == (0, 1)


def test_nothing_is_logged_beside_where_that_is_turned_off():
    """The curve of a final number is still there."""
    r = runner("fedloom(also=none)")
    r.run()
    assert [at for _, _, at in scored(r)] == [{"received/test"}, {"received/test"}, {"final/test"}]


@pytest.mark.parametrize("name", ["fedloom", "dbe", "dualfed", "fedcr", "fedpac"])
def test_received_trained_and_final_are_logged_by_default(name):
    r = runner(name)
    r.run()
    *training, adapting = [at for _, _, at in scored(r)]
    assert all({"received/test", "trained/test"} <= at for at in training)
    assert adapting == {"final/test"}


@pytest.mark.parametrize(("tunes", "adapted", "final"), [(False, 0.1, 0.8 / 3), (True, 0.3, 1 / 3)])
def test_newcomers(tunes, adapted, final):
    """Client 2 holds 2, 1, 4, 3 of 10 labels and never trains. It is scored once, at the end: 0.2
    as received, then warmed up: by local training (class 1: 0.1) or by the method's adaptation (in
    the last, adapting round: class 3: 0.3). The members' number is unchanged."""
    r = runner("fedloom", Staged(tunes=tunes), newcomers=1)
    summary = r.run()
    assert summary.accuracy == pytest.approx(final)
    assert r.program.clients == 2
    assert not any(s.at.group == "newcomers" for rec in r.records[:-1] for s in rec.scores)
    last = r.records[-1]
    assert by_client(last, At("received", "test", group="newcomers")) == {2: pytest.approx(0.2)}
    assert summary.newcomers is not None
    assert summary.newcomers.by_client() == {2: pytest.approx(adapted)}
    assert 2 not in r.clients


@pytest.mark.parametrize(
    ("tunes", "epochs", "expected"),
    [(False, None, 8), (False, 10, 80), (True, 10, 80), (True, 3, 24)],
)
def test_how_long_newcomers_train(tunes, epochs, expected):
    """Every epoch is one batch and adds 8 to a bias: that of class 1 in local training, that of
    class 2 in fine-tuning. The run's one epoch does not count."""
    method = Staged(tunes=tunes)
    program = Program(method, biased(), 2, newcomer_epochs=epochs)
    at = visit(method, cid=2, program=program)
    bias = model_at(at, "adapted")["model"]["head.bias"]
    assert bias[2 if tunes else 1] == pytest.approx(expected)
    member = model_at(replace(at, cid=1), "trained")["model"]["head.bias"]
    assert member[1] == 8


@pytest.mark.parametrize(("moment", "expected"), [("final", 0.1), ("received", 0.2)])
def test_the_number_of_newcomers(moment, expected):
    protocol = Protocol(moment=moment, clients="new")
    r = runner(protocol, Staged(tunes=False), newcomers=1)
    assert r.run().accuracy == pytest.approx(expected)


def test_newcomers_receive_a_global_model_and_do_not_train_it():
    protocol = Protocol(model="global", clients="new")
    r = runner(protocol, Staged(tunes=False), newcomers=1)
    summary = r.run()
    assert str(summary.result.at) == "newcomers/received/test (global)"
    assert summary.newcomers == summary.result
    assert summary.accuracy == pytest.approx(0.2)


def test_validation_is_scored_where_it_selects():
    """Received says class 0: validation 1 and 0, test as above."""
    r = runner(Protocol(moment="received", select="best_val"), Staged(tunes=False), val=True)
    summary = r.run()
    assert summary.accuracy == pytest.approx(MEAN["received"])
    assert summary.result.rounds == (1,)
    assert by_client(r.records[0], At("received", "val")) == {0: 1.0, 1: 0.0}


def test_validation_rows_are_scored_wherever_there_are_any():
    r = runner("fedloom", val=True, newcomers=1)
    r.run()
    both = {f"{moment}/{split}" for moment in ("received", "trained") for split in ("test", "val")}
    joining = {f"newcomers/{m}/{s}" for m in ("received", "adapted") for s in ("test", "val")}
    assert scored(r)[0][2] == both
    assert scored(r)[2][2] == {"final/test", "final/val"} | joining
    shared = runner("fedbr", Staged(tunes=False), val=True)
    shared.run()
    assert scored(shared)[0][2] == {"shared tests/received/test (global)", "received/val (global)"}


def test_the_validation_split_can_be_the_number():
    protocol = Protocol(moment="received", split="val")
    summary = runner(protocol, Staged(tunes=False), val=True).run()
    assert summary.accuracy == 0.5


class LossIsId(Method):
    """Client i's loss is i."""

    name: ClassVar[str] = "loss_is_id"

    def loss(self, b, s):
        return 0 * b.out["head"].sum() + s.cid


def test_the_loss_of_a_round_weighs_clients_by_their_rows():
    """Losses 0 and 1 of 30 and 10 rows: 10/40."""
    config = RunConfig(rounds=1, model="mlp(hidden=[8])")
    experiment = Experiment.build(config, LossIsId(), digits(((0, 1), 30), ((2, 3), 10)))
    r = Runner(experiment, Inline())
    r.run()
    assert r.records[0].loss == pytest.approx(0.25)


def test_shared_test_sets_are_the_units_of_the_average():
    """3 of 4 and 1 of 2: mean 0.625, by samples 4/6."""
    protocol = PROTOCOLS["fedbr"]
    assert runner(protocol).run().accuracy == 0.625
    summary = runner(replace(protocol, average="samples")).run()
    assert summary.accuracy == pytest.approx(4 / 6)


def test_local_models_on_shared_test_sets():
    """FedBR's row "Local": what each client trained for itself says class 1, which 1 of 4 and 0 of
    2 shared rows are: (1/4 + 0)/2 for both clients, whose own rows are not looked at."""
    local = Staged(tunes=False, shared="")
    r = runner("fedbr", local)
    assert r.run().accuracy == pytest.approx(0.125)
    at = At("received", "test", group="clients on shared tests")
    assert by_client(r.records[-1], at) == pytest.approx({0: 0.125, 1: 0.125})


def test_local_and_aggregated_models_on_shared_test_sets():
    """FedBR's Table 6: after local training (class 1) and as aggregated (class 0)."""
    method = Staged(tunes=False)
    assert runner("fedbr", method).run().accuracy == (3 / 4 + 1 / 2) / 2
    r = runner("fedbr(model=personal, moment=trained)", method, participation=0.5)
    assert r.run().accuracy == pytest.approx(0.125)
    at = At("trained", "test", group="clients on shared tests")
    assert list(by_client(r.records[-1], at)) == [0, 1]


def test_without_shared_test_sets_fedbr_tests_on_the_clients_rows():
    """As on PACS: the global model says class 0."""
    r = runner("fedbr", Staged(tunes=False), shared=False)
    summary = r.run()
    assert summary.accuracy == pytest.approx(MEAN["received"])
    assert summary.result.at == At("received", "test", "global")


def test_the_global_model_is_the_servers_whatever_is_sent_to_a_client():
    """FedPAC sends every client a head combined for it; the global model has the mean head."""
    config = RunConfig(
        method="fedpac",
        clients=3,
        rounds=2,
        protocol="fedloom(model=global)",
        model="mlp(hidden=[8])",
    )
    r = Runner(Experiment.build(config), Inline())
    r.run()
    scores = by_client(r.records[-1], At("received", "test", "global"))
    state = global_state(r.program, r.server)
    for cid, accuracy in scores.items():
        test = r.experiment.data.client(cid).test
        by_model = score_rows(r.program, r.program.net(cid), test, state, "global")
        assert accuracy == by_model["global"]["accuracy"]
    heads = r.server["fedpac"]["head.bias"]
    assert not torch.allclose(heads, r.server["model"]["head.bias"].expand_as(heads))


def test_full_last_round_edits_the_schedule():
    """Half of the clients in rounds 1 and 2, everybody in round 3; without the flag, half."""
    r = runner("fedpac", Staged(tunes=False), rounds=3, participation=0.5)
    assert [p.cohort for p in r.experiment.plans] == ["sample", "sample", "all"]
    r.run()
    assert [len(rec.cohort) for rec in r.records] == [1, 1, 2]
    plain = runner("fedcr", rounds=3, participation=0.5).experiment.plans
    assert [(p.kind, p.cohort) for p in plain] == [("train", "sample")] * 3 + [("adapt", "all")]


@pytest.mark.parametrize(
    ("protocol", "data", "message"),
    [
        (
            "fedbr(on=shared)",
            federation(shared=False),
            "the split made none; use split = 'shared_test'",
        ),
        (
            "fedloom",
            FederatedData(
                federation().source,
                Partition(tuple(ClientRows(c.train) for c in federation().partition.clients)),
            ),
            "no client has test rows",
        ),
    ],
)
def test_rows_the_protocol_needs(protocol, data, message):
    with pytest.raises(BadInput, match=message):
        Experiment.build(RunConfig(protocol=protocol), Staged(), data, biased())


# ------------------------------------------------------------------ the numbers themselves


def test_metrics_by_hand():
    """Row 0: 0.75 for the right class; row 1: 0.25 for the right one: accuracy 1/2,
    nll = -(log 0.75 + log 0.25)/2."""
    probs = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    found = Classification().scores(probs, torch.tensor([0, 0]))
    assert found["accuracy"] == 0.5
    assert found["nll"] == pytest.approx(-(log(0.75) + log(0.25)) / 2)


def test_a_probability_of_zero_costs_much_and_not_infinity():
    found = Classification().scores(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert found["nll"] == pytest.approx(-log(1e-12), rel=1e-6)


def test_more_rows_than_one_forward_pass():
    """1100 rows in passes of 512, 512, 76; class 0 is said everywhere and right in every third
    of the first 900 rows: 300/1100."""
    y = torch.ones(1100, dtype=torch.long)
    y[:900:3] = 0
    program = Program(FedAvg(), biased(), 1)
    state = clone_state({"model": biased().tree()})
    by_model = score_rows(program, program.net(0), Table(torch.zeros(1100, 1), y), state)
    assert by_model["personal"]["accuracy"] == pytest.approx(300 / 1100)
