"""The report of a run that goes on, served on this machine only and read from its folder."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedloom.data import FederatedData
from fedloom.drawing.html import tag
from fedloom.errors import BadInput
from fedloom.files import jsonable, write_atomic
from fedloom.report.page import Body, body, page
from fedloom.report.runs import StoredRun
from fedloom.runs.folder import RunPaths
from fedloom.runs.watcher import RunView, Watcher

HOST = "127.0.0.1"
POLL = 2.0
"""Seconds between two questions of an open page."""


class Live(Watcher):
    """Serves a run folder's report; a watcher that hands over what the folder does not hold.

    Pages only read, so they can be closed and opened again at any time.
    """

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        self.paths = RunPaths(folder)
        self._data: FederatedData | str | None = None
        """None until the run begins: the folder may still hold an older one."""
        self._asked = 0.0
        self._building = threading.Lock()
        self._stamp = ""
        self._body = Body("fedloom", tag("section", "The run has not begun.", id="waiting"), {})
        self._run: StoredRun | None = None
        try:
            self._server = _Server((HOST, port), _Handler)
        except (OSError, OverflowError) as e:
            raise BadInput(f"cannot serve on port {port} ({e}); give another --live-port") from None
        self._server.live = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self.port}/"

    @property
    def port(self) -> int:
        """The port of the server, also where any free one was taken."""
        return int(self._server.server_address[1])

    # -------------------------------------------------------------- a run's watcher

    def begun(self, run: RunView) -> None:
        """The run has its data at hand, so the page need not load it again."""
        data = run.experiment.data
        self._data = data if isinstance(data, FederatedData) else "the rows are at the sites"

    # -------------------------------------------------------------- answers

    def page(self) -> str:
        """The page as it is now."""
        self._renew()
        return page(self._body, live=True)

    def data(self) -> str:
        """What an open page asks for again and again."""
        self._asked = time.monotonic()
        self._renew()
        run = self._run
        ended = run is not None and run.summary is not None
        record = {
            "stamp": self._stamp,
            "title": self._body.title,
            "main": self._body.main,
            "charts": self._body.charts,
            "done": 0 if run is None else run.done,
            "of": 1 if run is None else run.config.rounds,
            "ended": ended,
            "words": self._words(run, ended),
        }
        return json.dumps(jsonable(record), allow_nan=False)

    def _words(self, run: StoredRun | None, ended: bool) -> str:
        if run is None:
            return "waiting for the run to begin"
        at = f"round {run.done} of {run.config.rounds}"
        if ended:
            return f"{at}, ended"
        return f"{at}, running; updated at {time.strftime('%H:%M:%S')}"

    def _renew(self) -> None:
        """Read the folder again if something was written since."""
        with self._building:
            now, data = _stamp(self.paths), self._data
            if now == self._stamp or data is None:
                return
            run = StoredRun.read(self.paths.path)
            self._body = body([run], find_data=lambda _: data)
            self._run, self._stamp = run, now

    # -------------------------------------------------------------- life

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def write(self) -> Path:
        """Leave the report in the run's folder, as a file that needs no server."""
        self._renew()
        path = self.paths.report
        write_atomic(path, page(self._body))
        return path

    def close(self, at_once: bool = False) -> None:
        """Stop; an open page first gets the chance to ask for the end."""
        watched = self._asked and time.monotonic() - self._asked < 2 * POLL
        if watched and not at_once:
            time.sleep(1.25 * POLL)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


@contextmanager
def serving(folder: str | Path, port: int = 0) -> Iterator[Live]:
    """A live report as long as the block lasts."""
    live = Live(folder, port)
    live.start()
    try:
        yield live
    except BaseException:
        live.close(at_once=True)
        raise
    live.close()


def _stamp(paths: RunPaths) -> str:
    """Changes whenever one of the files a report reads does."""
    files = (paths.config, paths.metrics, paths.summary, paths.diagnostics)
    states = [file.stat() if file.exists() else None for file in files]
    return " ".join(f"{s.st_size}.{s.st_mtime_ns}" if s else "-" for s in states)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    live: Live

    @cached_property
    def names(self) -> set[str]:
        """By which a browser on this machine reaches it. A request for another name comes from a
        page elsewhere that gave this address a name of its own (DNS rebinding)."""
        port = self.server_address[1]
        return {f"{HOST}:{port}", f"localhost:{port}"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed while it is answered is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedloom", ""
    timeout = 10

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "ask by the address that was printed\n")
        elif self.path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.live.page())
        elif self.path == "/data":
            self._send(HTTPStatus.OK, "application/json", self.server.live.data())
        elif self.path == "/favicon.ico":
            self._send(HTTPStatus.NO_CONTENT, "image/x-icon", "")
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is only / and /data\n")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal belongs to the run."""
