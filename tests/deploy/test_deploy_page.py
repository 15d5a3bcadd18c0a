"""The numbers and lists of docs/deploy.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedloom.core.fields import Field
from fedloom.core.message import Up
from fedloom.deploy import cli
from fedloom.deploy.guard.connections import HEAD_SECONDS
from fedloom.deploy.guard.requests import RECORD_SECONDS
from fedloom.deploy.processes.children import FLWR
from fedloom.deploy.project.certificates import AUTHORITY_YEARS, SERVER_YEARS
from fedloom.deploy.project.folder import LinkConfig
from fedloom.deploy.project.new import WITH_BATCH_NORM
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import introduction
from fedloom.engines.flower import codec
from fedloom.engines.flower.bounds import LARGEST_UPDATE, MAJORITY
from fedloom.engines.flower.codec import Reply
from fedloom.plain_text import MOST_CHARACTERS
from fedloom.policy import Policy

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8").split())
LINK = LinkConfig()
RUN = Settings.read({"sites": "a,b"})
WORDS = {1_000_000: "one million", 600: "ten minutes", 3: "three"}
"""Numbers that the page writes out."""


@pytest.mark.parametrize(
    "sentence",
    [
        f"`most-rows`, {WORDS[RUN.most_rows]}; and `most-rows-ratio`, {RUN.most_rows_ratio:g} t",
        f"{LARGEST_UPDATE:g} times the length of the model it was sent",
        f"among {WORDS[MAJORITY]} replies or more also `most-norm`, {RUN.most_norm:g} times",
        f"{LINK.most_body_mb:g} MB, {LINK.body_seconds:g} s; what comes beyond",
        f"{LINK.connections:,} in all, {LINK.connections_per_address} of one site",
        f"a request's head within {HEAD_SECONDS:g} s",
        f"printable, one line, {MOST_CHARACTERS} characters",
        f"That reaches back `keep-rounds` rounds ({RUN.keep_rounds})",
        f"it asks again until `patience`, {WORDS[int(RUN.patience)]}, is over",
        f"one line for each status in {WORDS[int(RECORD_SECONDS)]}",
        f"the certificate authority, {AUTHORITY_YEARS} years",
        f"the server's certificate, {SERVER_YEARS} years",
        f"`deploy node` starts it again every {cli.PAUSE:g} s",
        f"and {Policy.checked().least_rows} must)",
        f"Flower {FLWR.rpartition('.')[0]} asks nobody who submits a run",
        *(f'`"{model}"`' for model in sorted(set(WITH_BATCH_NORM.values()))),
    ],
)
def test_the_page_has_the_numbers_of_the_code(sentence: str) -> None:
    assert sentence in PAGE


INTRODUCTION = {
    "site": "its name",
    "shape": "kind and shape of an input",
    "kind": "kind and shape of an input",
    "class_names": "the class names",
    "vocabulary": "the size of the vocabulary",
    "targets": "what a target is where it is no class",
    "fields": "name, kind and shape of each input where there are several",
    "schema": "the sha256 of its schema",
    "fedloom": "the versions of fedloom and torch",
    "torch": "the versions of fedloom and torch",
}
"""What a site says of itself -> how the page calls it."""
ANSWER = {
    "client": "",  # which the server asked for
    "rows": "the number of training rows",
    "own": "the sha256 of the state that stays",
    "anew": "whether the site had lost its state and began anew",
}


def test_the_page_names_all_that_an_introduction_and_an_answer_hold() -> None:
    fields = (Field("scan", "image", (1, 8, 8)), Field("age", "table", (1,)))
    schema = Schema(
        kind="fields", shape=(65,), class_names=("no", "yes"), targets="labels", fields=fields
    )
    assert introduction("a", schema).keys() == INTRODUCTION.keys()
    head = codec.write_reply(Reply(0, Up({}, 1), "")).config_records["head"]
    assert set(head) == set(ANSWER)
    for words in (*INTRODUCTION.values(), *ANSWER.values()):
        assert words in PAGE
