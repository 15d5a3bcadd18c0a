"""Apps that try to get a site's rows out: each with an answer that the gate does not let out.

Over Flower's own state, store and codec. Every one of them tries to send `SECRET`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from gated_site import OTHER, GatedSite, gated_site

from fedloom.deploy.gate.counters import Counters
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.message_bundle import bundled, opened
from fedloom.errors import BadInput

SECRET = b"patient 4711 has it"
TEXT = SECRET.decode()
ROWS = np.frombuffer(SECRET + bytes(5), np.float64)
"""The secret as numbers."""
MODEL = "state/model"
LET_OUT = "the site's gate does not let the answer out (form)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedSite]:
    """One for all: what is refused changes nothing."""
    with gated_site(tmp_path_factory.mktemp("site"), "most_rounds = 500") as made:
        made.approve()
        yield made


def arrays(records: RecordDict) -> dict[str, Array]:
    return dict(records.array_records[MODEL])


def with_array(key: str, array: Array) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        records[MODEL] = ArrayRecord({**arrays(records), key: array})
        return records

    return change


def first_array(change: Callable[[Array], Array]) -> Callable[[RecordDict], RecordDict]:
    """Changes the first tensor of the model."""

    def spoil(records: RecordDict) -> RecordDict:
        held = arrays(records)
        key = next(iter(held))
        records[MODEL] = ArrayRecord({**held, key: change(held[key])})
        return records

    return spoil


def with_record(name: str, record: Any) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        records[name] = record
        return records

    return change


def without_array(records: RecordDict) -> RecordDict:
    held = arrays(records)
    held.popitem()
    records[MODEL] = ArrayRecord({**held, TEXT: Array(ROWS)})
    return records


def says(name: str, **values: Any) -> Callable[[RecordDict], RecordDict]:
    """Changes entries of a record."""

    def change(records: RecordDict) -> RecordDict:
        records[name] = ConfigRecord({**dict(records.config_records[name]), **values})
        return records

    return change


def same_bytes(array: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """The same data under another description."""
    return Array(dtype=dtype, shape=shape, stype=array.stype, data=array.data)


def longer_header(array: Array) -> Array:
    """Numpy's header may be followed by any number of spaces, or of something else."""
    held = array.numpy()
    description = {"descr": held.dtype.str, "fortran_order": False, "shape": held.shape}
    text = (repr(description) + TEXT + "\n").encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + held.tobytes()
    return Array(array.dtype, array.shape, array.stype, data)


def by_columns(array: Array) -> Array:
    return Array(np.asfortranarray(np.zeros(array.shape, np.float32) + len(TEXT)))


def personal(records: RecordDict) -> RecordDict:
    """FedPer's head, which the site has just stored, in place of what is shared."""
    site = personal.site  # type: ignore[attr-defined]
    store = SiteStore(site.desk.site.state / "first" / "states")
    own = store.get(str(records.config_records["head"]["own"])) or {}
    held = {key: Array(value.numpy()) for key, value in own["model"].items()}
    assert any(key.startswith("head.") for key in held)
    records[MODEL] = ArrayRecord({**arrays(records), **held})
    return records


