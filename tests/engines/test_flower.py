"""Over Flower's messages: the reference engine's bytes, and replies that no honest client gives."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import zstandard
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedloom.core.digest import digest, receipt, state_sha256
from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Plan, Up
from fedloom.core.method import Method
from fedloom.core.score import ClientScore
from fedloom.core.site import Site
from fedloom.core.tree import State
from fedloom.data import FederatedData, RemoteData, Source, load
from fedloom.engines import make_engine
from fedloom.engines.flower import Flower, InProcess, Line, Roster, codec
from fedloom.engines.flower.bounds import Bounds
from fedloom.engines.flower.codec import Order, Reply
from fedloom.engines.flower.in_process import LocalGrid, from_wire, to_wire
from fedloom.engines.flower.node import Node, client_app
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.inline import Inline
from fedloom.engines.lost_state import LostState
from fedloom.engines.message_bundle import LARGE, LEAST_LARGE, Made, bundled, opened
from fedloom.engines.zstd_arrays import STYPE
from fedloom.errors import BadInput, DiskError, TooFewClients
from fedloom.launch.start import go_on, start
from fedloom.record import RoundRecord
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account
from fedloom.runs.watcher import RunView, Watcher
from helpers import StopAt, digits, outcome, same

CLIENTS = (((0, 1, 2), 30), ((3, 4), 17), ((4, 5, 6), 12), ((0, 9), 8))


def build(expression: str = "fedper", **settings: Any) -> Experiment:
    config = RunConfig.checked(
        {"method": expression, "rounds": 3, "model": "mlp(hidden=[8])", **settings}
    )
    return Experiment.build(config, data=digits(*CLIENTS))


# ------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize(
    ("expression", "settings"),
    [
        ("fedavg", {"participation": 0.5, "protocol": "fedpac"}),
        ("fedrep(adapt_epochs=2) + control_variates", {"eval_every": 2}),
        ("local", {"model": "mlp(hidden=[8]) | mlp(hidden=[6, 5])"}),
        ("fedper", {"model": "mlp(hidden=[8], norm=batch)", "protocol": "cohort"}),
        ("fedrep", {"compression": "top_k(share=0.1)", "participation": 0.5}),
        ("fedavg + dbe", {"compression": "quantize(bits=4)"}),
    ],
)
def test_other_settings_too(expression: str, settings: dict[str, Any]) -> None:
    experiment = build(expression, **settings)
    assert outcome(start(experiment, make_engine("flower"))) == outcome(start(experiment, Inline()))


def test_shared_test_sets_are_scored_by_the_server() -> None:
    source, held = load("digits"), digits(*CLIENTS).partition
    shared = {"anybody's": np.arange(1500, 1560)}
    data = FederatedData(source, replace(held, shared=shared))
    config = RunConfig(method="fedavg", rounds=2, protocol="fedbr", model="mlp(hidden=[8])")
    experiment = Experiment.build(config, data=data)
    assert outcome(start(experiment, InProcess())) == outcome(start(experiment, Inline()))


def test_a_stopped_run_goes_on_from_the_states_at_the_sites(tmp_path: Path) -> None:
    """Two steps done, a third begun and given up; the server has receipts only."""
    whole = start(build(rounds=5, out=str(tmp_path / "whole")), InProcess())
    experiment = build(rounds=5, out=str(tmp_path / "run"), checkpoint_every=50)
    with pytest.raises(KeyboardInterrupt):
        start(experiment, InProcess(), [StopAt(3)])
    assert not any(
        tensor.numel() > 32
        for state in _checkpointed(tmp_path / "run").values()
        for tree in state.values()
        for tensor in tree.values()
    )
    assert outcome(go_on(experiment, InProcess())) == outcome(whole)


def _checkpointed(folder: Path) -> dict[int, State]:
    from fedloom.runs.checkpoint import Checkpoints

    return dict(Checkpoints(folder / "checkpoints").load_latest()[0].clients)


# ------------------------------------------------------------------ the codec


def wire(records: RecordDict) -> RecordDict:
    LocalGrid(ClientApp(), 0)  # without one Flower makes no message
    message = Message(bundled(records), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"
    return opened(from_wire(to_wire(message)).content)


def test_orders_survive_with_types_empty_slices_and_no_axes() -> None:
    state = {
        "model": {"body.0.weight": torch.randn(2, 3), "steps": torch.tensor(7)},
        "empty": {},
        "flags": {"mask": torch.tensor([True, False]), "half": torch.ones(2).half()},
    }
    plan = Plan(3, "special", "dbe.mean", "all", seed=5, clients=9)
    order = Order(4, "client", Down(plan, state), "ab" * 32, Ask(("trained",), ("test", "val")))
    read = codec.read_order(wire(codec.write_order(order, {})))
    assert (read.cid, read.task, read.own, read.ask) == (4, "client", "ab" * 32, order.ask)
    assert read.down.plan == plan
    assert list(read.down.state) == ["model", "empty", "flags"]
    assert all(same(read.down.state[name], state[name]) for name in state)


@pytest.mark.parametrize("own", [None, "", "00" * 32])
def test_new_keeping_nothing_and_keeping_are_three_things(own: str | None) -> None:
    order = Order(0, "evaluate", Down(Plan(1), {}), own)
    assert codec.read_order(wire(codec.write_order(order, {}))).own == own


def test_a_tensor_that_many_get_is_encoded_once() -> None:
    value, arrays = torch.randn(LEAST_LARGE), {}
    orders = [Order(i, "client", Down(Plan(1), {"m": {"w": value}}), None) for i in range(3)]
    written = [codec.write_order(order, arrays) for order in orders]
    assert len(arrays) == 1
    assert len({id(w.array_records["state/m"]["w"].data) for w in written}) == 1
    made: Made = {}
    bundles = [bundled(records, made) for records in written]
    assert len({id(b.array_records[LARGE]["state/m"].data) for b in bundles}) == 1


def test_a_type_that_flower_cannot_carry_is_named() -> None:
    order = Order(0, "client", Down(Plan(1), {"model": {"w": torch.ones(1).bfloat16()}}), None)
    with pytest.raises(BadInput, match=r"model/w is torch\.bfloat16, which Flower cannot carry"):
        codec.write_order(order, {})


# ------------------------------------------------------------------ what a site keeps


def state_of(value: float) -> State:
    return {"model": {"w": torch.full((2,), value)}}


def test_a_site_keeps_the_newest_state_and_the_one_it_came_from(tmp_path: Path) -> None:
    names: list[str] = []
    for i in range(4):
        store = SiteStore(tmp_path)  # a new process for every message
        names.append(store.put(state_of(i), names[-1] if i else None))
        assert store.names() == set(names[-2:])
    assert names == [digest(state_of(i)) for i in range(4)]
    # Round 3 did not count: the next comes from the same state, and that is still there; what did
    # not count goes with the round after.
    again = SiteStore(tmp_path).put(state_of(9), names[2])
    assert same(SiteStore(tmp_path).get(names[2])["model"], state_of(2)["model"])
    last = SiteStore(tmp_path).put(state_of(10), again)
    assert SiteStore(tmp_path).names() == {again, last}


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_process_that_outlived_its_node_removes_nothing_newer(
    opened: str, tmp_path: Path
) -> None:
    """It was asked to go on from `first`, and saves after two rounds that counted; its store was
    opened before them, or (it hung while it loaded its data) after them."""
    first = SiteStore(tmp_path).put(state_of(0), None)
    late = SiteStore(tmp_path)
    second = SiteStore(tmp_path).put(state_of(1), first)
    third = SiteStore(tmp_path).put(state_of(2), second)
    (late if opened == "before" else SiteStore(tmp_path)).put(state_of(3), first)
    assert {second, third} <= SiteStore(tmp_path).names()
    assert SiteStore(tmp_path).get(third) is not None


def test_a_state_that_comes_back_to_what_it_was_is_kept(tmp_path: Path) -> None:
    first = SiteStore(tmp_path).put(state_of(0), None)
    second = SiteStore(tmp_path).put(state_of(1), first)
    assert SiteStore(tmp_path).put(state_of(0), second) == first
    assert {first, second} <= SiteStore(tmp_path).names()


def test_a_lost_or_altered_state_is_never_replaced_in_silence(tmp_path: Path) -> None:
    """Nor does the message, which goes to the server, name a path of the site."""
    store = SiteStore(tmp_path)
    store.put(state_of(0), None)
    SiteStore(tmp_path / "other").put(state_of(1), None)
    with pytest.raises(LostState, match=f"the state {'ab' * 6} that the server counts on") as lost:
        store.get("ab" * 32)
    assert str(tmp_path) not in str(lost.value)
    (file,), (other,) = tmp_path.glob("*.state"), (tmp_path / "other").glob("*.state")
    file.write_bytes(other.read_bytes())
    with pytest.raises(LostState, match="was altered at the site"):
        store.get(digest(state_of(0)))


# ------------------------------------------------------------------ sites that misbehave


class Grid(LocalGrid):
    """A grid whose nodes can be lost, late or dishonest."""

    def __init__(self, app: ClientApp, nodes: int, spoil: Callable[[Message], Message]) -> None:
        super().__init__(app, nodes)
        self.spoil, self.joined = spoil, {1000 + i for i in range(nodes)}

    def get_node_ids(self) -> list[int]:
        return [n for n in super().get_node_ids() if n in self.joined]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [self.spoil(reply) for reply in super().pull_messages(message_ids)]


def engine(
    experiment: Experiment, folder: Path, spoil: Callable[[Message], Message], **how: Any
) -> tuple[Flower, Grid]:
    def node(context: Any) -> Node:
        cid = int(context.node_config["client"])
        return Node(
            experiment.program, experiment.data.client(cid), SiteStore(folder / str(cid)), **how
        )

    grid = Grid(client_app(node, lambda context: dict(context.node_config)), len(CLIENTS), spoil)
    roster = Roster(Line(grid, deadline=600, poll=0.01), lambda hello: int(str(hello["client"])))
    return Flower(roster, patience=0.05), grid


def only(cid: int, t: int, change: Callable[[RecordDict], RecordDict]) -> Any:
    """Changes the reply of one client in one training round."""
    seen = {"trained": 0}

    def spoil(reply: Message) -> Message:
        records = opened(reply.content)
        if "rows" not in records.config_records.get("head", {}):
            return reply
        if records.config_records["head"]["client"] != cid:
            return reply
        seen["trained"] += 1
        if seen["trained"] == t:
            reply.content = bundled(change(records))
        return reply

    return spoil


def with_array(slice_name: str, key: str, value: torch.Tensor) -> Callable[[RecordDict], Any]:
    def change(records: RecordDict) -> RecordDict:
        name = f"state/{slice_name}"
        arrays = dict(records.array_records.get(name, {}))
        records[name] = ArrayRecord({**arrays, key: Array(value.numpy())})
        return records

    return change


def without_array(records: RecordDict) -> RecordDict:
    arrays = dict(records.array_records["state/model"])
    arrays.popitem()
    records["state/model"] = ArrayRecord(arrays)
    return records


def says(**values: Any) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        records["head"] = ConfigRecord({**dict(records.config_records["head"]), **values})
        return records

    return change


def measures(key: str, value: float) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        metrics = dict(records.metric_records["metrics"])
        records["metrics"] = MetricRecord({**metrics, key: value})
        return records

    return change


def scores(**values: Any) -> Callable[[RecordDict], RecordDict]:
    """Changes the first score of a reply."""

    def change(records: RecordDict) -> RecordDict:
        score = dict(records.config_records["score/0"])
        records["score/0"] = ConfigRecord({**score, **values})
        return records

    return change


def twice_scored(records: RecordDict) -> RecordDict:
    records["score/again"] = ConfigRecord(dict(records.config_records["score/0"]))
    return records


def npy(shape: tuple[int, ...]) -> bytes:
    """A header of numpy's format without the data it promises."""
    stream = BytesIO()
    head = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, head)
    return stream.getvalue()


