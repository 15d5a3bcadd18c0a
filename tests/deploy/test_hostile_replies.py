"""Replies that no honest site gives: each costs its sender the round, and nobody else anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hostile import HOSTILE, NAMES, Federation, Spoil, hostile_federation, new_key
from sites import digits_schema

from fedloom.audit import AuditLog, verify
from fedloom.deploy.consent.proposal import WAITS
from fedloom.deploy.project.public_keys import key_bytes
from fedloom.deploy.project.schema import Column, Schema
from fedloom.deploy.server.audit import AUDIT
from fedloom.engines import Absent
from fedloom.engines.content import content_bytes
from fedloom.engines.flower import codec, engine
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.message_bundle import bundled, opened
from fedloom.errors import TooFewClients
from fedloom.runs.folder import RunPaths
from fedloom.runs.ledger import Account

MODEL = f"{codec.STATE}model"


APP = "ab" * 32


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return hostile_federation(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def without_it(federation: Federation) -> str:
    """The end of a run in which the hostile site never answers."""
    silent = uploads(lambda records: codec.write_error("Asleep", "at night"))
    return federation.run("silent", silent).summary.state_sha256


# ------------------------------------------------------------------ uploads


def uploads(change: Spoil) -> Spoil:
    """Changes what is sent after training, and nothing else."""

    def spoil(records: RecordDict) -> RecordDict:
        trained = "rows" in records.config_records.get("head", {})
        return change(records) if trained else records

    return spoil


def says(**values: Any) -> Spoil:
    def change(records: RecordDict) -> RecordDict:
        records["head"] = ConfigRecord({**dict(records.config_records["head"]), **values})
        return records

    return change


def times(factor: float) -> Spoil:
    """Every shared tensor multiplied."""

    def change(records: RecordDict) -> RecordDict:
        arrays = dict(records.array_records[MODEL])
        scaled = {k: Array((a.numpy() * factor).astype(np.float32)) for k, a in arrays.items()}
        records[MODEL] = ArrayRecord(scaled)
        return records

    return change


def with_array(key: str, array: Array) -> Spoil:
    def change(records: RecordDict) -> RecordDict:
        records[MODEL] = ArrayRecord({**dict(records.array_records[MODEL]), key: array})
        return records

    return change


def with_record(name: str, record: Any) -> Spoil:
    def change(records: RecordDict) -> RecordDict:
        records[name] = record
        return records

    return change


def header_only(shape: tuple[int, ...]) -> Array:
    """Numpy's format without the data it promises."""
    stream = BytesIO()
    head = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, head)
    return Array("float32", (1,), "numpy.ndarray", stream.getvalue())


def numbers(count: int, value: float = 0.0) -> Array:
    return Array(np.full(count, value, np.float32))


def scored(**values: Any) -> Spoil:
    def change(records: RecordDict) -> RecordDict:
        for name in [name for name in records.config_records if name.startswith("score/")]:
            records[name] = ConfigRecord({**dict(records.config_records[name]), **values})
        return records

    return change


def error(kind: str, message: str) -> Spoil:
    return lambda records: codec.write_error(kind, message)