TENSORS: dict[str, Callable[[RecordDict], RecordDict]] = {
    "one more tensor": with_array("rows", Array(ROWS)),
    "a tensor whose name is the secret": with_array(TEXT, Array(np.zeros(1, np.float32))),
    "one more slice": with_record("state/rows", ArrayRecord({"rows": Array(ROWS)})),
    "a slice whose name is the secret": with_record(f"state/{TEXT}", ArrayRecord({})),
    "rows in place of a tensor": without_array,
    "a slice that is missing": lambda records: RecordDict(
        {name: record for name, record in records.items() if name != MODEL}
    ),
    "another shape": first_array(lambda a: Array(np.frombuffer(SECRET[:16], np.float32))),
    "another type": first_array(lambda a: Array(np.resize(ROWS, a.shape))),
    "integers": first_array(lambda a: Array(np.zeros(a.shape, np.int32))),
    "a type that lies": first_array(lambda a: same_bytes(Array(ROWS), a.dtype, a.shape)),
    "a shape that lies": first_array(lambda a: same_bytes(a, a.dtype, (*a.shape, 1))),
    "bytes behind the values": first_array(
        lambda a: Array(a.dtype, a.shape, a.stype, a.data + SECRET)
    ),
    "bytes in the header": first_array(longer_header),
    "the order of columns": first_array(by_columns),
    "another format": first_array(lambda a: Array(a.dtype, a.shape, TEXT, a.data)),
    "no format at all": first_array(lambda a: Array(a.dtype, a.shape, a.stype, SECRET)),
    "the personal head": personal,
}
RECORDS: dict[str, Callable[[RecordDict], RecordDict]] = {
    "one more record": with_record("notes", ConfigRecord({"note": TEXT})),
    "one more record of numbers": with_record("numbers", MetricRecord({"x": ROWS.tolist()})),
    "a metric with a telling name": with_record("metrics", MetricRecord({TEXT: 1.0})),
    "a list in place of the loss": with_record("metrics", MetricRecord({"loss": ROWS.tolist()})),
    "an integer in place of the loss": with_record("metrics", MetricRecord({"loss": 4711})),
    "a text in the head": says("head", note=TEXT),
    "bytes in the head": says("head", anew=SECRET),
    "a state that is no digest": says("head", own=TEXT),
    "more rows than the site has": says("head", rows=10**15),
    "no rows": says("head", rows=0),
    "the name of another client": says("head", client=1),
    "a number of rows that is a text": says("head", rows=TEXT),
    "a score nobody asked for": says("score/0", split="train"),
    "a moment nobody asked for": says("score/0", moment="received"),
    "a score of a telling model": says("score/0", model=TEXT),
    "a metric of a score with a telling name": says("score/0", names=[TEXT, "loss"]),
    "more values than names": says("score/0", values=ROWS.tolist()),
    "one more entry in a score": says("score/0", note=TEXT),
    "a score of no rows": says("score/0", rows=-4711),
    "a score of more rows than the site has": says("score/0", rows=4711),
    "the same score twice": lambda records: with_record(
        "score/1", ConfigRecord(dict(records.config_records["score/0"]))
    )(records),
    "a score under a telling name": lambda records: with_record(
        f"score/{TEXT}", ConfigRecord(dict(records.config_records["score/0"]))
    )(records),
    "an error beside an answer": with_record(
        "error", ConfigRecord({"kind": "BadInput", "message": TEXT})
    ),
}


@pytest.mark.parametrize("case", [*TENSORS, *RECORDS])
def test_an_answer_of_another_form_stays_here(case: str, site: GatedSite) -> None:
    personal.site = site  # type: ignore[attr-defined]
    left = site.ask(site.order(), spoil={**TENSORS, **RECORDS}[case])
    assert left.error == LET_OUT
    assert SECRET not in left.bytes
    assert len(left.bytes) < 2000
    assert site.rules()[-1] == "form"


def replies_with(error: Any) -> Callable[[Message, Context], Message]:
    return lambda message, context: Message(error, reply_to=message)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("TrainingError", "client 0, train 1: the loss is not finite; lower lr or set clip"),
        ("LostState", "the state  that the server counts on is not at the site, or was altered"),
        ("ValueError", "client 0, train 1: see the site's log"),
        (TEXT, "client 0, train 1: see the site's log"),
    ],
)
def test_of_an_error_only_its_kind_leaves(kind: str, words: str, site: GatedSite) -> None:
    record = RecordDict({"error": ConfigRecord({"kind": kind, "message": TEXT})})
    left = site.ask(site.order(), client=replies_with(bundled(record)))
    error = left.reply.content.config_records["error"]
    assert error["kind"] == (kind if kind != TEXT else "Error")
    assert str(error["message"]).startswith(words)
    assert SECRET not in left.bytes


def test_of_flowers_own_error_nothing_leaves_that_an_app_could_choose(site: GatedSite) -> None:
    """Neither its words nor its number."""
    error = Error(19_470_815, f"<class 'KeyError'>:<'{TEXT}'>")
    left = site.ask(site.order(), client=replies_with(error))
    assert left.error == "the app failed; see the site's log"
    assert left.reply.error.code == ErrorCode.UNKNOWN
    assert SECRET not in left.bytes


def test_an_app_cannot_choose_the_code_of_its_error(site: GatedSite) -> None:
    left = site.ask(site.order(), client=replies_with(Error(20_261_116, "")))
    assert left.reply.error.code == ErrorCode.UNKNOWN


@pytest.mark.parametrize(
    "change",
    [
        says("hello", site=OTHER),
        says("hello", class_names=[TEXT]),
        says("hello", note=TEXT),
        says("hello", shape=[4711]),
        with_record("notes", ConfigRecord({"note": TEXT})),
        with_record("state/rows", ArrayRecord({"rows": Array(ROWS)})),
    ],
    ids=["another name", "other classes", "a note", "another shape", "a record", "rows"],
)
def test_an_introduction_says_what_the_site_is_and_nothing_else(
    change: Callable[[RecordDict], RecordDict], site: GatedSite
) -> None:
    left = site.ask(kind=MessageType.QUERY, spoil=change)
    assert left.error == LET_OUT
    assert SECRET not in left.bytes


