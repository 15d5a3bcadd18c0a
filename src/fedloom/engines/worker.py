"""The other side of the pool: one process that answers jobs until its link closes."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedloom.core.client import client
from fedloom.core.data import Federation, data_of
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Down, Plan
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack


def serve(link: Connection) -> None:
    """Answer until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    torch.set_num_threads(1)
    worker: _Worker | None = None
    while True:
        try:
            message = link.recv()
            if isinstance(message, tuple):
                worker = _Worker(*message)
                link.send({"ready": True})
            elif worker is not None:
                worker.answer(link, message)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as e:
            trace = traceback.format_exc()
            link.send({"error": type(e).__name__, "message": str(e), "trace": trace})


class _Worker:
    def __init__(self, program: Program, data: Federation, device: str) -> None:
        self.program, self.data, self.device = program, data, torch.device(device)

    def answer(self, link: Connection, head: dict[str, Any]) -> None:
        down, own = unpack(link.recv_bytes()), unpack(link.recv_bytes())
        visit = self._visit(head, down, None if head["first"] else own)
        ask = None if head["ask"] is None else Ask(**head["ask"])
        if head["task"] == "evaluate":
            assert ask is not None
            link.send({"scores": evaluate(visit, ask)})
            return
        up, kept = client(visit, ask)
        link.send({"n": up.n, "metrics": dict(up.metrics)})
        link.send_bytes(pack(up.state))
        link.send_bytes(pack(kept))

    def _visit(self, head: dict[str, Any], down: State, own: State | None) -> Visit:
        cid = head["cid"]
        message = Down(Plan(**head["plan"]), down)
        return Visit(self.program, cid, data_of(self.data, cid), message, own, self.device)