ANSI = "\x1b[2J\x1b[31mfedloom: all is well\r\nround 9 (train): 3 sites"
UPLOADS: dict[str, tuple[Spoil, str]] = {
    "not a number": (times(float("nan")), "is not finite"),
    "infinite": (times(float("inf")), "is not finite"),
    "1e30": (times(1e30), "times as long as the model it was sent"),
    "a thousand times": (times(1000.0), "times as long as"),
    "fifty times": (times(50.0), "times as long as"),
    "10**15 rows": (says(rows=10**15), "it claims 1000000000000000 rows; most-rows is 1000000"),
    "10**6 rows": (says(rows=10**6), "times the median of the round; most-rows-ratio is 100"),
    "a score of 10**15 rows": (scored(rows=10**15), "a score is of 1000000000000000 rows"),
    "no rows": (says(rows=0), "it says that it has 0 rows"),
    "fewer than no rows": (says(rows=-5), "it says that it has -5 rows"),
    "endless rows": (says(rows=float("inf")), "OverflowError"),
    "a text as rows": (says(rows=ANSI), "ValueError"),
    "another client": (says(client=0), "it speaks for client 0"),
    "an unknown tensor": (with_array("extra", numbers(1)), "the unknown tensor 'model/extra'"),
    "an ANSI name": (with_array(ANSI, numbers(1)), "the unknown tensor"),
    "a name of 900": (with_array("n" * 900, numbers(1)), "the unknown tensor"),
    "4 MB beside a small model": (with_array("extra", numbers(10**6)), "a reply to this order has"),
    "4 MB of text": (says(own="a" * 4_000_000), "a reply to this order has at most"),
    "4 MB as an error": (error("Failed", "a" * 4_000_000), "a reply to this order has at most"),
    "2 kB as an error": (error("Failed", "a" * 2000), "aaa... (2008 characters)"),
    "an ANSI error": (error("Failed", ANSI), "Failed: ?[2J?[31mfedloom: all is well round 9"),
    "a header of 10**13 numbers": (with_array("extra", header_only((10**13,))), "0 bytes are not"),
    "a pickle": (
        with_array("extra", Array("float32", (1,), "numpy.ndarray", b"\x80\x04K\x01.")),
        "ValueError",
    ),
    "no state": (says(own="not hex"), "is no digest of a state"),
    "nothing": (lambda records: RecordDict(), "KeyError"),
    "an unasked number": (
        with_record("metrics", MetricRecord({"loss": 0.1, "age of patient 7": 61.0})),
        "nobody asked for the number",
    ),
    "a loss that is none": (with_record("metrics", MetricRecord({"loss": float("nan")})), "loss"),
}