def test_an_error_to_the_introduction_tells_nothing(site: GatedSite) -> None:
    record = RecordDict({"error": ConfigRecord({"kind": "BadInput", "message": TEXT})})
    left = site.ask(kind=MessageType.QUERY, client=replies_with(bundled(record)))
    assert dict(left.reply.content.config_records["error"]) == {
        "kind": "BadInput",
        "message": "see the site's log",
    }


def test_nothing_travels_beside_the_answer(site: GatedSite) -> None:
    """Metadata, the order of tensors and of records: the gate writes all of them itself."""

    def client(message: Message, context: Context) -> Message:
        from gated_site import honest

        reply = honest(None)(message, context)
        reply.metadata.__dict__["_group_id"] = TEXT
        reply.metadata.ttl = 4711.0
        records = RecordDict(dict(reversed(opened(reply.content).items())))
        records[MODEL] = ArrayRecord(dict(reversed(arrays(records).items())))
        reply.content = bundled(records)
        return reply

    plain, left = site.ask(site.order()), site.ask(site.order(t=2), client=client)
    assert SECRET not in left.bytes
    assert left.reply.metadata.group_id == ""
    assert left.reply.metadata.ttl != 4711.0
    assert list(left.reply.content) == list(plain.reply.content)
    assert list(arrays(left.reply.content)) == list(arrays(plain.reply.content))


def test_what_an_app_stores_after_the_gate_looked_is_not_sent(site: GatedSite) -> None:
    """The gate takes the bytes out once; what lies in the store while it sends is not read."""
    counted = site.node.gate.count_out

    def meddling(*args: Any, **keys: Any) -> None:
        counted(*args, **keys)
        for entry in site.store.store.values():  # type: ignore[attr-defined]
            entry.content = SECRET

    site.node.gate.count_out = meddling  # type: ignore[method-assign]
    try:
        left = site.ask(site.order())
    finally:
        site.node.gate.count_out = counted  # type: ignore[method-assign]
        site.store.clear()
    assert not left.error
    assert SECRET not in left.bytes


def test_an_answer_to_no_message_is_dropped(site: GatedSite) -> None:
    """An app answers twice: the second answer finds no message that was let in."""
    site.ask(site.order())
    reply = site.sent[-1][0]
    again = Message(RecordDict({"notes": ConfigRecord({"note": TEXT})}), reply_to=reply)
    site.hand_over(again)
    before = len(site.sent)
    site.node.push(
        state=site.state, object_store=site.store, send=site._send, push_object=site._push
    )
    assert len(site.sent) == before
    assert site.rules()[-1] == "answer"


def test_a_second_answer_does_not_stand_in_for_the_next(
    site: GatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies there when the next message comes, whose own answer, which comes later, is waited
    for all the same."""
    every = site.state.get_messages_legacy
    monkeypatch.setattr(
        site.state,
        "get_messages_legacy",
        lambda is_reply, limit=1: every(is_reply=is_reply, limit=limit),
    )
    site.ask(site.order())
    reply = site.sent[-1][0]
    site.hand_over(Message(RecordDict({"notes": ConfigRecord({"note": TEXT})}), reply_to=reply))
    for t in (2, 3):
        left = site.ask(site.order(t=t))
        assert not left.error
        assert TEXT.encode() not in left.bytes


def test_bytes_are_counted_in_a_round_and_in_all(tmp_path: Path) -> None:
    """What would be too much is refused beforehand; what has become too much, when it leaves."""
    with (
        gated_site(tmp_path / "few", "most_bytes_per_round = 500") as few,
        pytest.raises(BadInput, match="most_bytes_per_round"),
    ):
        few.approve()
    with gated_site(tmp_path / "all", "most_bytes = 20_000") as limited:
        limited.approve()
        assert not limited.ask(limited.order()).error
        counters = Counters(limited.desk.site.state)
        rest = 19_000 - counters.of("first").bytes
        counters.add_answer("first", rest, "client train", None)
        left = limited.ask(limited.order(t=2))
        assert left.error == "the site's gate does not let the answer out (most_bytes)"
        assert counters.of("first").bytes == 19_000


def test_the_audit_log_tells_what_was_refused_and_what_left(site: GatedSite) -> None:
    site.ask(site.order())
    lines = [json.loads(line) for line in (site.desk.site.state / "audit.jsonl").open()]
    sent = [line for line in lines if line["event"] == "sent" and line["task"] == "client"][-1]
    assert sent["bytes"] > 1000
    assert len(sent["sha256"]) == 64
    assert sent["method"] == "fedper"
    assert {"form", "answer"} <= set(site.rules())
