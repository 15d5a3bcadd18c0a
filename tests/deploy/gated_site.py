"""One site behind its gate, with Flower's own state, store and codec, and a server that may lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory
from sites import digits_schema, with_policy

from fedloom.core.evaluate import Ask
from fedloom.core.round import Round, initial_server, send
from fedloom.core.score import Moment
from fedloom.data import load
from fedloom.deploy import apps
from fedloom.deploy.consent.decision import Desk
from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate import supernode
from fedloom.deploy.gate.assess import assess
from fedloom.deploy.gate.decide import Gate
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.gate.supernode import GatedNode
from fedloom.deploy.processes.federation import app_of
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order, Task
from fedloom.engines.message_bundle import bundled, opened

NODE = 77
_times = count(1_000_000_000.0)
"""No two messages are alike."""
SITE, OTHER = "clinic", "other"
SETTINGS = {
    "method": "fedper",
    "model": "mlp(hidden=[8], norm=batch)",
    "batch_size": 16,
    "drop_last": True,
    "epochs": 1,
    "rounds": 3,
    "class_names": tuple("0123456789"),
}
Spoil = Callable[[RecordDict], RecordDict]


def assess_here(file: Path, digest: str, with_app: bool) -> Assessment:
    """The assessment without a process of its own."""
    return assess(file, digest, with_app, file.parent / "scratch")


class LostMessage(Exception):
    """The node did not take a message in."""


@dataclass(frozen=True)
class Left:
    """All that left the site in answer to one message."""

    reply: Message
    bytes: bytes
    """Every byte that was handed to the network."""

    @property
    def error(self) -> str:
        """Flower's error, as the gate writes it; empty of an answer with content."""
        return str(self.reply.error.reason) if self.reply.has_error() else ""


