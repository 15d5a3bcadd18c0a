"""Models over HTTP, asked by a real client over the loopback."""

from __future__ import annotations

import io
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from fedloom import FederatedData, run
from fedloom.runs.result import Result
from fedloom.serving.app import LOCAL_NAMES, NPY, Limits, Models, application

LIMITS = Limits(rows=5, megabytes=0.01)


@pytest.fixture(scope="module")
def result() -> Result:
    rng = np.random.default_rng(0)
    names = ("leeds", "york", "hull/east")
    sites = {n: (rng.normal(size=(30, 4)), rng.choice(["no", "yes"], 30)) for n in names}
    data = FederatedData.from_clients(sites)
    return run("fedper", data, rounds=1, model="mlp(hidden=[4])", progress=False)


@pytest.fixture(scope="module")
def client(result: Result) -> Iterator[httpx.Client]:
    models = Models(result.experiment.data.client_names, result.client)
    listener = socket.create_server(("127.0.0.1", 0))
    app = application(models, LIMITS, LOCAL_NAMES)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=address, timeout=600) as asking:
        yield asking
    server.should_exit = True
    thread.join(600)
    listener.close()


ROWS = [[0.1, -1.0, 2.0, 0.5], [1.0, 1.0, 1.0, 1.0]]


def saved(rows: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def test_it_is_there(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok", "clients": 3}
    assert client.get("/clients").json()["clients"] == ["leeds", "york", "hull/east"]


def test_a_batch_gets_the_answers_of_one_clients_model(
    client: httpx.Client, result: Result
) -> None:
    """The same as in Python, by class name; another client's model answers otherwise."""
    answers = client.post("/clients/york/predict", json={"rows": ROWS}).json()
    expected = result.client("york").predict(ROWS)
    assert answers["task"] == "classification"
    for answer, probabilities in zip(answers["predictions"], expected.tolist(), strict=True):
        assert [answer["p(no)"], answer["p(yes)"]] == pytest.approx(probabilities)
        assert answer["prediction"] == ("no", "yes")[int(np.argmax(probabilities))]
        assert answer["probability"] == pytest.approx(max(probabilities))
    assert client.post("/clients/leeds/predict", json={"rows": ROWS}).json() != answers


def test_rows_as_numpy_saves_them(client: httpx.Client) -> None:
    by_json = client.post("/clients/hull%2Feast/predict", json={"rows": ROWS}).json()
    kind = {"content-type": NPY.upper()}
    sent = client.post("/clients/hull/east/predict", content=saved(ROWS), headers=kind)
    assert sent.json() == by_json


def test_the_card_and_the_page_of_all_requests(client: httpx.Client) -> None:
    card = client.get("/clients/leeds/card").json()
    assert (card["name"], card["class_names"]) == ("leeds", ["no", "yes"])
    paths = client.get("/openapi.json").json()["paths"]
    assert (
        "application/json" in paths["/clients/{client}/predict"]["post"]["requestBody"]["content"]
    )


def test_the_page_of_all_requests_needs_nothing_from_outside(client: httpx.Client) -> None:
    """It is whole without a network: no script, no picture, and links to the service alone."""
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?:|//|<script|<img|<link|@import|url\(", page.text)
    assert re.findall(r'(?:href|src)="([^"]*)"', page.text) == ["openapi.json"]
    for request in ("GET /health", "GET /clients/{client}/card", "POST /clients/{client}/predict"):
        assert request in page.text
    assert client.get("/redoc").status_code == 404


def test_the_document_lists_the_answers_that_are_given(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    answers = {
        path: sorted(operation["responses"])
        for path, operations in paths.items()
        for operation in operations.values()
    }
    assert answers == {
        "/health": ["200"],
        "/clients": ["200"],
        "/clients/{client}/card": ["200", "404"],
        "/clients/{client}/predict": ["200", "400", "404", "413"],
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("leeds", b"{", 400, "is not valid JSON"),
        ("leeds", b"[" * 5000, 400, "is not valid JSON"),
        ("leeds", b'{"row": []}', 400, 'needs the one key "rows"'),
        ("leeds", b'{"rows": 3}', 400, '"rows" is no list'),
        ("leeds", b'{"rows": []}', 400, "rows have shape"),
        ("leeds", b'{"rows": [[1, 2, 3]]}', 400, "rows have shape (3,), those of the model (4,)"),
        ("leeds", b'{"rows": [[1, 2, 3, 4], [1]]}', 400, "not an array"),
        ("leeds", b'{"rows": [[1, 2, 3, "x"]]}', 400, "the model takes numbers"),
        ("leeds", b'{"rows": [[1, 2, 3, NaN]]}', 400, "NaN or infinite"),
        ("leeds", b'{"rows": [[],[],[],[],[],[]]}', 400, "6 rows are more than 5"),
        ("leads", b'{"rows": []}', 404, "did you mean 'leeds'?"),
        ("leeds", b" " * 20_000, 413, "more than 10485 bytes"),
    ],
)
def test_a_bad_request_is_one_sentence(
    client: httpx.Client, path: str, body: bytes, status: int, sentence: str
) -> None:
    answer = client.post(f"/clients/{path}/predict", content=body)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]
    assert client.get("/health").json()["status"] == "ok"


def test_a_body_in_pieces_is_counted_too(client: httpx.Client) -> None:
    pieces = (b" " * 1000 for _ in range(20))
    answer = client.post("/clients/leeds/predict", content=pieces)
    assert (answer.status_code, "more than" in answer.json()["error"]) == (413, True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:20],
        lambda b: b.replace(b"(2, 4)", b"(9, 9)"),
        lambda b: b.replace(b"(2, 4)", b"((((((", 1),  # what numpy raises then is no ValueError
        lambda b: b.replace(b"(2, 4), }" + b" " * 39, b"(0, " + b"9" * 40 + b"), }"),
    ],
)
def test_a_spoilt_array_is_one_sentence(client: httpx.Client, spoil: Any) -> None:
    answer = client.post(
        "/clients/leeds/predict", content=spoil(saved(ROWS)), headers={"content-type": NPY}
    )
    assert answer.status_code == 400
    assert "no array of numpy.save" in answer.json()["error"]


def test_a_page_elsewhere_cannot_ask(client: httpx.Client) -> None:
    """By a name of its own for this address."""
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/health", headers={"host": "[::1]:8000"}).status_code == 200


def test_other_paths_are_named(client: httpx.Client) -> None:
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("/nowhere: ")