KEY = next(k for k in build().program.shared(0) if k.endswith("weight"))
SHAPE = build().program.nets[0].initial[KEY].shape
HEAD = next(k for k in build().program.nets[0].initial if k.startswith("head"))
BAD = {
    "nan": (with_array("model", KEY, torch.full(SHAPE, torch.nan)), f"'model/{KEY}' is not finite"),
    "shape": (with_array("model", KEY, torch.zeros(3)), r"float32 \[3\], not torch\.float32"),
    "type": (with_array("model", KEY, torch.zeros(SHAPE).double()), "float64"),
    "unknown name": (with_array("model", "extra", torch.zeros(1)), "unknown tensor 'model/extra'"),
    "unknown slice": (with_array("spy", "x", torch.zeros(1)), "the unknown tensor 'spy/x'"),
    "personal": (with_array("model", HEAD, torch.zeros(1)), f"the personal tensor {HEAD!r}"),
    "missing": (without_array, "it lacks the tensor 'model/"),
    "no rows": (says(rows=0), "it says that it has 0 rows"),
    "other client": (says(client=3), "it speaks for client 3"),
    "bad receipt": (says(own="not hex"), "'not hex' is no digest of a state"),
    "short receipt": (says(own="ab"), "'ab' is no digest of a state"),
    "endless rows": (says(rows=float("inf")), "its reply was refused: OverflowError"),
    "huge": (
        lambda records: with_array_bytes(records, npy((10**13,))),
        r"0 bytes are not \[10000000000000\] of float32",
    ),
    "zip": (lambda records: with_array_bytes(records, b"PK\x03\x04" + b"0" * 64), "ValueError"),
    "bomb": (
        lambda records: with_zstd_bytes(records, bytes(2**26)),
        r"it has 6710\d+ bytes, and a reply to this order has at most \d+",
    ),
    "unknown number": (measures("a/b/c", 1.0), "nobody asked for the number 'a/b/c'"),
    "strange score": (scores(split="train"), "nobody asked for 'trained' on 'train'"),
    "strange moment": (scores(moment="received"), "nobody asked for 'received' on 'test'"),
    "strange model": (scores(model="other"), "nobody asked for a model 'other'"),
    "global model": (scores(model="global"), "nobody asked for a model 'global'"),
    "impossible score": (scores(values=[2.0, 0.1]), r"a score of 2\.0 on \d+ rows cannot be"),
    "no score": (scores(values=[float("nan"), 0.1]), r"a score of nan on \d+ rows cannot be"),
    "no rows scored": (scores(rows=0), "on 0 rows cannot be"),
    "no accuracy": (scores(names=["loss"], values=[0.5]), r"its metrics are \['loss'\], not"),
    "two scores": (twice_scored, "it has two scores of trained test personal"),
    "loss": (measures("loss", float("nan")), "its loss is not finite"),
    "empty": (lambda records: RecordDict(), "its reply was refused: KeyError"),
    "no pickle": (
        lambda records: with_array_bytes(records, b"\x80\x04K\x01."),
        "its reply was refused: ValueError",
    ),
}


