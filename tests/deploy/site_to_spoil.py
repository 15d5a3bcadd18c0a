"""A site where all is well, with real files, sockets and certificates, on loopback only."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from certificates_for_tests import authority, openssh, server_context
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.deploy.check import CheckResult, check
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.settings import Settings

ORDER = [
    "file",
    "name",
    "data",
    "schema",
    "policy",
    "state folder",
    "device",
    "authority",
    "key",
    "server name",
    "server port",
    "server TLS",
    "clock",
    "own port",
    "versions",
]
SETTINGS = {"method": "fedper", "sites": "north,south", "class-names": "cat,dog,owl"}


class Answer(BaseHTTPRequestHandler):
    """Answers every request; its clock is wrong by `shift` seconds, None: it does not tell."""

    def __init__(self, shift: float | None, *args: Any) -> None:
        self.shift = shift
        super().__init__(*args)

    def do_GET(self) -> None:
        self.send_response_only(404)
        if self.shift is not None:
            self.send_header("Date", formatdate(time.time() + self.shift, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class SiteToSpoil:
    """A site where all is well, to be spoilt; and the servers it may meet."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack = root, stack
        self.file = root / "site.toml"
        self.authority = authority()
        self.values: dict[str, str | int] = {
            "name": "north",
            "data": "data.npz",
            "schema_file": "schema.toml",
            "state": "state",
            "superlink": "127.0.0.1:1",
            "ca": "ca.crt",
            "key": "key",
            "port": free_port(),
        }
        allowed = [
            "few_rows",
            "few_test_rows",
            "small_batches",
            "few_participants",
            "few_steps",
            "rare_classes",
        ]
        self.policy = ["[policy]", f"allow = {[*allowed, 'dense_layers']}"]  # its rows are few
        (root / "ca.crt").write_bytes(self.authority.pem)
        self.write_key(openssh(ec.generate_private_key(ec.SECP384R1())))
        self.write_data(["cat"] * 4 + ["dog"] * 3)
        names = ("cat", "dog", "owl")
        agreed = Schema(kind="table", shape=(5,), class_names=names, vocabulary=0, columns=())
        agreed.write(root / "schema.toml")

    def write_key(self, content: bytes, mode: int = 0o600) -> None:
        (self.root / "key").write_bytes(content)
        (self.root / "key").chmod(mode)

    def write_data(self, labels: list[str]) -> None:
        x = np.arange(len(labels) * 5, dtype=np.float32).reshape(-1, 5)
        np.savez(self.root / "data.npz", x=x, y=np.array(labels))

    def serve(self, context: ssl.SSLContext | None, shift: float | None = 0.0) -> None:
        """A server of the site's: with TLS where there is a context."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, shift))
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True)
        thread.start()
        self.stack.callback(thread.join, 10)
        self.stack.callback(server.server_close)
        self.stack.callback(server.shutdown)
        self.values["superlink"] = f"127.0.0.1:{server.server_port}"

    def good_server(self, shift: float | None = 0.0) -> None:
        self.serve(server_context(self.root, self.authority), shift)

    def write(self) -> Path:
        lines = [
            f"{k} = {v!r}" if isinstance(v, int) else f"{k} = '{v}'" for k, v in self.values.items()
        ]
        self.file.write_text("\n".join([*lines, *self.policy]), encoding="utf-8")
        return self.file

    def check(self, settings: Settings | None = None) -> dict[str, CheckResult]:
        """Every result by what it is about; none may be missing, whatever is wrong."""
        results = check(self.write(), settings)
        assert [result.subject for result in results] == ORDER
        return {result.subject: result for result in results}


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def wrong(results: dict[str, CheckResult]) -> list[str]:
    return [what for what, result in results.items() if result.ok is False]


def undecided(results: dict[str, CheckResult]) -> list[str]:
    return [what for what, result in results.items() if result.ok is None]
