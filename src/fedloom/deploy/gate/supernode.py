"""Flower's SuperNode with the gate inside: the two functions that take messages in and send them.

Both are Flower's own, private, and of one version: another version is refused before it starts.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import flwr
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate.decide import FAILED, Gate, LetIn, Permitted, Refused
from fedloom.deploy.gate.replies import flower_error
from fedloom.deploy.processes.children import FLWR
from fedloom.engines.message_bundle import bundled, opened
from fedloom.errors import BadInput, FedloomError
from fedloom.plain_text import plain
from fedloom.polling import Pauses

if TYPE_CHECKING:
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.object_store import ObjectStore

    Announced = tuple[Message, ObjectTree]
    """A message without its parts, and their names."""

log = logging.getLogger("fedloom")

PULL = (
    "state object_store node_config receive get_run get_fab pull_object confirm_message_received"
    " trusted_entities"
)
PUSH = "state object_store send push_object"
"""Parameters of the two functions."""
KNOWN_RUNS = 16
"""Runs whose app is held in memory."""
MOST_MESSAGE_BYTES = 4_000_000_000
OBJECT_SECONDS = 300.0
"""How long an app may take from announcing an answer to having handed over all of it."""
PAUSE = 1.0
"""Seconds after a refusal, so that a server cannot fill the site's log with them."""
BUSY = 60.0
"""Seconds after an answer in which the next message is asked for often; then at Flower's pace."""

Object = bytes


@dataclass(frozen=True)
class _KnownRun:
    """A run as the server described it when it first came."""

    info: Run
    fab: Fab
    app: App
    configuration: Mapping[str, Any]


