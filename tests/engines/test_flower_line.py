"""Waiting for answers over Flower: what is lost or late ends the wait, each with its reason."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedloom import polling
from fedloom.engines import Absent
from fedloom.engines.content import content_bytes
from fedloom.engines.flower import engine
from fedloom.engines.flower.engine import LEEWAY, Line
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.engines.message_bundle import bundled


class Silent(LocalGrid):
    """Nodes 1000 and 1001, of which the second is started anew after two looks; none answers."""

    def __init__(self) -> None:
        super().__init__(ClientApp(), 2)
        self.looks = 0
        self.sent: list[Message] = []

    def get_nodes(self) -> list[NodeInfo]:
        self.looks += 1
        times = ("2026-01-01T00:00:00", f"2026-01-01T00:00:0{int(self.looks > 2)}")
        return [NodeInfo(node_id=1000 + i, last_activated_at=at) for i, at in enumerate(times)]

    def push_messages(self, messages: Any) -> list[str]:
        self.sent = list(messages)
        return list(super().push_messages(self.sent))

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return []


class Clock:
    """In place of the module `time`: it goes on only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_node_that_was_started_anew_has_lost_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at the third look; looks are five seconds apart, and then until the next poll. It is not
    waited for any longer; the other one is, until the deadline."""
    clock = Clock()
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(polling, "time", clock)
    waited = {
        node: (absent.why, clock.now)
        for node, absent in Line(Silent(), deadline=20, poll=0.5).exchange(
            MessageType.TRAIN, {1000: RecordDict(), 1001: RecordDict()}
        )
    }
    why, seen = waited.pop(1001)
    assert why == "its node was started anew in the meantime"
    assert 10.0 < seen <= 11.0
    why, given_up = waited.pop(1000)
    assert why == "no answer within 20 s"
    assert 20.0 <= given_up <= 20.5
    assert not waited


def test_what_comes_soon_is_seen_soon_and_what_takes_long_is_not_asked_for_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    pauses, looks = polling.Pauses(least=0.02, most=2.0), [0.0]
    while clock.now < 3600.0:
        pauses.pause()
        looks.append(clock.now)
    late = [after - before for before, after in pairwise(looks)]
    assert late == pytest.approx([min(max(look / 10, 0.02), 2.0) for look in looks[:-1]])
    assert len([look for look in looks if look <= 1.0]) > 20
    assert 1800 <= len(looks) < 1900


def test_a_message_outlives_the_wait_for_its_answer() -> None:
    """Otherwise Flower would say of a late one that it cannot be found."""
    grid = Silent()
    list(Line(grid, deadline=0.1, poll=0.01).exchange(MessageType.TRAIN, {1000: RecordDict()}))
    assert [message.metadata.ttl for message in grid.sent] == [0.1 + LEEWAY]


class Garbled(LocalGrid):
    """Node 1001 sends parts that do not fit together: Flower raises whenever it is to read them."""

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = list(super().pull_messages(message_ids))
        if any(reply.metadata.src_node_id == 1001 for reply in replies):
            raise ValueError("Unexpected set of `children`")
        return replies


def test_a_reply_that_flower_cannot_read_costs_its_sender_the_round_alone() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(RecordDict(), reply_to=message)

    asked = {node: RecordDict() for node in (1000, 1001, 1002)}
    replies = dict(Line(Garbled(app, 3), poll=0.01).exchange(MessageType.TRAIN, asked))
    garbled = replies.pop(1001)
    assert isinstance(garbled, Absent)
    assert garbled.why == (
        "its reply was refused: Flower cannot read it (ValueError: Unexpected set of `children`)"
    )
    assert all(isinstance(reply, RecordDict) for reply in replies.values())
    assert sorted(replies) == [1000, 1002]


class Padded(LocalGrid):
    """Node 1001 adds 5,000 bytes to its answer on the way."""

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            if reply.metadata.src_node_id == 1001:
                reply.content["padding"] = ConfigRecord({"nothing": bytes(5000)})
        return replies


def test_what_arrives_is_counted_as_it_came_also_where_it_is_refused() -> None:
    """Bytes that a dishonest site adds to its answer have travelled, whatever is made of them."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(bundled(RecordDict({"answer": ConfigRecord({"x": 1})})), reply_to=message)

    sizes: dict[int, int] = {}
    replies = dict(
        Line(Padded(app, 2), poll=0.01).exchange(
            MessageType.TRAIN,
            {1000: RecordDict(), 1001: RecordDict()},
            arrived=lambda node, bundle: sizes.update({node: content_bytes(bundle)}),
        )
    )
    assert isinstance(replies[1000], RecordDict)
    assert isinstance(replies[1001], Absent), "it is no bundle"
    assert sizes[1001] - sizes[1000] > 5000