def with_array_bytes(records: RecordDict, data: bytes) -> RecordDict:
    records["state/model"] = ArrayRecord({KEY: Array("float32", (1,), "numpy.ndarray", data)})
    return records


def with_zstd_bytes(records: RecordDict, data: bytes) -> RecordDict:
    small = zstandard.ZstdCompressor().compress(data)
    records["state/model"] = ArrayRecord({KEY: Array("float32", (1,), STYPE, small)})
    return records


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_refused_by_name_and_the_round_goes_on(case: str, tmp_path: Path) -> None:
    """Client 1's second reply is bad. It counts as absent in that round, its next round goes on
    from the state of the first, and the end is that of a run in which it never answered then."""
    change, why = BAD[case]
    experiment = build()
    flower, _ = engine(experiment, tmp_path / "bad", only(1, 2, change))
    result = start(experiment, flower)
    assert [list(r.absent) for r in result.records] == [[], [1], []]
    assert re.search(why, result.records[1].absent[1])
    silent, _ = engine(experiment, tmp_path / "silent", only(1, 2, lambda records: _error()))
    other = outcome(start(experiment, silent))[0]
    # The digest covers the journal, which has another reason for the absence.
    assert replace(other, digest=None) == replace(outcome(result)[0], digest=None)


@pytest.mark.parametrize(
    ("compression", "part", "value", "why"),
    [
        ("quantize", "scale", torch.tensor(torch.inf), f"'model/{KEY}' is not finite"),
        ("quantize", "scale", torch.tensor(1e9), "its update is .* times as long as the model"),
        ("quantize(bits=4)", "levels", torch.zeros(3, dtype=torch.uint8), r"uint8 \[3\], not"),
        ("top_k(share=0.001)", "gaps", torch.tensor([999], dtype=torch.int16), "does not have"),
        ("top_k(share=0.001)", "gaps", torch.tensor([0], dtype=torch.int16), "does not have"),
        ("top_k(share=0.001)", "values", torch.tensor([torch.nan]), f"'model/{KEY}' is not finite"),
        ("top_k(share=0.001)", "values", torch.zeros(9), r"float32 \[9\], not"),
    ],
)
def test_a_bad_compressed_upload_is_refused_by_what_it_stands_for(
    compression: str, part: str, value: torch.Tensor, why: str, tmp_path: Path
) -> None:
    experiment = build(compression=compression)
    spoil = only(1, 2, with_array("model", f"{KEY}@{part}", value))
    flower, _ = engine(experiment, tmp_path, spoil)
    flower.bounds = Bounds()
    result = start(experiment, flower)
    assert [list(r.absent) for r in result.records] == [[], [1], []]
    assert re.search(why, result.records[1].absent[1])


