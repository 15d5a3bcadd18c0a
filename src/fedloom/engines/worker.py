"""A worker of the pool or of Ray: answers the bundles of a run, and how replies are read."""

from __future__ import annotations

import gc
import logging
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedloom import errors
from fedloom.core.data import Federation, data_of
from fedloom.core.evaluate import Ask
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.stopwatch import Stopwatch, timed
from fedloom.core.threads import on_one_thread
from fedloom.core.tree import State
from fedloom.engines import Job
from fedloom.engines.blocks import Blocks
from fedloom.engines.bundle import opened
from fedloom.engines.pipe_codec import receive, send
from fedloom.errors import FedloomError, OutOfMemory, lacks_memory
from fedloom.extensions import load_extensions

log = logging.getLogger("fedloom")


def serve(link: Connection, imports: Sequence[str] = ()) -> None:
    """Answer until the other end is gone; first import what the main process imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    on_one_thread()
    try:
        load_extensions(imports)  # before the program is read, which holds objects of theirs
    except Exception as e:
        link.recv_bytes()
        send(link, failure(e))
        return
    gc.freeze()  # modules stay, and need not be looked through again and again
    worker: Worker | None = None
    while True:
        try:
            with timed("waiting"):
                link.poll(None)
            with timed("transfer"):
                head, states = receive(link)
            if isinstance(head, tuple):
                worker = Worker(*head)
                timed.drain()  # the time it took to start is not the run's
                reply(link, [])
            elif worker is not None:
                reply(link, *worker.answers(head, states), worker.drain_reports())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as e:
            send(link, failure(e))


def reply(
    link: Connection,
    answers: list[Any],
    states: Sequence[State] = (),
    reports: Sequence[str] = (),
) -> None:
    """Send answers with their states."""
    with timed("transfer"):
        send(link, reply_head(answers, reports), states)


def reply_head(answers: list[Any], reports: Sequence[str] = ()) -> dict[str, Any]:
    """Answers, the seconds they took, and sentences for the log of the main process."""
    return {"answers": answers, "seconds": timed.drain(), "reports": list(reports)}


def read_head(head: dict[str, Any], elsewhere: Stopwatch) -> list[Any]:
    """The answers of a reply; raises where it is a `failure`."""
    if "error" in head:
        raise rebuilt(head)
    elsewhere.add(head["seconds"])
    for report in head["reports"]:
        log.info("a worker: %s", report)
    answers: list[Any] = head["answers"]
    return answers


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text: the cause of the error here."""


def failure(error: Exception) -> dict[str, Any]:
    """Describes an error that is being handled; sent in place of answers."""
    if lacks_memory(error):
        error = OutOfMemory(
            "a worker process is out of memory; give the machine more, or the run fewer workers or"
            " smaller batches"
        )
    trace = traceback.format_exc()
    arguments = [str(argument) for argument in error.args]
    return {
        "error": type(error).__name__,
        "message": str(error),
        "arguments": arguments,
        "trace": trace,
    }


def rebuilt(head: dict[str, Any]) -> Exception:
    """The error of a `failure`. Errors for the user keep their class, with the worker's traceback
    as their cause; others become a RuntimeError that quotes it."""
    kind = getattr(errors, head["error"], None)
    if isinstance(kind, type) and issubclass(kind, FedloomError):
        error = FedloomError.__new__(kind)
        error.args = tuple(head["arguments"])
        error.__cause__ = RemoteTraceback(f"in a worker process:\n{head['trace']}")
        return error
    return RuntimeError(f"{head['error']} in a worker process: {head['message']}\n{head['trace']}")


class Worker:
    """Answers the bundles of one run, in whatever process it is: small equal clients in blocks."""

    def __init__(self, program: Program, data: Federation, device: str) -> None:
        self.program, self.data, self.device = program, data, torch.device(device)
        self._reports: list[str] = []
        self.blocks = Blocks(report=self._reports.append)

    def answers(self, head: dict[str, Any], states: list[State]) -> tuple[list[Any], list[State]]:
        """What is asked in a message, and the states that go with it."""
        jobs = opened(head, states)
        visits = [self._visit(job) for job in jobs]
        ask = None if head["ask"] is None else Ask(**head["ask"])
        if head["task"] == "evaluate":
            assert ask is not None
            scores = self.blocks.evaluate(visits, ask)
            return [(v.cid, own) for v, own in zip(visits, scores, strict=True)], []
        answers = self.blocks.answer(visits, ask)
        heads = [
            (visit.cid, up.n, dict(up.metrics), up.scores)
            for visit, (up, _) in zip(visits, answers, strict=True)
        ]
        return heads, [state for up, kept in answers for state in (up.state, kept)]

    def drain_reports(self) -> list[str]:
        """Sentences for the log since the last call."""
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def _visit(self, job: Job) -> Visit:
        data = data_of(self.data, job.cid)
        return Visit(self.program, job.cid, data, job.down, job.own, self.device)