@pytest.mark.parametrize("case", UPLOADS)
def test_a_hostile_upload_counts_as_absent_and_the_others_go_on(
    case: str, federation: Federation, without_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, why = UPLOADS[case]
    with caplog.at_level(logging.INFO, "fedloom"):
        result = federation.run(f"upload-{list(UPLOADS).index(case)}", uploads(change))
    assert [list(record.absent) for record in result.records] == [[HOSTILE], [HOSTILE]]
    for record in result.records:
        assert why in record.absent[HOSTILE]
        assert record.absent[HOSTILE].isprintable()
        assert len(record.absent[HOSTILE]) < 400
        assert list(record.rows) == [0, 1]
    assert result.summary.state_sha256 == without_it
    assert all(line.isprintable() and len(line) < 800 for line in _messages(caplog))


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fedloom"]


def test_a_variance_below_zero_is_refused(federation: Federation) -> None:
    """A small number, but of a model with it nobody can compute the root."""

    def below_zero(records: RecordDict) -> RecordDict:
        tree = dict(records.array_records[MODEL])
        (key,) = [key for key in tree if key.endswith("running_var")]
        records[MODEL] = ArrayRecord({**tree, key: Array(-3 * np.abs(tree[key].numpy()))})
        return records

    model = {"model": "mlp(hidden=[16], norm=batch)", "method": "fedavg"}
    result = federation.run("variance", uploads(below_zero), **model)
    assert all("below zero" in record.absent[HOSTILE] for record in result.records)


def test_claimed_rows_stand_in_the_journal_and_the_ledger(federation: Federation) -> None:
    """Within the bounds a site is believed; what it claimed is on record, and so is its share."""
    result = federation.run("claims", uploads(says(rows=2500)), **{"most-rows": 2500})
    assert [record.rows[HOSTILE] for record in result.records] == [2500, 2500]
    ledger = Account.read(RunPaths(federation.root / "claims" / "run").ledger)
    assert [step.rows[HOSTILE] for step in ledger.steps] == [2500, 2500]


def test_the_server_s_audit_log_has_every_round_and_refusal(federation: Federation) -> None:
    federation.run("audited", uploads(says(rows=10**15)))
    lines = [x for x in AuditLog(federation.root / AUDIT).lines() if x["experiment"] == "audited"]
    events = ["submitted", "run began", "round", "round", "run ended", "models saved"]
    assert [line["event"] for line in lines] == events
    assert {line["run"] for line in lines} == {"1"}
    for line in lines[:2]:
        assert line["settings"]["method"].startswith("fedper")
        assert line["settings"]["seed"] == 0  # the default, which nobody wrote
        assert line["versions"].keys() == {"fedloom", "torch", "flwr"}
        assert line["app"] == APP
    assert set(lines[2]["rows"]) == {NAMES[0], NAMES[1]}
    assert "it claims 1000000000000000 rows" in lines[2]["absent"][NAMES[HOSTILE]]
    verify(federation.root / AUDIT)


def test_the_bytes_of_every_site_are_in_the_server_s_audit_log(federation: Federation) -> None:
    """Counted as the sites count them: of the whole answer that was read, also of a refused one."""
    answers: list[RecordDict] = []

    def seen(records: RecordDict) -> RecordDict:
        answers.append(records)
        return says(rows=10**15)(records)

    federation.run("counted", uploads(seen), protocol="cohort")
    lines = [x for x in AuditLog(federation.root / AUDIT).lines() if x["experiment"] == "counted"]
    rounds = [line for line in lines if line["event"] == "round"]
    assert all(set(line["bytes_from"]) == set(NAMES) for line in rounds)
    assert all(set(line["bytes_to"]) == set(NAMES) for line in rounds)
    told = [line["bytes_from"][NAMES[HOSTILE]] for line in rounds]
    assert told == [content_bytes(bundled(answer)) for answer in answers]
    assert told[0] != rounds[0]["bytes_up"]  # which is of the others' tensors alone


def test_who_is_refused_and_who_waits_is_in_the_server_s_audit_log(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.run("named", introductions(kind="table"))
    waits = Absent(f"{engine.FLOWER_SAYS}{WAITS}")
    read = engine._content
    monkeypatch.setattr(
        engine,
        "_content",
        lambda reply, most: waits if "hello" in opened(reply.content) else read(reply, most),
    )
    with pytest.raises(TooFewClients) as caught:
        federation.run("waited", lambda records: records, patience=0.1)
    assert "0 sites take part, fewer than the 2 that a round needs" in str(caught.value)
    for name in NAMES:
        assert f"the node of {name}: Flower says: {WAITS}" in str(caught.value)
    assert "start the others" not in str(caught.value)
    log = list(AuditLog(federation.root / AUDIT).lines())
    (refused,) = (
        x for x in log if x["event"] == "introduction refused" and x["experiment"] == "named"
    )
    assert refused["site"] == NAMES[HOSTILE]
    assert "has kind table, and the schema image" in refused["why"]
    waited = [x for x in log if x["experiment"] == "waited"]
    assert [x["event"] for x in waited] == ["submitted", *["waiting"] * 3]
    assert [x["site"] for x in waited[1:]] == list(NAMES)


# ------------------------------------------------------------------ introductions


def introductions(**values: Any) -> Spoil:
    def spoil(records: RecordDict) -> RecordDict:
        if "hello" in records.config_records:
            hello = {**dict(records.config_records["hello"]), **values}
            records["hello"] = ConfigRecord({k: v for k, v in hello.items() if v is not None})
        return records

    return spoil


COLUMNS = ("age", "dose", "weight")


def table(*columns: str, unit: str = "kg") -> Schema:
    named = tuple(Column(name=name, unit=unit) for name in columns)
    return digits_schema().model_copy(update={"columns": named})


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "another site's name": ({"site": NAMES[0]}, "introduces itself as 'hospital-a'"),
    "a path as name": ({"site": "../x"}, "introduces itself as '../x'"),
    "an ANSI name": ({"site": ANSI}, "introduces itself as"),
    "no name": ({"site": None}, "introduces itself as None"),
    "a huge shape": ({"shape": [200_000_000]}, "has shape [200000000], and the schema [1, 8, 8]"),
    "other classes": ({"class_names": ["yes", "no"]}, "has class names ['yes', 'no']"),
    "another kind": ({"kind": "table"}, "has kind table, and the schema image"),
    "an unknown kind": ({"kind": ANSI}, "kind = "),
    "a vocabulary": ({"vocabulary": 9}, "has vocabulary 9"),
    "columns": ({"schema": table(*COLUMNS).digest}, "other columns, another order"),
    "no schema": ({"schema": None}, "schema"),
    "an ANSI schema": ({"schema": ANSI}, "schema = "),
    "a long version": ({"torch": "2" * 10_000}, "torch = "),
    "2 MB of class names": ({"class_names": ["a" * 2_000_000]}, "a reply to this order has"),
}


@pytest.mark.parametrize("case", HELLOS)
def test_a_hostile_introduction_is_refused_and_the_others_train(
    case: str, federation: Federation, without_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    values, why = HELLOS[case]
    with caplog.at_level(logging.INFO, "fedloom"):
        result = federation.run(f"hello-{list(HELLOS).index(case)}", introductions(**values))
    assert [record.cohort for record in result.records] == [(0, 1), (0, 1)]
    assert result.summary.state_sha256 == without_it
    whose = f"the node of {NAMES[HOSTILE]} "
    refused = [line for line in _messages(caplog) if line.startswith(whose)]
    assert refused
    assert why in refused[0]
    assert all(line.isprintable() and len(line) < 800 for line in _messages(caplog))


def test_an_unknown_key_is_refused_whatever_name_it_states(
    federation: Federation, without_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Federation(
        federation.root, federation.files, [*federation.keys[:HOSTILE], key_bytes(new_key())]
    )
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = stranger.run("stranger", lambda records: records)
    assert [record.cohort for record in result.records] == [(0, 1), (0, 1)]
    assert result.summary.state_sha256 == without_it
    assert "a node is refused: its key is not let in" in caplog.text


def test_a_site_that_is_revoked_in_the_midst_of_a_run_no_longer_counts(tmp_path: Path) -> None:
    """Its key is removed while it trains in round 2: that reply does not count any more."""
    federation = hostile_federation(tmp_path)
    trained = []

    def revoke(records: RecordDict) -> RecordDict:
        trained.append(records)
        if len(trained) == 2:
            (federation.folder_of_keys / f"{NAMES[HOSTILE]}.pub").unlink()
        return records

    result = federation.run("revoked", uploads(revoke), rounds=3)
    assert [record.cohort for record in result.records] == [(0, 1, 2), (0, 1, 2), (0, 1)]
    assert [list(record.absent) for record in result.records] == [[], [HOSTILE], []]
    assert "the key of hospital-c is not let in" in result.records[1].absent[HOSTILE]


Other = Callable[[Schema], Schema]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (table("dose", "age", "weight"), "another order: column 1 is 'dose', not 'age'"),
        (table(*COLUMNS, unit="g"), "column age [g], not age [kg]"),
        (table("age", "dose"), "other columns: it lacks ['weight']"),
        (table(*COLUMNS, "height"), "other columns: it has ['height'] too"),
    ],
)
def test_a_schema_tells_orders_and_units_of_columns_apart(other: Schema, why: str) -> None:
    agreed = table(*COLUMNS)
    assert why in agreed.difference(other)
    assert agreed.digest != other.digest
    assert agreed.difference(table(*COLUMNS)) == ""


def test_a_site_keeps_the_states_of_as_many_rounds_as_agreed(federation: Federation) -> None:
    federation.run("kept", lambda records: records, rounds=5, **{"keep-rounds": 2})
    states = federation.files[0].parent / "kept" / "kept" / "states"
    assert len(SiteStore(states).names()) == 4
