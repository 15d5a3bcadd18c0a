"""An app's answer, compared with its declared form and written anew.

What is sent is never what the app wrote, but a message that is built here from the parts that were
checked. So nothing can travel beside them: no other record, order, header, metadata or text.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode, SType
from numpy.lib.format import write_array_header_1_0

from fedloom import errors
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.score import GLOBAL
from fedloom.deploy.gate.form import Form, TensorForm, Upload
from fedloom.deploy.gate.orders import AskHead, OrderHead
from fedloom.engines.record_names import SCORE, STATE
from fedloom.engines.zstd_arrays import squeezed

_DIGEST = re.compile(r"[0-9a-f]{64}")
SEE_LOG = "see the site's log"
_KINDS = frozenset(
    name
    for module in (builtins, errors)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Exception)
) | {"LostState"}
"""Kinds of error whose names may leave: they are known beforehand, and so can tell nothing."""


class Forbidden(Exception):
    """An answer that may not leave; the text says why, and stays at the site."""


def checked_hello(records: RecordDict, expected: Mapping[str, Any]) -> RecordDict:
    """How the site introduces itself: exactly what the gate knows of the site."""
    if set(records) != {"hello"} or "hello" not in records.config_records:
        raise Forbidden(f"the introduction has records {_names(records)}")
    if dict(records.config_records["hello"]) != dict(expected):
        raise Forbidden("the introduction says something else than this site's data and name")
    return RecordDict({"hello": ConfigRecord(dict(expected))})


def checked_answer(records: RecordDict, order: OrderHead, form: Form, rows: int) -> RecordDict:
    """The answer to an order of a run with this form, at a site with so many rows."""
    if "error" in records:
        return checked_error(records, order)
    if order.task != "client":
        head = _config(records, "head", {"client": int})
        _check_client(head, order)
        others = _scores(records, order, form, rows)
        _check_records(records, {"head", *others})
        return RecordDict({"head": ConfigRecord(head), **others})
    head = _config(records, "head", {"client": int, "rows": int, "own": str, "anew": bool})
    _check_client(head, order)
    if form.hides_rows and head["rows"] != ROWS_UNTOLD:
        raise Forbidden("it tells the site's rows, which secure aggregation hides")
    if not form.hides_rows and not 1 <= head["rows"] <= rows:
        raise Forbidden(f"it claims {head['rows']} rows, the site has {rows}")
    if head["own"] and not _DIGEST.fullmatch(head["own"]):
        raise Forbidden("what it says of its own state is no digest")
    scores = _scores(records, order, form, rows)
    state = _state(records, form.uploads_of(order.client, order.plan.kind, order.plan.owner))
    _check_records(records, {"head", "metrics", *scores, *state})
    return RecordDict({"head": ConfigRecord(head), "metrics": _metrics(records), **scores, **state})


def checked_error(records: RecordDict, order: OrderHead | None) -> RecordDict:
    """Why there is no answer. Its words, which may quote rows, stay here; others stand for them."""
    _check_records(records, {"error"})
    error = _config(records, "error", {"kind": str, "message": str})
    kind = error["kind"] if error["kind"] in _KINDS else "Error"
    message = _sentence(kind, order) if order is not None else SEE_LOG
    return RecordDict({"error": ConfigRecord({"kind": kind, "message": message})})


def flower_error(code: int) -> Error:
    """One of Flower's own errors in words of ours: its text quotes what the app raised, and an app
    could choose any number as its code."""
    sentences = {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "the app could not be loaded",
        ErrorCode.CLIENT_APP_CRASHED: "the app stopped responding",
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "the app failed",
    }
    known = code if code in sentences else ErrorCode.UNKNOWN
    return Error(known, f"{sentences.get(code, 'the app failed')}; {SEE_LOG}")


def _sentence(kind: str, order: OrderHead) -> str:
    """All that the server learns of an error: it follows from its kind and the order."""
    place = f"client {order.client}, {order.plan.kind} {order.plan.t}"
    if kind == "LostState":
        return (
            f"the state {order.own[:12]} that the server counts on is not at the site, or was"
            " altered; restore it, or let the site start afresh (lost-state = 'restart')"
        )
    if kind == "TrainingError":
        return f"{place}: the loss is not finite; lower lr or set clip"
    return f"{place}: {SEE_LOG}"


def _check_client(head: Mapping[str, Any], order: OrderHead) -> None:
    if head["client"] != order.client:
        raise Forbidden(f"it speaks for client {head['client']}, not {order.client}")


def _check_records(records: RecordDict, expected: set[str]) -> None:
    if set(records) != expected:
        other = min(set(records) ^ expected)
        raise Forbidden(f"it has an unknown record, or lacks one: {other[:80]!r}")


def _config(records: RecordDict, name: str, types: Mapping[str, type]) -> dict[str, Any]:
    """A record with exactly these keys and types, in this order."""
    if name not in records.config_records:
        raise Forbidden(f"it has no record {name!r}")
    values = dict(records.config_records[name])
    if values.keys() != types.keys():
        raise Forbidden(f"its record {name!r} has other keys than {', '.join(types)}")
    for key, kind in types.items():
        if type(values[key]) is not kind:
            raise Forbidden(f"{key!r} of its record {name!r} is no {kind.__name__}")
    return {key: values[key] for key in types}


def _metrics(records: RecordDict) -> MetricRecord:
    if "metrics" not in records.metric_records:
        raise Forbidden("it has no record 'metrics'")
    metrics = dict(records.metric_records["metrics"])
    if not metrics.keys() <= {"loss"} or not all(type(v) is float for v in metrics.values()):
        raise Forbidden("it has numbers beside the loss")
    return MetricRecord({key: float(value) for key, value in metrics.items()})  # type: ignore[arg-type]


def _scores(
    records: RecordDict, order: OrderHead, form: Form, rows: int
) -> dict[str, ConfigRecord]:
    """Its scores: those that the server asked for and that the form has."""
    names = [name for name in records.config_records if name.startswith(SCORE)]
    if names != [f"{SCORE}{i}" for i in range(len(names))]:
        raise Forbidden("its scores are not numbered from 0")
    if names and order.ask is None:
        raise Forbidden("nobody asked for scores")
    seen: set[tuple[str, str, str]] = set()
    scores = {}
    for name in names:
        fields = _config(records, name, _SCORE_FIELDS)
        assert order.ask is not None
        _check_score(fields, order.ask, form)
        if not 1 <= fields["rows"] <= rows:
            raise Forbidden(f"a score is of {fields['rows']} rows, the site has {rows}")
        key = (fields["moment"], fields["split"], fields["model"])
        if key in seen:
            raise Forbidden(f"it has two scores of {' '.join(key)}")
        seen.add(key)
        scores[name] = ConfigRecord(fields)
    return scores


_SCORE_FIELDS: dict[str, type] = {
    "moment": str,
    "split": str,
    "rows": int,
    "model": str,
    "names": list,
    "values": list,
}


def _check_score(fields: Mapping[str, Any], ask: AskHead, form: Form) -> None:
    if fields["moment"] not in ask.moments or fields["split"] not in ask.splits:
        raise Forbidden("a score is of a moment or split that nobody asked for")
    if fields["model"] not in form.scores or (fields["model"] == GLOBAL) != (ask.model == GLOBAL):
        raise Forbidden("a score is of a model that the method does not show")
    if fields["names"] != list(form.scores[fields["model"]]):
        raise Forbidden("the metrics of a score have other names than the method's")
    values = fields["values"]
    if len(values) != len(fields["names"]) or not all(type(v) is float for v in values):
        raise Forbidden("the metrics of a score are not one number each")


def _state(records: RecordDict, uploads: Sequence[Upload]) -> dict[str, ArrayRecord]:
    """Its tensors, if they have one of these forms; from here on in fewer bytes."""
    sent = {name: dict(tree) for name, tree in records.array_records.items()}
    if not uploads:
        raise Forbidden("what may leave in this step is not known")
    differences = [_difference(sent, upload) for upload in uploads]
    if all(differences):
        raise Forbidden(differences[0])
    upload = uploads[differences.index("")]
    return {
        STATE + name: ArrayRecord({key: squeezed(sent[STATE + name][key]) for key in tree})
        for name, tree in upload.items()
    }


def _difference(sent: Mapping[str, Mapping[str, Array]], upload: Upload) -> str:
    """Where tensors differ from a form; empty: nowhere."""
    if sent.keys() != {STATE + name for name in upload}:
        other = min(sent.keys() ^ {STATE + name for name in upload})
        return f"it has an unknown slice, or lacks one: {other[:80]!r}"
    for name, tree in upload.items():
        arrays = sent[STATE + name]
        if arrays.keys() != tree.keys():
            other = min(arrays.keys() ^ tree.keys())
            return f"slice {name!r} has an unknown tensor, or lacks one: {other[:80]!r}"
        for key, form in tree.items():
            if fault := _array_fault(arrays[key], form):
                return f"{name}/{key}: {fault}"
    return ""


def _array_fault(array: Array, form: TensorForm) -> str:
    if array.stype != SType.NUMPY or array.dtype != form.dtype or array.shape != form.shape:
        return f"it is {array.dtype[:20]} {list(array.shape)[:8]}, not {form.dtype} {form.shape}"
    header = npy_header(form)
    if len(array.data) != len(header) + form.bytes or not array.data.startswith(header):
        return "its bytes are not those of such a tensor"
    return ""


def npy_header(form: TensorForm) -> bytes:
    """What numpy writes before the values of a tensor, byte by byte."""
    stream = BytesIO()
    description = np.dtype(form.dtype).str
    shape = {"descr": description, "fortran_order": False, "shape": tuple(form.shape)}
    write_array_header_1_0(stream, shape)
    return stream.getvalue()


def _names(records: RecordDict) -> str:
    return ", ".join(repr(name[:40]) for name in list(records)[:5]) or "none"
