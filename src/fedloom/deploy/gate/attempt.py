"""Real answers on the site's own data, computed and described, and not sent.

`fedloom deploy try` starts it as a process of its own, because it runs what a run would run. What
the server would ask comes from the server's code, what the site would answer from the site's, and
the gate's own check lies between: so this is what would leave, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedloom.core.digest import receipt
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.threads import on_one_thread
from fedloom.core.tree import State
from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate.assess import assess_settings
from fedloom.deploy.gate.attempted import Attempt, SentTensor, Step
from fedloom.deploy.gate.confined import confined
from fedloom.deploy.gate.form import Form
from fedloom.deploy.gate.orders import read_order_head
from fedloom.deploy.gate.replies import Forbidden, checked_answer, checked_hello
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines import check_device
from fedloom.engines.content import content_bytes, objects_of
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Order
from fedloom.engines.flower.context_store import ContextStore
from fedloom.engines.flower.node import Node
from fedloom.engines.message_bundle import bundled
from fedloom.engines.record_names import STATE
from fedloom.errors import BadInput
from fedloom.files import write_json
from fedloom.runs.evaluation import Questions


@dataclass(frozen=True)
class Answer:
    """One message that would leave."""

    name: str
    content: RecordDict

    @cached_property
    def bundle(self) -> RecordDict:
        """As it would travel."""
        return bundled(self.content)


def attempt(config: SiteConfig, settings: Settings, out: Path | None = None) -> Attempt:
    """The answers of this site up to its first round of training, as if no other site answered;
    none where its policy refuses the settings. Into the folder `out` they are written as they would
    be sent."""
    on_one_thread()
    assessment = assess_settings(config, settings)
    if assessment.refusals:
        return Attempt(refusals=assessment.refusals)
    assert assessment.form is not None
    assert assessment.hello is not None
    site = SiteData(config, settings)
    introduction = RecordDict({"hello": ConfigRecord(site.hello())})
    try:
        hello = Answer("introduction", checked_hello(introduction, assessment.hello))
        answers = [hello, *_answers(site, assessment.form, assessment.rows)]
    except Forbidden as e:
        raise BadInput(f"the gate of this site would not let the answer out: {e}") from None
    if out is not None:
        write_answers(out, answers)
    questions = Questions(site.experiment())
    return Attempt(
        hello=dict(assessment.hello),
        hello_bytes=content_bytes(hello.bundle),
        steps=tuple(map(_step, answers[1:])),
        later=questions.afterwards,
        later_splits=questions.splits,
    )


def _answers(site: SiteData, form: Form, rows: int) -> Iterator[Answer]:
    """What the site says to the server's first orders, up to the first round of training."""
    experiment, sites, name = site.experiment(), site.settings.sites, site.config.name
    program, questions = experiment.program, Questions(experiment)
    device = check_device(site.config.device)
    node = Node(program, site.divided.client(0), ContextStore(RecordDict()), device)
    cid = sites.index(name) if name in sites else 0
    server = initial_server(program)
    own: str | None = None
    for plan in program.schedule(1):
        if plan.kind == "adapt":
            continue
        r = Round(program, plan, server, range(program.clients))
        known = None if own is None else _receipt(own)
        order = Order(cid, "client", send(r, cid, known), own, questions.inside(plan))
        asked = codec.write_order(order, {})
        content = node.answer(codec.read_order(asked))
        yield Answer(str(plan), checked_answer(content, read_order_head(asked), form, rows))
        reply = codec.read_reply(content)
        own = reply.own
        for client in r.cohort:
            r.add(client, reply.up if client == cid else None)
        server = merge(r)


def _receipt(own: str) -> State:
    return receipt(own) if own else {}


def _step(answer: Answer) -> Step:
    content = answer.content
    head = content.config_records["head"]
    metrics: dict[str, Any] = dict(content.metric_records["metrics"])
    return Step(
        name=answer.name,
        tensors=tuple(_tensors(content)),
        rows=int(str(head["rows"])),
        state=str(head["own"]),
        anew=bool(head["anew"]),
        metrics=metrics,
        scores=tuple(
            f"{s.model} model, {s.moment}, on {s.rows} {s.split} rows: "
            + ", ".join(f"{name} {value:.6g}" for name, value in s.metrics.items())
            for s in codec.read_scores(content)
        ),
        bytes=content_bytes(answer.bundle),
        sha256=answer.bundle.object_id,
    )


def _tensors(content: RecordDict) -> Iterator[SentTensor]:
    for slice_, tree in content.array_records.items():
        for key, array in tree.items():
            values = array.numpy()
            yield SentTensor(
                name=f"{slice_.removeprefix(STATE)}/{key}",
                shape=values.shape,
                dtype=str(values.dtype),
                bytes=values.nbytes,
                smallest=float(values.min()) if values.size else None,
                largest=float(values.max()) if values.size else None,
            )


def write_answers(out: Path, answers: list[Answer]) -> None:
    """One folder for each answer: `objects` as they would travel, each under its sha256, and to be
    read `content.json` with the tensors in numpy's own files. Names in an answer may be chosen by a
    federation's code, so no file is called by them."""
    out.mkdir(mode=0o700, parents=True)
    for number, answer in enumerate(answers):
        folder = out / str(number)
        (folder / "objects").mkdir(mode=0o700, parents=True)
        for name, data in objects_of(answer.bundle).items():
            (folder / "objects" / name).write_bytes(data)
        records: dict[str, Any] = {
            name: dict(record)
            for part in (answer.content.config_records, answer.content.metric_records)
            for name, record in part.items()
        }
        for name, tree in answer.content.array_records.items():
            records[name] = {}
            for key, array in tree.items():
                file = f"tensor-{sum(1 for _ in folder.glob('*.npy')) + 1}.npy"
                (folder / file).write_bytes(array.data)
                records[name][key] = file
        about = {
            "answer": answer.name,
            "sha256": answer.bundle.object_id,
            "bytes": content_bytes(answer.bundle),
            "records": records,
        }
        write_json(folder / "content.json", about)


def main() -> None:
    """`... attempt SITE.TOML CONFIGURATION.json [--app FILE] [--out FOLDER] --result FILE`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--app", type=Path, help="an app whose code may run")
    parser.add_argument("--out", type=Path, help="a new folder for the answers")
    words = parser.parse_args()
    with confined(words.site), tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
        if words.app is not None:
            App(words.app.read_bytes()).unpack(Path(scratch))
            sys.path.insert(0, scratch)
        settings = Settings.read(json.loads(words.configuration.read_text(encoding="utf-8")))
        done = attempt(SiteConfig.read(words.site), settings, words.out)
        words.result.write_text(done.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