class GatedNode:
    """One SuperNode's messages, both ways, through a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._pull, self._set_context = replaceable_functions()
        self._runs: dict[int, _KnownRun] = {}
        self._let_in: dict[str, tuple[Message, LetIn]] = {}
        """Id of a message -> it, and what was decided; until it is answered."""
        self._refusals: list[Message] = []
        self._busy_until = 0.0

    def install(self) -> None:
        """From now on Flower calls this object."""
        flower: Any = start_client_internal
        flower._pull_and_store_message = self.pull
        flower._push_messages = self.push
        # An app hands its context back, configuration included. The gate alone sets it.
        InMemoryNodeState.set_run_series_context = lambda *_, **__: None  # type: ignore[method-assign]

    # -------------------------------------------------------------- in

    def pull(self, **flower: Any) -> int | None:
        """In place of Flower's: no message reaches an app that the gate does not let in."""
        try:
            received = self._received(flower["receive"])
        except RunNotRunningException:
            received = None
        if received is None:
            return None
        message, tree = received
        try:
            self._take_in(message, tree, flower)
        except RunNotRunningException:
            log.info("run %d ended meanwhile", message.metadata.run_id)
            return None
        except Refused as e:
            self._refuse(message, e.told)
        except Exception as e:
            whole = not isinstance(e, FedloomError)  # whose sentence tells all
            log.error("the gate refuses a message it cannot judge: %s", e, exc_info=whole)
            self.gate.record_failure(message.metadata.run_id, e)
            self._refuse(message, FAILED)
        else:
            return self._hand_over(message, flower)
        return int(message.metadata.run_id)

    def _received(self, receive: Callable[[], Announced | None]) -> Announced | None:
        """The next message. None lets Flower sleep for three seconds, which is most of the time
        that a short round takes, so that a node which has just worked asks again itself."""
        pauses = Pauses(least=0.1, most=1.0)
        while (received := receive()) is None:
            if time.monotonic() > self._busy_until:
                return None
            pauses.pause()
        return received

    def _take_in(self, message: Message, tree: ObjectTree, flower: dict[str, Any]) -> None:
        """Decide on a message; what was looked at is what the app will get."""
        run_id, kind = message.metadata.run_id, message.metadata.message_type
        refuse = partial(self.gate.refuse_message, run_id)
        if kind not in (MessageType.QUERY, MessageType.TRAIN) or message.has_error():
            raise refuse("message", f"no message of fedloom: {kind[:40]!r}")
        if plain(group := message.metadata.group_id) != group:  # which Flower prints
            raise refuse("message", "the name of its group is no plain text")
        if message.metadata.message_id != tree.object_id:
            # An app would be handed another message of the tree than the one that is looked at.
            raise refuse("message", "the message is not the one that its parts make")
        known = self._known_run(run_id, flower)
        permitted = self.gate.permit(run_id, known.app, known.configuration)
        contents = _pulled(tree, partial(flower["pull_object"], run_id))
        whole = inflate_object_from_contents(tree.object_id, contents, keep_object_contents=True)
        if not isinstance(whole, Message) or _address(whole) != _address(message):
            raise refuse("message", "the message is not the one that was announced")
        introduction = kind == MessageType.QUERY
        if introduction and len(whole.content):
            raise refuse("message", "a question who the site is holds something else")
        try:
            records = None if introduction else opened(whole.content)
        except Exception:  # the bytes are the server's, and can make anything fail
            raise refuse("message", "the message is no bundle of records") from None
        if records is not None and bundled(records).object_id != whole.content.object_id:
            # An app would be handed bytes that nobody has looked at.
            raise refuse("message", "the message is written otherwise than fedloom writes it")
        let_in = self.gate.let_in(run_id, permitted, records)
        flower["pull_object"] = lambda _, object_id: contents[object_id]
        flower["get_run"] = lambda _: known.info
        flower["get_fab"] = lambda *_: known.fab
        flower["receive"] = lambda: (message, tree)
        self._set_fresh_context(known, permitted, flower)
        self._let_in = {message.metadata.message_id: (message, let_in)}

    def _hand_over(self, message: Message, flower: dict[str, Any]) -> int | None:
        """Flower's own function, with what the gate has looked at.

        The server is told first that the message is here, and not last as by Flower: where the run
        has ended meanwhile, Flower would stop half-way, and an app would answer what no one waits
        for.
        """
        run_id: int | None = None
        try:
            flower["confirm_message_received"](message.metadata.run_id, message.metadata.message_id)
        except RunNotRunningException:
            log.info("run %d ended meanwhile", message.metadata.run_id)
        except Exception as e:
            log.error("the server could not be told that its message is here: %s", e)
        else:
            flower["confirm_message_received"] = lambda *_: None
            run_id = self._pull(**flower)
        if run_id is None:
            self._let_in.clear()
        return run_id

    def _known_run(self, run_id: int, flower: dict[str, Any]) -> _KnownRun:
        if run_id not in self._runs:
            refuse = partial(self.gate.refuse_message, run_id)
            info = flower["get_run"](run_id)
            app = App(flower["get_fab"](info.fab_hash, run_id).content)
            if info.fab_hash != app.sha256 or (info.fab_id, info.fab_version) != app.names:
                raise refuse("app", "the app is not the one that the run names")
            if info.primary_task_type == TaskType.AGENT_APP:
                raise refuse("app", "the run is none of fedloom's")
            app.sources  # noqa: B018  # refused here, before Flower unpacks it
            fused = get_fused_config_from_fab(app.content, info)
            fab = Fab(app.sha256, app.content, {})
            while len(self._runs) >= KNOWN_RUNS:
                self._runs.pop(next(iter(self._runs)))
            self._runs[run_id] = _KnownRun(replace(info, run_id=run_id), fab, app, fused)
        return self._runs[run_id]

    def _set_fresh_context(
        self, known: _KnownRun, permitted: Permitted, flower: dict[str, Any]
    ) -> None:
        """The configuration that was approved, whatever an earlier app left there."""
        context = Context(
            run_id=known.info.run_id,
            node_id=flower["state"].get_node_id(),
            node_config=flower["node_config"],
            state=RecordDict(),
            run_config=dict(permitted.configuration),
            series_id=known.info.series_id,
        )
        self._set_context(flower["state"], known.info.series_id, context)

    def _refuse(self, message: Message, why: str) -> None:
        self._refusals.append(Message(Error(ErrorCode.UNKNOWN, why), reply_to=message))
        time.sleep(PAUSE)

    # -------------------------------------------------------------- out

    def push(self, **flower: Any) -> None:
        """In place of Flower's: nothing is sent but what the gate wrote."""
        refusals, self._refusals = self._refusals, []
        for refusal in refusals:
            _send(refusal, 0.0, flower)
        if refusals:
            return
        self._push_replies(flower)
        pauses = Pauses()
        while self._let_in:  # whatever else an app has answered
            pauses.pause()
            self._push_replies(flower)

    def _push_replies(self, flower: dict[str, Any]) -> None:
        """Of those that apps have handed over."""
        state, store = flower["state"], flower["object_store"]
        for reply in state.get_messages_legacy(is_reply=True):
            try:
                self._push(reply, flower)
            finally:
                state.delete_messages(
                    message_ids=[reply.metadata.message_id, reply.metadata.reply_to_message_id]
                )
                store.delete(reply.metadata.message_id)

    def _push(self, reply: Message, flower: dict[str, Any]) -> None:
        asked, let_in = self._let_in.pop(reply.metadata.reply_to_message_id, (None, None))
        if asked is None or let_in is None:
            log.warning("an app answered a message that the site did not let in")
            self.gate.refuse_answer(None, "an answer to no message that was let in")
            return
        runtime = flower["state"].get_message_processing_duration(
            message_id=asked.metadata.message_id
        )
        try:
            answer = self._checked(reply, asked, let_in, flower["object_store"])
        except Refused as e:
            answer = Message(Error(ErrorCode.UNKNOWN, e.told), reply_to=asked)
        except Exception as e:
            log.exception("the gate failed; an answer is not sent")
            self.gate.record_failure(let_in.run, e)
            answer = Message(Error(ErrorCode.UNKNOWN, FAILED), reply_to=asked)
        _send(answer, runtime, flower)
        self._busy_until = time.monotonic() + BUSY

    def _checked(
        self, reply: Message, asked: Message, let_in: LetIn, store: ObjectStore
    ) -> Message:
        """The answer as it leaves: a message of our own, with the parts that were checked."""
        if reply.has_error():
            self.gate.refuse_answer(let_in, f"the app failed: {str(reply.error.reason)[:300]!r}")
            return Message(flower_error(reply.error.code), reply_to=asked)
        most = self.gate.most_bytes(let_in)
        contents = _taken_out(store, reply.metadata.message_id, most)
        whole = inflate_object_from_contents(reply.metadata.message_id, contents)
        if not isinstance(whole, Message) or not whole.has_content():
            raise BadInput("the answer has no content")
        records = self.gate.let_out(let_in, opened(whole.content))
        answer = Message(bundled(records), reply_to=asked)
        self.gate.count_out(let_in, answer.content, failed="error" in records)
        return answer


