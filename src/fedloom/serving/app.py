"""Models over HTTP: predictions for one client or another, with limits, and an OpenAPI page.

Meant for this machine: it knows no passwords. Whoever wants it reachable from elsewhere puts a
gateway with authentication and TLS before it.
"""

from __future__ import annotations

import io
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from fedloom.errors import BadInput, FedloomError, UnknownName, needs_extra
from fedloom.files import jsonable, parse_json
from fedloom.serving.model import PersonalModel
from fedloom.serving.requests_page import requests_page

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
LOCAL_NAMES = (HOST, "localhost", "[")
"""By which the loopback may be asked; the last is what starlette reads of "[::1]:8000"."""
NPY = "application/x-npy"
"""Content type of rows as `numpy.save` writes them."""
_HELD = 16
"""Models in memory at a time."""
_CONNECTIONS = 100
"""At a time; each may hold a request of the largest size. Others are told to come later (503)."""


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    rows: int = 1000
    megabytes: float = 16.0

    @property
    def bytes(self) -> int:
        """Of a request's body."""
        return int(self.megabytes * 2**20)


@dataclass
class Models:
    """Clients' models by name, opened when they are first asked for; the newest few are held."""

    names: Sequence[str]
    open: Callable[[str], PersonalModel]
    _held: OrderedDict[str, PersonalModel] = field(default_factory=OrderedDict)
    lock: RLock = field(default_factory=RLock)
    """One request is read and answered at a time, so that memory holds the rows of one."""

    def __getitem__(self, name: str) -> PersonalModel:
        """With the lock held."""
        if name not in self.names:
            raise UnknownName("client", name, self.names[:20])
        if name not in self._held:
            self._held[name] = self.open(name)
        self._held.move_to_end(name)
        while len(self._held) > _HELD:
            self._held.popitem(last=False)
        return self._held[name]

    def answer(self, name: str, x: Any) -> dict[str, Any]:
        """The predictions of rows by one client's model."""
        with self.lock:
            model = self[name]
            answers = model.answers(x)
        return {"client": name, "task": model.card.task, "predictions": list(answers.rows())}


def application(models: Models, limits: Limits, hosts: Sequence[str] = ()) -> FastAPI:
    """The service; `hosts` are the names by which it may be asked (none: by any)."""
    with needs_extra("serve"):
        from fastapi import FastAPI, Path, Request
        from fastapi.exceptions import RequestValidationError
        from starlette.concurrency import run_in_threadpool
        from starlette.exceptions import HTTPException
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import HTMLResponse

    app = FastAPI(
        title="fedloom",
        description="Predictions of the clients' models of one run.",
        openapi_tags=[{"name": "models"}],
        docs_url=None,
        redoc_url=None,
    )
    name_of_client = Annotated[str, Path(description="a client's name, as GET /clients lists it")]
    app.add_middleware(_SizeLimit, most=limits.bytes)
    if hosts:
        # A page elsewhere could give this address a name of its own (DNS rebinding).
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    @app.get("/health", tags=["models"], summary="Is it there, and for how many clients?")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "clients": len(models.names)}

    @app.get("/clients", tags=["models"], summary="The clients' names and the limits of a request.")
    async def clients() -> dict[str, Any]:
        most = {"rows": limits.rows, "bytes": limits.bytes}
        return {"clients": list(models.names), "limits": most}

    # Names may hold slashes.
    def card(client: str) -> dict[str, Any]:
        with models.lock:
            fields: dict[str, Any] = jsonable(models[client].card.model_dump())
        return fields

    async def predict(client: str, request: Request) -> dict[str, Any]:
        body, kind = await request.body(), request.headers.get("content-type", "")

        def answer() -> dict[str, Any]:
            with models.lock:
                return models.answer(client, _rows(body, kind, limits))

        return await run_in_threadpool(answer)

    # FastAPI reads the types of an inner function from its annotations, which are text here.
    card.__annotations__.update(client=name_of_client)
    predict.__annotations__.update(request=Request, client=name_of_client)
    app.get(
        "/clients/{client:path}/card",
        tags=["models"],
        summary="What is known of a model.",
        responses=_errors(404),
    )(card)
    app.post(
        "/clients/{client:path}/predict",
        tags=["models"],
        summary="Predictions of one or many raw rows.",
        responses=_errors(400, 404, 413),
        openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
    )(predict)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        return _without_unused_answers(described())

    app.openapi = openapi  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Any:
        return HTMLResponse(requests_page(app.openapi()))

    app.add_exception_handler(FedloomError, _refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _refused)
    return app


