"""Flower without a network: a grid in this process that encodes and decodes every message.

`fedloom run --engine flower` shows in seconds that a method, network and data survive the wire and
the states on disk just as in a deployment.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedloom.core.data import Federation, data_of
from fedloom.core.program import Program
from fedloom.core.site import CPU
from fedloom.engines.flower.engine import Flower, Line, Roster
from fedloom.engines.flower.node import Node, client_app
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.message_bundle import bundled, opened
from fedloom.engines.zstd_arrays import squeeze

SITES = "sites"
"""Folder of a run with what its clients keep."""


class LocalGrid(Grid):
    """Nodes 1000, 1001, ... of one app; a message is answered when its reply is asked for."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app = app
        self._run = Run.create_empty(run_id=1)
        self._waiting: dict[str, bytes] = {}
        self._contexts = {
            1000 + i: Context(1, 1000 + i, {"client": i}, RecordDict(), {}) for i in range(nodes)
        }
        # Flower refuses to make a message outside of one of its own tasks.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(uuid.uuid4())
            self._waiting[name] = to_wire(message)
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        name = next((i for i in message_ids if i in self._waiting), None)
        if name is None:
            return []
        message = from_wire(self._waiting.pop(name))
        context = self._contexts[message.metadata.dst_node_id]
        reply = from_wire(to_wire(self.app(message, context)))
        self.let_out(reply)
        return [from_wire(to_wire(reply))]

    def let_out(self, reply: Message) -> None:
        """Make an answer as it leaves: as small as a site's gate makes it."""
        if reply.has_content():
            records = opened(reply.content)
            squeeze(records)
            reply.content = bundled(records)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = self.push_messages(messages)
        return [reply for i in ids for reply in self.pull_messages([i])]


def to_wire(message: Message) -> bytes:
    """A message as Flower sends it."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def from_wire(data: bytes) -> Message:
    """The message that was sent."""
    return message_from_proto(ProtoMessage.FromString(data))


class InProcess(Flower):
    """The Flower engine with every client a node of this process."""

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__(Roster(Line(LocalGrid(ClientApp(), 0)), _client))
        self.device = device
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        super().open(program, data, folder)
        self.close()
        self._scratch = tempfile.TemporaryDirectory() if folder is None else None
        sites = Path(self._scratch.name) if self._scratch else Path(str(folder)) / SITES

        def node(context: Context) -> Node:
            cid = int(context.node_config["client"])
            store = SiteStore(sites / str(cid))
            return Node(program, data_of(data, cid), store, self.device)

        app = client_app(node, lambda context: dict(context.node_config))
        # Newcomers, who never train, are tested too.
        self.roster = Roster(Line(LocalGrid(app, len(data))), _client)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def _client(hello: dict[str, object]) -> int:
    return int(str(hello["client"]))