@dataclass(frozen=True, kw_only=True)
class Choosy(Method):
    """Cannot be trained on the rows that the server makes up, from some round on."""

    name: ClassVar[str] = "choosy"
    first: int = 1

    def finish(self, s: Site) -> State:
        if s.plan.t >= self.first and len(s.data.train) == 10 and s.data.train is s.data.test:
            raise ValueError("such rows will not do")
        return super().finish(s)


def choosy(first: int, **settings: Any) -> Experiment:
    config = RunConfig.checked({"rounds": 2, "model": "mlp(hidden=[8])", **settings})
    return Experiment.build(config, Choosy(first=first), digits(*CLIENTS))


def test_a_method_whose_replies_could_not_be_checked_is_refused_at_the_start() -> None:
    with pytest.raises(BadInput, match=r"choosy cannot be run over Flower.*such rows will not do"):
        start(choosy(first=1), InProcess())
    start(choosy(first=1), Inline())  # elsewhere it runs


def test_a_reply_that_cannot_be_checked_does_not_count() -> None:
    """Round 1 can be played, round 2 cannot: none of its answers is believed."""
    with pytest.raises(TooFewClients) as caught:
        start(choosy(first=2), InProcess())
    assert "round 2: 0 of 4 clients answered" in str(caught.value)
    why = "choosy.finish at client 0, round 2: ValueError: such rows will not do"
    assert f"client 0: its reply was refused: what it should hold cannot be known ({why})" in str(
        caught.value
    )


