"""A site's side: one order in, one answer out, whatever network lies between."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.evaluate import evaluate
from fedloom.core.program import Program
from fedloom.core.site import CPU, Visit
from fedloom.core.tree import State
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order, Reply
from fedloom.engines.flower.context_store import ContextStore
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.lost_state import LostState
from fedloom.engines.message_bundle import bundled, opened
from fedloom.errors import HookError, LeakError, TrainingError

REPORTED = (TrainingError, LeakError, LostState)
"""Errors whose text may leave the site: it names clients, rounds and tensors only."""


@dataclass(frozen=True)
class Node:
    """One client with its data and what it keeps."""

    program: Program
    data: ClientData
    store: SiteStore | ContextStore
    device: torch.device = CPU
    lost_state: Literal["absent", "restart"] = "absent"
    """When the state the server counts on is gone: give no answer, or begin as a new client."""
    save: Callable[[Visit], None] = lambda visit: None
    """Keeps the personal model for use at the site."""
    noise_key: bytes | None = None
    """The site's secret for noise that hides something; None, in a simulation: the run's seed."""

    def answer(self, order: Order) -> RecordDict:
        """Do what is asked."""
        own, key = self._own(order), self.noise_key
        visit = Visit(self.program, order.cid, self.data, order.down, own, self.device, key)
        if order.task == "save":
            self.save(visit)
            return codec.write_scores(order.cid, ())
        if order.task == "evaluate":
            assert order.ask is not None
            return codec.write_scores(order.cid, evaluate(visit, order.ask))
        up, kept = client(visit, order.ask)
        anew = visit.own is None and order.own is not None
        return codec.write_reply(Reply(order.cid, up, self.store.put(kept, order.own), anew))

    def _own(self, order: Order) -> State | None:
        try:
            return self.store.get(order.own)
        except LostState:
            if self.lost_state == "absent":
                raise
            return None


def client_app(
    node: Callable[[Context], Node], hello: Callable[[Context], dict[str, Any]]
) -> ClientApp:
    """A Flower app that answers for whatever node its context describes.

    `hello` is how a site introduces itself when it first appears.
    """
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return _reply(message, lambda: RecordDict({"hello": ConfigRecord(hello(context))}))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _reply(message, lambda: node(context).answer(_order(message)))

    return app


def _reply(message: Message, content: Callable[[], RecordDict]) -> Message:
    """An answer, or in its place why there is none: Flower itself would not report that."""
    try:
        records = content()
    except Exception as e:
        traceback.print_exc()  # to the site's own log
        records = codec.write_error(type(e).__name__, _reported(e))
    return Message(bundled(records), reply_to=message)


def _order(message: Message) -> Order:
    return codec.read_order(opened(message.content))


def _reported(error: Exception) -> str:
    """What may leave the site of an error: many quote rows, labels and paths."""
    if isinstance(error, REPORTED):
        return str(error)
    if isinstance(error, HookError):
        return f"{error.where}: {type(error.__cause__).__name__}; see the site's log"
    return "see the site's log"