_ERRORS: Mapping[int, str] = {
    400: "The rows cannot be read or predicted.",
    404: "There is no such client.",
    413: "The request is larger than it may be.",
}
"""Status -> why; the body is a sentence."""
_SENTENCE: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "one sentence"}},
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": _SENTENCE}}
    return {code: {"description": _ERRORS[code], "content": content} for code in statuses}


def _without_unused_answers(document: dict[str, Any]) -> dict[str, Any]:
    """FastAPI lists its own answer to what it cannot read (422), which is a sentence (400) here."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    document.pop("components", None)
    return document


_BODIES: Mapping[str, Any] = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["rows"],
            "properties": {
                "rows": {
                    "oneOf": [{"type": "array", "items": {}}, {"type": "object"}],
                    "description": "raw rows, nested lists; of several inputs a list for each;"
                    " texts for a model of text",
                }
            },
        }
    },
    NPY: {"schema": {"type": "string", "format": "binary", "description": "numpy.save of rows"}},
}


def _rows(body: bytes, kind: str, limits: Limits) -> Any:
    """The raw rows of a request."""
    if kind.split(";", maxsplit=1)[0].strip().lower() == NPY:
        x: Any = _array(body)
    else:
        try:
            fields = parse_json(body)
        except ValueError as e:
            raise BadInput(f'the request is not valid JSON ({e}); send {{"rows": [...]}}') from None
        if not isinstance(fields, dict) or set(fields) != {"rows"}:
            raise BadInput('the request needs the one key "rows", a list of raw rows')
        x = fields["rows"]
        columns = list(x.values()) if isinstance(x, dict) else [x]
        if not columns or not all(isinstance(column, list) for column in columns):
            raise BadInput(
                '"rows" is no list; send a list of raw rows, also of a single one, or an object'
                " with such a list for every input"
            )
    count = max(map(len, columns)) if isinstance(x, dict) else len(x)
    if count > limits.rows:
        raise BadInput(f"{count} rows are more than {limits.rows}; send fewer at a time")
    return x


def _array(body: bytes) -> np.ndarray:
    try:
        file = io.BytesIO(body)
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"format {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        # Checked before it is read: a short body may claim to hold a huge array.
        if dtype.hasobject or int(np.prod(shape, dtype=object)) * dtype.itemsize > len(body):
            raise ValueError("its head does not fit its length")
        file.seek(0)
        array: np.ndarray = np.load(file, allow_pickle=False)
    except Exception as e:  # a stranger's bytes make numpy raise errors of many kinds
        raise BadInput(f"the request is no array of numpy.save ({e}); send that, or JSON") from None
    if not array.ndim:
        raise BadInput("the request holds a single number; send rows [n, ...]")
    return array


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """What was wrong, in one sentence."""
    from starlette.responses import JSONResponse

    known = {UnknownName: 404, _TooLarge: 413}
    status = next((code for kind, code in known.items() if isinstance(error, kind)), 400)
    return JSONResponse({"error": str(error)}, status)


async def _not_found(request: Request, error: Exception) -> JSONResponse:
    from starlette.responses import JSONResponse

    status = int(getattr(error, "status_code", 404))
    what = getattr(error, "detail", "")
    return JSONResponse({"error": f"{request.url.path}: {what}; see /docs"}, status)


class _TooLarge(BadInput):
    """A body of more bytes than a request may have."""


class _SizeLimit:
    """Refuses bodies of more bytes, by what the head says and by what comes."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > self.most:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.most:  # of a body in pieces, whose head says no length
                raise _TooLarge(self._sentence)
            return message

        await self.app(scope, counted, send)

    @property
    def _sentence(self) -> str:
        return f"the request has more than {self.most} bytes; send fewer rows at a time"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import JSONResponse

        await JSONResponse({"error": self._sentence}, 413)(scope, receive, send)


def serve_models(
    models: Models,
    limits: Limits,
    host: str = HOST,
    port: int = 8000,
    tell: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer until the process is stopped; `tell` gets the address once it listens."""
    with needs_extra("serve"):
        import uvicorn

    app = application(models, limits, LOCAL_NAMES if host in (HOST, "localhost", "::1") else ())
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as e:
        raise BadInput(
            f"cannot listen at {host}, port {port} ({e.strerror}); give another --port or --host"
        ) from e
    with listener:
        tell(f"http://{f'[{host}]' if is_ipv6 else host}:{listener.getsockname()[1]}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            ws="none",
            timeout_keep_alive=10,
            limit_concurrency=_CONNECTIONS,
        )
        uvicorn.Server(config).run(sockets=[listener])
