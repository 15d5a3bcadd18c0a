"""Jobs and answers as Flower's records: the only module that knows both.

A state is one ArrayRecord per slice, in numpy's format; what a site sends may be in zstd's on top
(`engines.zstd_arrays`). The records travel as a bundle (`engines.message_bundle`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from torch import Tensor

from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Plan, Up
from fedloom.core.score import ClientScore
from fedloom.core.tree import State
from fedloom.engines.record_names import SCORE, STATE
from fedloom.engines.zstd_arrays import unpacked
from fedloom.errors import BadInput

Task = Literal["client", "evaluate", "save"]
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Order:
    """What the server asks of one client. Of what the client keeps it names only the digest."""

    cid: int
    task: Task
    down: Down
    own: str | None
    """Digest of the state the server counts on; empty: it keeps nothing; None: it is new."""
    ask: Ask | None = None


@dataclass(frozen=True)
class Reply:
    """A client's answer to the task "client"."""

    cid: int
    up: Up
    own: str
    """Digest of what it keeps now; empty where that is nothing."""
    anew: bool = False
    """It had lost the state the server counted on, and began as a new client."""


def write_order(order: Order, arrays: dict[int, Array]) -> RecordDict:
    """`arrays` remembers tensors by identity: what many clients get is encoded once."""
    head: dict[str, Any] = {
        "client": order.cid,
        "task": order.task,
        "new": order.own is None,
        "own": order.own or "",
    }
    records = RecordDict({"head": ConfigRecord(head)})
    records["plan"] = ConfigRecord(asdict(order.down.plan))
    if order.ask is not None:
        ask = asdict(order.ask)
        records["ask"] = ConfigRecord({k: _plain(v) for k, v in ask.items()})
    return _write_state(records, order.down.state, arrays)


def read_order(records: RecordDict) -> Order:
    """The order that was written."""
    head, plan = _values(records, "head"), _values(records, "plan")
    ask = {k: _tuple(v) for k, v in _values(records, "ask").items()} if "ask" in records else None
    return Order(
        int(head["client"]),
        head["task"],
        Down(Plan(**plan), _read_state(records)),
        None if head["new"] else str(head["own"]),
        None if ask is None else Ask(**ask),
    )


def write_reply(reply: Reply) -> RecordDict:
    """A client's answer."""
    head: dict[str, Any] = {"client": reply.cid, "rows": reply.up.n, "own": reply.own}
    head["anew"] = reply.anew
    records = RecordDict({"head": ConfigRecord(head)})
    records["metrics"] = MetricRecord({k: float(v) for k, v in reply.up.metrics.items()})
    _write_scores(records, reply.up.scores)
    return _write_state(records, reply.up.state, {})


def read_reply(records: RecordDict) -> Reply:
    """The answer that was written."""
    head, numbers = _values(records, "head"), _numbers(records)
    up = Up(_read_state(records), int(head["rows"]), numbers, read_scores(records))
    own = str(head["own"])
    if own and not _DIGEST.fullmatch(own):
        raise BadInput(f"{own[:80]!r} is no digest of a state")
    return Reply(int(head["client"]), up, own, bool(head["anew"]))


def write_scores(cid: int, scores: Sequence[ClientScore]) -> RecordDict:
    """The answer to an order that only measures."""
    records = RecordDict({"head": ConfigRecord({"client": cid})})
    _write_scores(records, scores)
    return records


def _write_scores(records: RecordDict, scores: Sequence[ClientScore]) -> None:
    for i, score in enumerate(scores):
        fields: dict[str, Any] = {
            "moment": score.moment,
            "split": score.split,
            "rows": score.rows,
            "model": score.model,
            "names": list(score.metrics),
            "values": [float(value) for value in score.metrics.values()],
        }
        records[f"{SCORE}{i}"] = ConfigRecord(fields)


def read_scores(records: RecordDict) -> tuple[ClientScore, ...]:
    """The scores that were written."""
    held = [_values(records, name) for name in records.config_records if name.startswith(SCORE)]
    return tuple(
        ClientScore(
            moment=fields["moment"],
            split=fields["split"],
            rows=int(fields["rows"]),
            metrics={
                str(name): float(value)
                for name, value in zip(fields["names"], fields["values"], strict=True)
            },
            model=str(fields["model"]),
        )
        for fields in held
    )


def write_error(kind: str, message: str) -> RecordDict:
    """Why a client has no answer."""
    return RecordDict({"error": ConfigRecord({"kind": kind, "message": message})})


def read_error(records: RecordDict) -> str | None:
    """Why there is no answer, if there is none."""
    if "error" not in records:
        return None
    error = _values(records, "error")
    return f"{error['kind']}: {error['message']}"


def _values(records: RecordDict, name: str) -> dict[str, Any]:
    return dict(records.config_records[name])


def _numbers(records: RecordDict) -> dict[str, float]:
    metrics: Mapping[str, Any] = records.metric_records["metrics"]
    return {key: float(value) for key, value in metrics.items()}


def _write_state(records: RecordDict, state: State, arrays: dict[int, Array]) -> RecordDict:
    for name, tree in state.items():
        encoded = {k: _array(f"{name}/{k}", v, arrays) for k, v in tree.items()}
        records[STATE + name] = ArrayRecord(encoded)
    return records


def _read_state(records: RecordDict) -> State:
    return {
        name.removeprefix(STATE): {k: _tensor(a) for k, a in tree.items()}
        for name, tree in records.array_records.items()
        if name.startswith(STATE)
    }


def _array(name: str, value: Tensor, arrays: dict[int, Array]) -> Array:
    if id(value) not in arrays:
        try:
            arrays[id(value)] = Array(value.detach().cpu().contiguous().numpy())
        except TypeError:
            raise BadInput(f"{name} is {value.dtype}, which Flower cannot carry") from None
    return arrays[id(value)]


def _tensor(array: Array) -> Tensor:
    """A tensor from numpy's format. Not read by numpy, which follows whatever a header says: any
    amount of memory, or another format."""
    written = unpacked(array)
    stream = BytesIO(written)
    header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, by_columns, kind = header(stream)
    data = written[stream.tell() :]
    if kind.hasobject or len(data) != prod(shape) * kind.itemsize:
        raise BadInput(f"{len(data)} bytes are not {list(shape)} of {kind}")
    read = np.frombuffer(data, kind).reshape(shape, order="F" if by_columns else "C")
    # Copied: memory cut from a buffer is not aligned as torch aligns its own, and kernels may
    # round differently on unaligned memory.
    return torch.tensor(np.ascontiguousarray(read).reshape(shape))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
