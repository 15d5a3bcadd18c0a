"""What a site may send: replies of its own, complete before the server sees them, and bounded.

Flower stores whatever a node pushes, and hands a reply to the server app before its parts have
arrived; the app then waits for them, and every site with it. Here a reply is shown when it is
whole, and is dropped as soon as it exceeds what the server's order says a reply may hold.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedloom.deploy.project.public_keys import PublicKeys
from fedloom.reply_limit import read_most_bytes

log = logging.getLogger("fedloom")

ONLINE = "online"


@dataclass
class Upload:
    """A reply that is arriving."""

    node: int
    order: str
    """Id of the message it replies to."""
    most: int
    pending: set[str]
    size: int = 0


class Uploads:
    """Stands in for four of Flower's handlers; each does what Flower's does, or refuses."""

    def __init__(self, keys: PublicKeys | None, most_reply: int) -> None:
        """`most_reply` holds where an order does not say how much a reply may be."""
        self.keys, self.most_reply = keys, most_reply
        self._lock = threading.Lock()
        self._arriving: dict[str, Upload] = {}
        """By Flower's id of the session in which the parts are pushed."""
        self._announced: Counter[str] = Counter()
        """Orders whose replies Flower may know of already, and `_arriving` does not yet."""
        self._pulling = threading.Lock()
        """No reply is announced while the server app is told which there are."""
        self._activate = fleet_handlers.activate_node
        self._push_messages = fleet_handlers.push_messages
        self._push_object = fleet_handlers.push_object
        self._pull_messages = runtime_handlers.pull_messages
        self._get_nodes = runtime_handlers.get_nodes

    def install(self) -> None:
        """Flower looks its handlers up in their module on every call."""
        fleet_handlers.activate_node = self.activate_node
        fleet_handlers.push_messages = self.push_messages
        fleet_handlers.push_object = self.push_object
        runtime_handlers.pull_messages = self.pull_messages
        runtime_handlers.get_nodes = self.get_nodes

    def activate_node(self, request: Any, state: Any) -> Any:
        """A site comes: one whose key lies in the folder needs no other registration."""
        key = request.public_key
        known = self.keys is not None and self.keys.name_of(key) is not None
        if known and state.get_node_id_by_public_key(key) is None:
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
        return self._activate(request=request, state=state)

    def get_nodes(self, request: Any, state: Any, task: Any) -> Any:
        """The server app asks who is there: a site whose key was removed is gone at once."""
        if self.keys is not None:
            for node in state.get_node_info(statuses=[ONLINE]):
                if self.keys.name_of(node.public_key) is None:
                    state.deactivate_node(node.node_id)
        return self._get_nodes(request, state, task)

    def push_messages(self, request: Any, state: Any) -> Any:
        """A site announces a reply, which must be its own, and one at a time."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise HTTPException(400, "one reply at a time")
        metadata = request.messages_list[0].metadata
        if metadata.src_node_id != request.node.node_id:
            raise HTTPException(403, "a site speaks for itself only")
        answered = metadata.reply_to_message_id
        with self._pulling, self._lock:
            self._announced[answered] += 1
        try:
            return self._announce(request, state, answered)
        finally:
            with self._lock:
                self._announced[answered] -= 1
                self._announced += Counter()  # without those at zero

    def _announce(self, request: Any, state: Any, answered: str) -> Any:
        order = state.get_valid_message_ins(answered)
        response = self._push_messages(request=request, state=state)
        most = None if order is None else read_most_bytes(str(order["group_id"]))
        pending = set(response.objects_to_push)
        if pending:
            most = self.most_reply if most is None else most
            upload = Upload(request.node.node_id, answered, most, pending)
            with self._lock:
                # What this site began before and did not finish will not be finished.
                for session, other in list(self._arriving.items()):
                    if other.order == upload.order:
                        del self._arriving[session]
                self._arriving[response.session_id] = upload
        return response

    def push_object(self, request: Any, state: Any) -> Any:
        """A part of a reply arrives."""
        with self._lock:
            upload = self._arriving.get(request.session_id)
            if upload is None or upload.node != request.node.node_id:
                raise HTTPException(409, "no reply of this site is under way")
            upload.size += len(request.object_content)
            too_large = upload.size > upload.most
            if too_large:
                del self._arriving[request.session_id]
        if too_large:
            # The server app then learns at once that there is no reply.
            state.delete_messages({upload.order})
            log.warning("a reply of node %d exceeds %d bytes", upload.node, upload.most)
            raise HTTPException(413, f"a reply to this order has at most {upload.most} bytes")
        response = self._push_object(request=request, state=state)
        if response.stored:
            with self._lock:
                upload.pending.discard(request.object_id)
                if not upload.pending:
                    self._arriving.pop(request.session_id, None)
        return response

    def pull_messages(self, request: Any, state: Any, task: Any) -> Any:
        """The server app asks for replies: those that are whole."""
        with self._pulling:
            with self._lock:
                arriving = {upload.order for upload in self._arriving.values()}
                arriving |= self._announced.keys()
            whole = [name for name in request.message_ids if name not in arriving]
            if len(whole) != len(request.message_ids):
                request = type(request)(message_ids=whole)
            return self._pull_messages(request, state, task)