def _error() -> RecordDict:
    return codec.write_error("Asleep", "at night")


def test_a_state_that_is_gone_is_reported_until_the_site_may_start_afresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = build()

    def loses(reply: Message) -> Message:
        for file in (tmp_path / "2").glob("*.state"):
            file.unlink()
        return reply

    flower, _ = engine(experiment, tmp_path, loses)
    result = start(experiment, flower)
    assert [sorted(r.absent) for r in result.records] == [[], [2], [2]]
    assert "LostState: the state" in result.records[1].absent[2]
    restarting, _ = engine(experiment, tmp_path, loses, lost_state="restart")
    with caplog.at_level(logging.WARNING, "fedloom"):
        assert not any(r.absent for r in start(experiment, restarting).records)
    assert caplog.text.count("client 2 had lost its state and began anew") == 2


def test_a_site_that_joins_later_begins_as_a_new_client(tmp_path: Path) -> None:
    """Client 3 appears in round 30: absent before, from then on in every cohort; what it keeps
    after its first round is what `client_init` and one round of training make."""
    experiment = build(rounds=31, protocol="cohort")
    cohorts: list[tuple[int, ...]] = []

    class Joining(Watcher):
        def begun(self, run: RunView) -> None:
            grid.joined.remove(1003)

        def step(self, run: RunView, record: RoundRecord) -> None:
            cohorts.append(record.cohort)
            if record.round == 29:
                grid.joined.add(1003)

    flower, grid = engine(experiment, tmp_path, lambda reply: reply)
    orders: list[Order] = []
    answer = Node.answer

    def watched(node: Node, order: Order) -> RecordDict:
        orders.append(order)
        return answer(node, order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "answer", watched)
        start(experiment, flower, [Joining()])
    assert cohorts == [(0, 1, 2)] * 29 + [(0, 1, 2, 3)] * 2
    mine = [order for order in orders if order.cid == 3 and order.task == "client"]
    assert [order.down.plan.t for order in mine] == [30, 31]
    assert mine[0].own is None
    assert mine[1].own is not None


