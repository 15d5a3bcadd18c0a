"""A site with a key answers a round with 600 MB where its model has 16 kB, and sends all of it.

    python attacks/large_reply.py

The link, its guard and the server app are real processes with TLS on loopback. This script speaks
for both sites over Flower's own connection and without a gate: one answers honestly; the other one
adds an array of 600 MB to its answer and goes on sending when the link refuses. Printed are what
became of every part, and the most memory that the link and the server app had.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.start_client_internal import _init_connection

from fedloom.deploy.apps import client
from fedloom.deploy.processes.federation import DeployedFederation
from fedloom.deploy.processes.rehearsal import digits_project
from fedloom.deploy.project.folder import Project
from fedloom.methods import parse_method

HOSTILE_BYTES = 600 * 10**6
LIMIT = 900.0
ROUND_1_MOST = 300.0


class Site(threading.Thread):
    """Answers the server's messages until it is stopped."""

    def __init__(self, project: Project, name: str, hostile: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.project, self.hostile = project, hostile
        self.file = project.site(name)
        self.stopped = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.sent = 0
        """Bytes of the large answer."""

    def run(self) -> None:
        key = load_ssh_private_key((self.file.parent / "site.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        ca, link = self.project.link.ca, self.project.link
        assert ca is not None
        keys = key, key.public_key()
        with _init_connection(link.address, False, ca.read_bytes(), keys) as connection:
            node, receive, send, _, _, pull, push, confirm = connection
            while not self.stopped.is_set():
                received = receive()
                if received is None:
                    time.sleep(0.5)
                    continue
                order, tree = received
                run_id = order.metadata.run_id
                ids = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
                contents = pull_objects(ids, pull_object_fn=partial(pull, run_id))
                whole: Any = inflate_object_from_contents(
                    tree.object_id, contents, keep_object_contents=True
                )
                confirm(run_id, order.metadata.message_id)
                self._answer(order, whole, node, send, push)

    def _answer(self, order: Message, whole: Message, node: int, send: Any, push: Any) -> None:
        context = Context(
            run_id=order.metadata.run_id,
            node_id=node,
            node_config={"site": str(self.file)},
            state=RecordDict(),
            run_config=dict(self.project.config),
        )
        # As Flower does: what an app answers is a reply to the message as it was received.
        reply = Message(client(whole, context).content, reply_to=order)
        large = self.hostile and order.metadata.message_type == MessageType.TRAIN and not self.sent
        if large:
            huge = np.arange(HOSTILE_BYTES // 8, dtype=np.float64)
            reply.content["more"] = ArrayRecord({"huge": Array(huge)})
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            wanted, session = send(reply, tree, 1.0)
            for name, each in objects.items():
                if name not in wanted:
                    continue
                content = each.deflate()
                try:
                    push(order.metadata.run_id, session, name, content)
                    outcome = "stored"
                except Exception as e:
                    outcome = " ".join(f"{type(e).__name__}: {e}".split())[:110]
                if large:
                    self.outcomes[outcome] += 1
                    self.sent += len(content)


class Memory(threading.Thread):
    """The most that each process had."""

    def __init__(self, federation: DeployedFederation) -> None:
        super().__init__(daemon=True)
        self.federation, self.most, self.first = federation, Counter[str](), Counter[str]()
        self.stopped = threading.Event()

    def run(self) -> None:
        known: dict[str, psutil.Process] = {}
        while not self.stopped.wait(0.1):
            if len(known) < 2:
                for process in self.federation.link.processes():
                    command = " ".join(process.cmdline())
                    for name in ("fedloom.deploy.guard", "flwr-serverapp"):
                        if name in command:
                            known[name] = process
            for name, process in known.items():
                try:
                    size = process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self.first.setdefault(name, size)
                self.most[name] = max(self.most[name], size)


def main() -> None:
    parse_method("fedper")  # imports all methods, before two threads want them
    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE < 8 * 10**6, "the guard refuses larger requests"
    with tempfile.TemporaryDirectory(prefix="attack-") as scratch:
        run = {"rounds": 1, "model": "mlp(hidden=[32])", "method": "fedper"}
        project = digits_project(Path(scratch) / "study", 2, True, {**run, "min_clients": 1})
        federation = DeployedFederation(project)
        federation.nodes = {}
        with federation:
            federation.start_link()
            honest, hostile = (
                Site(project, name, name == "site-2") for name in ("site-1", "site-2")
            )
            memory = Memory(federation)
            for thread in (honest, hostile):
                thread.start()
            time.sleep(5)
            submitted = federation.submit({"min_clients": 1})
            memory.start()
            try:
                submitted.child.wait(LIMIT)
            finally:
                end = time.monotonic() + ROUND_1_MOST
                while 0 < hostile.sent < HOSTILE_BYTES and time.monotonic() < end:
                    time.sleep(0.5)
                for one in (memory, honest, hostile):
                    one.stopped.set()
            print(submitted.child.tail(12))
            database = sum(
                f.stat().st_size for f in (project.root / "server").glob("superlink.db*")
            )
        journal = submitted.out / "run" / "metrics.jsonl"
        for line in journal.read_text().splitlines():
            print("absent:", json.loads(line)["absent"])
        print(f"sent {hostile.sent / 1e6:.0f} MB:")
        for outcome, count in hostile.outcomes.most_common():
            print(f"  {count} parts: {outcome}")
        for name, most in memory.most.items():
            print(f"{name}: {memory.first[name] / 1e6:.0f} MB, at most {most / 1e6:.0f}")
        print(f"superlink.db: {database / 1e6:.1f} MB afterwards")


if __name__ == "__main__":
    main()