@dataclass
class GatedSite:
    """A clinic with 240 digits, and all that lies between it and a server."""

    folder: Path
    policy: str = ""
    """The table [policy] of its file."""
    sent: list[tuple[Message, dict[str, bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.project: Project = write_project(
            self.folder / "study", [SITE, OTHER], tls=False, run=SETTINGS, schema=digits_schema()
        )
        self.file = self.project.site(SITE)
        source = load("digits")
        x, y = np.asarray(source.x)[:240], np.asarray(source.y)[:240]
        np.savez(self.file.parent / "data.npz", x=x, y=y)
        self.say(self.policy)
        self.node = GatedNode(Gate(self.file, assess_here))
        stores = ObjectStoreFactory()
        self.state = NodeStateFactory(objectstore_factory=stores).state()
        self.store = stores.store()
        self.state.set_node_id(NODE)
        self.app: App = app_of(self.project)

    def say(self, policy: str) -> None:
        """Write the site's file with this policy."""
        self.file.write_text(with_policy(self.file.read_text(), policy))

    @property
    def desk(self) -> Desk:
        """Where its operator decides."""
        return Desk(self.file)

    def configuration(self, **changes: Any) -> dict[str, Any]:
        """Of a run with these changes."""
        return {**self.project.config, **{k.replace("_", "-"): v for k, v in changes.items()}}

    def approve(self, app: App | None = None, **changes: Any) -> str:
        """As the operator would; returns the digest."""
        config = self.configuration(**changes)
        return self.desk.approve_beforehand(app or self.app, config, "test", assess_here).digest

    @cached_property
    def site(self) -> SiteData:
        """Its data under the settings of the project."""
        return SiteData(self.desk.site, Settings.read(self.project.config))

    def order(self, task: Task = "client", t: int = 1, cid: int = 0, **changes: Any) -> RecordDict:
        """What an honest server asks; `changes` are of the plan."""
        program = self.site.experiment().program
        plan = replace(program.schedule(3)[0], t=t, **changes)
        r = Round(program, plan, initial_server(program), [0, 1])
        moment: Moment = "trained" if task == "client" else "received"
        ask = None if task == "save" else Ask((moment,), ("test",))
        return codec.write_order(Order(cid, task, send(r, 0), None, ask), {})

    def info(self, run_id: int, app: App, override: Mapping[str, Any]) -> Run:
        """How a server describes a run."""
        fab_id, version = self.app.names
        return replace(
            Run.create_empty(run_id),
            fab_id=fab_id,
            fab_version=version,
            fab_hash=app.sha256,
            override_config={k.replace("_", "-"): v for k, v in override.items()},
            series_id=run_id,
        )

    def ask(
        self,
        content: RecordDict | None = None,
        *,
        kind: str = MessageType.TRAIN,
        run_id: int = 1,
        app: App | None = None,
        override: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        lie: Callable[[str, bytes], bytes] = lambda object_id, data: data,
        client: Callable[[Message, Context], Message] | None = None,
        spoil: Spoil = lambda records: records,
        meddle: Callable[[Message, dict[str, bytes]], None] = lambda reply, objects: None,
        confirm: Callable[[int, str], None] = lambda run_id, message_id: None,
    ) -> Left:
        """Send the site one message; `client` is the app, `spoil` what it does to its answer, and
        `confirm` how the server takes it that the message has come."""
        app = app or self.app
        message = _message(bundled(content or RecordDict()), kind, run_id)
        objects = _objects(message)
        tree = get_object_tree(message)
        run = replace(self.info(run_id, app, override or {}), **(info or {}))
        delivered = [(make_message(message.metadata, RecordDict()), tree)]
        taken = self.node.pull(
            state=self.state,
            object_store=self.store,
            node_config={"site": str(self.file)},
            receive=lambda: delivered.pop() if delivered else None,
            get_run=lambda _: run,
            get_fab=lambda *_: Fab(app.sha256, app.content, {}),
            pull_object=lambda _, object_id: lie(object_id, objects[object_id]),
            confirm_message_received=confirm,
            trusted_entities=None,
        )
        if taken is None:
            raise LostMessage
        if self.node._let_in:
            self._answer(client or honest(content), spoil, meddle)
        return self.push()

    def push(self) -> Left:
        """Have the node send what there is to send."""
        before = len(self.sent)
        self.node.push(
            state=self.state, object_store=self.store, send=self._send, push_object=self._push
        )
        assert len(self.sent) == before + 1, "there was not one answer"
        message, objects = self.sent[-1]
        whole = inflate_object_from_contents(
            message.metadata.message_id, objects, keep_object_contents=True
        )
        assert isinstance(whole, Message)
        if whole.has_content():
            whole.content = opened(whole.content)
        everything = repr(message.metadata.__dict__).encode() + b"".join(objects.values())
        return Left(whole, everything)

    def _send(self, message: Message, tree: Any, runtime: float) -> tuple[set[str], str]:
        self.sent.append((message, {}))
        return {tree.object_id, *_ids(tree)}, "session"

    def _push(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        self.sent[-1][1][object_id] = content

    def _answer(
        self,
        client: Callable[[Message, Context], Message],
        spoil: Spoil,
        meddle: Callable[[Message, dict[str, bytes]], None],
    ) -> None:
        """What Flower's app process does: take the message, run the app, hand over its answer."""
        (message,) = self.state.get_messages_legacy(is_reply=False, limit=1)
        name = message.metadata.message_id
        ids = [name, *_ids(self.store.get_object_tree(name))]
        contents = {object_id: self.store.get(object_id) or b"" for object_id in ids}
        whole = inflate_object_from_contents(name, contents, keep_object_contents=True)
        assert isinstance(whole, Message)
        whole.metadata.__dict__["_message_id"] = name
        self.state.record_message_processing_start(name)
        run = self.state.get_run(message.metadata.run_id)
        assert run is not None
        context = self.state.get_run_series_context(run.series_id)
        assert context is not None
        self.seen = context
        reply = client(whole, context)
        if reply.has_content():
            reply.content = bundled(spoil(opened(reply.content)))
        self.hand_over(reply, meddle)

    def hand_over(
        self,
        reply: Message,
        meddle: Callable[[Message, dict[str, bytes]], None] = lambda reply, objects: None,
    ) -> None:
        """An app's answer, into the state and the store of the node."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = _objects(reply)
        meddle(reply, objects)
        content = None if reply.has_error() else RecordDict()
        error = reply.error if reply.has_error() else None
        self.state.store_message(make_message(reply.metadata, content, error))
        self.store.preregister(reply.metadata.run_id, get_object_tree(reply))
        for object_id, data in objects.items():
            self.store.put(object_id, data)

    def events(self) -> list[str]:
        """The audit log, by its events."""
        return [line["event"] for line in Gate(self.file, assess_here).audit.lines()]

    def rules(self) -> list[str]:
        """Rules by which something was refused, in order."""
        lines = Gate(self.file, assess_here).audit.lines()
        refused = (line["rule"] for line in lines if line["event"] == "refused")
        return [rule for rules in refused for rule in rules.split(", ")]


def honest(content: RecordDict | None) -> Callable[[Message, Context], Message]:
    """The app that `fedloom deploy init` writes."""
    client: ClientApp = apps.client
    return client


def _message(content: RecordDict, kind: str, run_id: int) -> Message:
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=1,
        dst_node_id=NODE,
        reply_to_message_id="",
        group_id="",
        created_at=next(_times),
        ttl=1e9,
        message_type=kind,
        src_task_id=1,
    )
    message = make_message(metadata, content)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def _objects(message: Message) -> dict[str, bytes]:
    return {name: each.deflate() for name, each in get_all_nested_objects(message).items()}


def _ids(tree: Any) -> list[str]:
    return [name for child in tree.children for name in (*_ids(child), child.object_id)]


@contextmanager
def gated_site(folder: Path, policy: str = "") -> Iterator[GatedSite]:
    """A site whose gate does not pause after a refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", str(folder / "cache"))
        patch.setattr(supernode, "PAUSE", 0.0)
        yield GatedSite(folder, policy)