def test_exactly_as_many_answers_as_are_needed_are_not_too_few_answers() -> None:
    result = start(build(min_clients=len(CLIENTS)), Inline())
    assert [len(record.cohort) for record in result.records] == [len(CLIENTS)] * 3


def test_too_few_answers_and_the_round_is_asked_again_then_given_up(tmp_path: Path) -> None:
    """Two of four are asked for; in round 2 three of four fail twice, then all is well."""
    experiment = build(min_clients=2, out=str(tmp_path / "run"))
    failures = {"left": 6}

    def spoil(reply: Message) -> Message:
        head = opened(reply.content).config_records.get("head", {})
        late = (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
        if "rows" in head and head["client"] != 0 and late and failures["left"]:
            failures["left"] -= 1
            reply.content = bundled(_error())
        return reply

    flower, _ = engine(experiment, tmp_path, spoil)
    result = start(experiment, flower)
    # Client 0 answered all three attempts of round 2, the others the last: all of it left them.
    assert {
        cid: n for cid, (n, _) in Account.read(tmp_path / "run" / "ledger.jsonl").clients().items()
    } == {0: 5, 1: 3, 2: 3, 3: 3}
    assert outcome(result) == outcome(start(experiment, Inline(), overwrite=True))

    failures["left"] = 1000
    flower, _ = engine(experiment, tmp_path, spoil)
    with pytest.raises(TooFewClients) as caught:
        start(experiment, flower, overwrite=True)
    assert "round 2: 1 of 4 clients answered, fewer than min_clients = 2" in str(caught.value)
    assert "client 3: Asleep: at night" in str(caught.value)
    failures["left"] = 0
    assert outcome(go_on(experiment, flower)) == outcome(
        start(experiment, Inline(), overwrite=True)
    )


def test_too_few_sites_are_waited_for_and_then_named(tmp_path: Path) -> None:
    experiment = build()
    flower, grid = engine(experiment, tmp_path, lambda reply: reply)
    grid.joined.clear()
    with pytest.raises(TooFewClients, match="0 sites take part, fewer than the 1"):
        start(experiment, flower)


def test_more_answers_than_are_asked_for_cannot_be_wanted() -> None:
    with pytest.raises(BadInput, match="min_clients = 3, but a round asks only 2 of 4 clients"):
        build(min_clients=3, participation=0.5)


def test_a_site_with_a_fault_of_its_own_is_absent_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = build()
    broken = replace(
        experiment.program.method, opt=replace(experiment.program.method.opt, lr=float("inf"))
    )
    bad = replace(
        experiment, program=type(experiment.program)(broken, experiment.program.nets, 4, 0)
    )

    def node(context: Any) -> Node:
        cid = int(context.node_config["client"])
        program = (bad if cid == 1 else experiment).program
        return Node(program, experiment.data.client(cid), SiteStore(tmp_path / str(cid)))

    app = client_app(node, lambda context: dict(context.node_config))
    roster = Roster(Line(LocalGrid(app, 4)), lambda hello: int(str(hello["client"])))
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = start(experiment, Flower(roster))
    assert "TrainingError: client 1, round 1" in result.records[0].absent[1]
    assert "client 1 is absent: TrainingError" in caplog.text


def test_a_site_that_is_not_admitted_is_asked_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment, asked_for = build(), []

    def admit(hello: dict[str, Any]) -> int:
        asked_for.append(hello["client"])
        if hello["client"] == 2:
            raise BadInput("site 2 has other data")
        return int(hello["client"])

    _, grid = engine(experiment, tmp_path, lambda reply: reply)
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = start(experiment, Flower(Roster(Line(grid), admit)))
    assert result.records[-1].cohort == (0, 1, 3)
    assert asked_for == [0, 1, 2, 3]
    assert "a node is refused: site 2 has other data" in caplog.text


# ------------------------------------------------------------------ receipts and remote data


def test_a_receipt_stands_for_its_state_in_the_digest_of_a_federation() -> None:
    state = {"model": {"w": torch.randn(3)}, "own": {}}
    server = {"model": {"b": torch.ones(2)}}
    assert state_sha256(server, {4: receipt(digest(state))}) == state_sha256(server, {4: state})
    assert state_sha256(server, {4: state}) != state_sha256(server, {5: state})
    assert state_sha256(server, {4: state}) != state_sha256(server, {})


def test_a_server_without_data_can_build_an_experiment_but_not_train_here() -> None:
    data = RemoteData(3, (1, 8, 8), tuple("0123456789"), "image")
    experiment = Experiment.build(RunConfig(method="fedper", protocol="cohort"), data=data)
    assert experiment.program.clients == 3
    assert experiment.config.model == "mlp"
    with pytest.raises(BadInput, match="the data of client 0 is at its site"):
        start(experiment, Inline())


def test_a_reply_survives() -> None:
    scores = (
        ClientScore("trained", "test", 6, {"accuracy": 0.5, "nll": 0.25}),
        ClientScore("trained", "val", 3, {"accuracy": 1.0, "nll": 0.0}, "local head"),
    )
    up = Up({"model": {"w": torch.randn(2)}}, 12, {"loss": 0.5}, scores)
    read = codec.read_reply(wire(codec.write_reply(Reply(3, up, "ab" * 32))))
    assert (read.cid, read.own, read.up.n, read.up.metrics) == (3, "ab" * 32, 12, up.metrics)
    assert read.up.scores == scores
    assert same(read.up.state["model"], up.state["model"])
    assert isinstance(codec.write_reply(Reply(3, up, ""))["metrics"], MetricRecord)


# ------------------------------------------------------------------ what else must not end a run


def test_text_goes_over_the_wire(tmp_path: Path) -> None:
    """Token ids: the rows that the server makes up must be ids too."""
    rng = np.random.default_rng(0)
    source = Source.from_arrays(rng.integers(0, 50, (60, 12)), np.arange(60) % 3, kind="text")
    config = RunConfig(method="fedper", rounds=2, clients=3, partition="iid", model="fasttext")
    experiment = Experiment.build(config, data=source)
    assert outcome(start(experiment, InProcess())) == outcome(start(experiment, Inline()))


def test_nothing_may_come_up_with_an_adaptation(tmp_path: Path) -> None:
    experiment = build("fedavg_ft", rounds=1)
    flower, _ = engine(experiment, tmp_path, only(1, 2, with_array("spy", "x", torch.zeros(1))))
    result = start(experiment, flower)
    assert result.records[-1].kind == "adapt"
    assert "the unknown tensor 'spy/x'" in result.records[-1].absent[1]


def test_an_error_at_a_site_tells_the_server_no_row_and_no_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = build()

    def node(context: Any) -> Node:
        if context.node_config["client"] == 2:
            raise BadInput("unknown class 'HIV positive, J. Doe' in /data/patients.csv")
        cid = int(context.node_config["client"])
        return Node(experiment.program, experiment.data.client(cid), SiteStore(tmp_path / str(cid)))

    app = client_app(node, lambda context: dict(context.node_config))
    roster = Roster(Line(LocalGrid(app, 4)), lambda hello: int(str(hello["client"])))
    result = start(experiment, Flower(roster))
    assert result.records[0].absent == {2: "BadInput: see the site's log"}
    assert "J. Doe" in capsys.readouterr().err


def test_an_exception_in_a_hook_tells_the_server_where_but_not_what_it_quotes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Quotes(Method):
        name: ClassVar[str] = "quotes"

        def loss(self, b: Any, s: Any) -> Any:
            loss = super().loss(b, s)
            return loss if s.cid != 2 else loss + {}["J. Doe"]

    config = RunConfig(rounds=1, model="mlp(hidden=[8])")
    result = start(Experiment.build(config, Quotes(), digits(*CLIENTS)), InProcess())
    where = "quotes.loss at client 2, round 1 (phase 'local')"
    assert result.records[0].absent == {2: f"HookError: {where}: KeyError; see the site's log"}
    assert "J. Doe" in capsys.readouterr().err


class Nodes(LocalGrid):
    """A grid that knows when its nodes were started, and can be given their ids."""

    def __init__(self, app: ClientApp, ids: dict[int, int]) -> None:
        super().__init__(app, 0)
        self.began = dict.fromkeys(ids, "monday")
        self._contexts = {
            node: Context(1, node, {"client": cid}, RecordDict(), {}) for node, cid in ids.items()
        }

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, last_activated_at=at) for n, at in self.began.items()]


