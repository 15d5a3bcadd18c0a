"""Health and numbers of a link or a node for monitoring, on this machine's loopback only.

`/health` answers 200 or 503 with one line; `/metrics` is Prometheus's text format. The numbers come
from files that are written anyway: the audit log, journals, and what the disk has left.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

from fedloom.deploy.operations.copies import folder_bytes
from fedloom.errors import BadInput
from fedloom.files import parse_json


@dataclass(frozen=True)
class Sample:
    """One number."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "gauge"

    def line(self) -> str:
        """As Prometheus reads it."""
        pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in self.labels.items())
        return f"fedloom_{self.name}{f'{{{pairs}}}' if pairs else ''} {self.value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(samples: list[Sample]) -> str:
    """All samples in Prometheus's text format.

    >>> print(exposition([Sample("up", "Does it run?", 1)]), end="")
    # HELP fedloom_up Does it run?
    # TYPE fedloom_up gauge
    fedloom_up 1
    """
    lines: list[str] = []
    for name in dict.fromkeys(sample.name for sample in samples):
        same = [sample for sample in samples if sample.name == name]
        lines += [f"# HELP fedloom_{name} {same[0].help}", f"# TYPE fedloom_{name} {same[0].kind}"]
        lines += [sample.line() for sample in same]
    return "\n".join(lines) + "\n"


class AuditCounts:
    """Events and bytes of an audit log; a log only grows, so that each line is read once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._position = 0
        self._events = Counter[str]()
        self._bytes = 0

    def samples(self) -> list[Sample]:
        """Up to the last complete line."""
        self._read()
        told = "Lines of the audit log, by event."
        samples = [
            Sample("audit_events_total", told, count, {"event": event}, "counter")
            for event, count in sorted(self._events.items())
        ]
        sent = Sample("sent_bytes_total", "Bytes that left.", self._bytes, kind="counter")
        return [*samples, sent]

    def _read(self) -> None:
        if not self.file.is_file():
            return
        with open(self.file, "rb") as log:
            if log.seek(0, 2) < self._position:  # replaced by a restored one
                self._position, self._events, self._bytes = 0, Counter(), 0
            log.seek(self._position)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                entry = parse_json(line)
                self._events[str(entry["event"])] += 1
                self._bytes += int(entry["bytes"]) if entry["event"] == "sent" else 0
            except (ValueError, TypeError, KeyError):
                self._events["unreadable"] += 1


def disk_samples(folder: Path) -> list[Sample]:
    """What a folder takes, and what its disk has left."""
    return [
        Sample("folder_bytes", "Bytes of the folder's files.", folder_bytes(folder)),
        Sample("disk_free_bytes", "Bytes left on its disk.", shutil.disk_usage(folder).free),
    ]


def run_samples(runs: Path) -> list[Sample]:
    """Rounds of every experiment of a server, and when the last one ended."""
    samples = []
    for journal in sorted(runs.glob("*/run/metrics.jsonl")):
        experiment = {"experiment": journal.parent.parent.name}
        with open(journal, "rb") as file:
            rounds = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        ended = journal.stat().st_mtime
        samples += [
            Sample("steps_total", "Steps that a run has done.", rounds, experiment, "counter"),
            Sample("last_step_timestamp_seconds", "When the last step ended.", ended, experiment),
        ]
    return samples


Collect = Callable[[], list[Sample]]
Trouble = Callable[[], str]
"""What is wrong, in words; empty: nothing."""


@contextmanager
def serving(address: str | None, collect: Collect, trouble: Trouble) -> Iterator[str]:
    """Answer at this address while the block runs; None: nowhere. Yields host:port."""
    if address is None:
        yield ""
        return
    server = _Server(_loopback(address), collect, trouble)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{server.server_address[0]!s}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def up_sample(alive: bool, begun: float, starts: int) -> list[Sample]:
    """Of the process that is watched."""
    return [
        Sample("up", "Does the process run?", alive),
        Sample("seconds_total", "Since this command began.", time.time() - begun, kind="counter"),
        Sample("starts_total", "How often it was started.", starts, kind="counter"),
    ]


def _loopback(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    try:
        if not ip_address(host).is_loopback or not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise BadInput(
            f"--metrics {address!r} will not do: give an address of this machine's loopback and a"
            " port, for instance 127.0.0.1:9100"
        ) from None
    return host, int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], collect: Collect, trouble: Trouble) -> None:
        self.collect, self.trouble = collect, trouble
        try:
            super().__init__(address, _Handler)
        except OSError as e:
            raise BadInput(f"cannot listen at {address[0]}:{address[1]} ({e.strerror})") from None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedloom", ""
    timeout = 10

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost", "[::1]"):  # a web page that poses as this machine
            self._answer(403, "only for this machine\n")
        elif self.path == "/health":
            why = self.server.trouble()
            self._answer(503 if why else 200, f"{why or 'ok'}\n")
        elif self.path == "/metrics":
            self._answer(200, exposition(self.server.collect()))
        else:
            self._answer(404, "there are /health and /metrics\n")

    def _answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a monitor asks every few seconds."""