def _address(message: Message) -> tuple[int, str]:
    """Which run and which function of an app a message is for."""
    return message.metadata.run_id, message.metadata.message_type


def replaceable_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Flower's functions that are wrapped; refuses a Flower that this was not written for."""
    pull = start_client_internal._pull_and_store_message
    push = start_client_internal._push_messages
    known = (
        flwr.__version__ == FLWR
        and list(inspect.signature(pull).parameters) == PULL.split()
        and list(inspect.signature(push).parameters) == PUSH.split()
    )
    if not known:
        raise BadInput(
            f"the site's gate was made for Flower {FLWR}, and {flwr.__version__} is installed;"
            f" pip install flwr=={FLWR}"
        )
    return pull, InMemoryNodeState.set_run_series_context


def _pulled(tree: ObjectTree, pull: Callable[[str], bytes]) -> dict[str, Object]:
    """The message's objects from the server, all of them, before any app can see them."""
    ids = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
    size = 0

    def bounded(object_id: str) -> bytes:
        nonlocal size
        content = pull(object_id)
        if get_object_id(content) != object_id:
            raise BadInput("the server sent something else than it had announced")
        size += len(content)
        if size > MOST_MESSAGE_BYTES:
            raise BadInput(f"the server's message is over {MOST_MESSAGE_BYTES} bytes")
        return content

    # A message is announced before its parts are there. Flower would wait for a second first, and
    # for ten where the parts never come: until then a node does not see that their run has ended.
    # How long they may take is a matter of time, not of how often they were asked for.
    return pull_objects(
        ids,
        pull_object_fn=bounded,
        max_tries_per_object=None,
        initial_backoff=0.1,
        backoff_cap=1.0,
    )


def _taken_out(store: ObjectStore, message_id: str, most: int) -> dict[str, Object]:
    """The answer's objects, taken out once: what an app writes later is not looked at."""
    contents: dict[str, Object] = {}
    end = time.monotonic() + OBJECT_SECONDS
    for node in iterate_object_tree(store.get_object_tree(message_id)):
        pauses = Pauses()
        while not (content := store.get(node.object_id)):
            if content is None or time.monotonic() > end:
                raise BadInput("the app did not hand over all of its answer")
            pauses.pause()
        contents[node.object_id] = content
        if sum(map(len, contents.values())) > most:
            raise BadInput(f"the answer is over {most} bytes")
    return contents


def _send(message: Message, runtime: float, flower: Mapping[str, Any]) -> None:
    """Send a message of our own with its objects, of which no other copy exists."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = get_object_tree(message)
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    run_id = message.metadata.run_id
    try:
        wanted, session = flower["send"](message, tree, runtime)
        push_object_contents_from_iterable(
            ((name, content) for name, content in objects.items() if name in wanted),
            push_object_fn=partial(flower["push_object"], run_id, session),
        )
    except RunNotRunningException:
        log.info("run %d ended; an answer to it is not needed any more", run_id)
    except Exception:
        log.exception("an answer of run %d could not be sent", run_id)