HELLO = client_app(lambda context: None, lambda context: dict(context.node_config))  # type: ignore[arg-type, return-value]


def test_a_refused_site_is_asked_again_when_it_was_started_anew() -> None:
    grid, wrong = Nodes(HELLO, {7: 0}), {"data": True}

    def admit(hello: dict[str, Any]) -> int:
        if wrong["data"]:
            raise BadInput("wrong data")
        return int(hello["client"])

    roster = Roster(Line(grid), admit)
    assert roster.nodes() == {}
    wrong["data"] = False
    assert roster.nodes() == {}
    grid.began[7] = "tuesday"
    assert roster.nodes() == {0: 7}


def test_a_disk_of_the_server_is_no_fault_of_a_site() -> None:
    """Or the run would wait for sites that it has turned away itself."""

    def admit(hello: dict[str, Any]) -> int:
        raise DiskError("cannot write sites.json (Read-only file system)")

    with pytest.raises(DiskError, match="Read-only"):
        Roster(Line(Nodes(HELLO, {7: 0})), admit).nodes()


def test_of_two_nodes_of_one_site_the_one_that_came_last_counts() -> None:
    """Flower draws ids at random: the newer one may be smaller."""
    grid = Nodes(HELLO, {9: 0})
    roster = Roster(Line(grid), lambda hello: int(hello["client"]))
    assert roster.nodes() == {0: 9}
    grid._contexts[5] = Context(1, 5, {"client": 0}, RecordDict(), {})
    grid.began[5] = "tuesday"
    assert roster.nodes() == {0: 5}


@pytest.mark.parametrize(
    "change", [scores(names=["accuracy"]), scores(split="train"), lambda records: RecordDict()]
)
def test_evaluations_that_cannot_be_used_are_left_out(
    change: Callable[[RecordDict], RecordDict], tmp_path: Path
) -> None:
    """Names without values, rows that nobody asked for, nothing at all."""
    experiment = build(protocol="fedloom", rounds=1)

    def spoil(reply: Message) -> Message:
        head = opened(reply.content).config_records.get("head", {})
        if "rows" not in head and head.get("client") == 1:
            reply.content = bundled(change(opened(reply.content)))
        return reply

    flower, _ = engine(experiment, tmp_path, spoil)
    (record,) = start(experiment, flower).records
    assert {str(score.at): score.clients for score in record.scores} == {
        f"{moment}/{split}": ids
        for moment, ids in (("received", (0, 2, 3)), ("trained", (0, 1, 2, 3)))
        for split in ("test", "val")
    }
