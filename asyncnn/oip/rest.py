"""The protocol by HTTP: JSON, and tensors as bytes behind it.

Source: the Open Inference Protocol (KServe's predict protocol, version 2), and its
extensions for binary tensors, repositories, statistics and system shared memory.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.oip import calls
from asyncnn.oip.admission import (
    MAX_CALL_BYTES,
    Tokens,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    codes_of,
)
from asyncnn.oip.json_tensors import (
    HEADER_LENGTH,
    InferRequest,
    JsonRequest,
    decoded,
    encode,
    json_answer,
    number_of,
)
from asyncnn.oip.under_way import Admitted, Door
from asyncnn.web import Application, CancelOnDisconnect, Message, Receive, Send


class IndexRequest(msgspec.Struct):
    """Which models an index is to have."""

    ready: bool = False


class LoadRequest(msgspec.Struct):
    """How a model is to be loaded or unloaded; there is nothing to choose."""

    parameters: dict[str, Any] = {}


class RegisterRequest(msgspec.Struct):
    """Bytes of an object of shared memory, by the key that POSIX has for it."""

    key: str
    byte_size: int
    offset: int = 0


async def infer(door: Door, request: Request) -> Response:
    """Run a model, and answer with its outputs."""
    limits = door.repository.limits
    length = number_of(request.headers.get("content-length", ""))
    size = limits.max_request_bytes if length < 0 else length
    with Admitted(door, size) as under_way:
        body = await _body(request, size, limits.body_s)
        asking = JsonRequest(body, request.headers.get(HEADER_LENGTH))
        name, version = request.path_params.values()
        return await under_way.answer(name, version, asking)


async def _body(request: Request, most: int, seconds: float) -> bytes:
    """Return the body of a request, which has been promised to have so many bytes.

    :raises TooLargeError: if it has more.
    :raises TooSlowError: if it has not come within ``seconds``.
    """
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLargeError(f"the request has more than {most} bytes")
                parts.append(part)
    except TimeoutError:
        raise TooSlowError(
            f"the request has not come within OipLimits.body_s, {seconds:g} s"
        ) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Call(NamedTuple):
    """A call of the protocol; ``takes`` and ``gives`` are types of its JSON.

    ``part`` names the field of the answer that is returned alone, if any.
    """

    method: str
    path: str
    answer: Callable[..., Any]
    takes: Any = None
    gives: Any = dict
    part: str = ""

    async def respond(self, door: Door, request: Request) -> Response:
        """Return the answer to a request; it may as well have no body."""
        given = {"name": "", "version": ""}
        for key, value in request.path_params.items():
            given[key.rpartition("_")[2]] = value
        if self.takes is not None:
            seconds = door.repository.limits.body_s
            body = await _body(request, MAX_CALL_BYTES, seconds)
            asked = decoded(msgspec.json.Decoder(self.takes), body or b"{}")
            given |= msgspec.structs.asdict(asked)
        answer = await self.answer(door, SimpleNamespace(**given))
        is_ready = self.method != "GET" or answer.get("ready", True)
        if self.part:
            answer = answer[self.part]
        records = [*answer.values()] if self.gives is list else answer
        return json_answer(encode(records), 200 if is_ready else 503)


SHARED, REGION = "/v2/systemsharedmemory", "/region/{region_name}"
MODEL, VERSION = "/v2/models/{model_name}", "/versions/{model_version}"
LOADING = "/v2/repository/models/{model_name}"
INDEX = list[calls.IndexRecord]

CALLS = (
    Call("POST", f"{MODEL}/infer", infer, InferRequest),
    Call("POST", f"{MODEL}{VERSION}/infer", infer, InferRequest),
    Call("GET", "/v2/health/live", calls.live),
    Call("GET", "/v2/health/ready", calls.ready),
    Call("GET", "/v2", calls.server, gives=calls.ServerRecord),
    Call("GET", "/v2/models/stats", calls.statistics),
    *(
        Call("GET", MODEL + version + rest, answer, gives=gives)
        for version in ("", VERSION)
        for rest, answer, gives in (
            ("", calls.model, calls.ServedRecord),
            ("/ready", calls.model_ready, dict),
            ("/stats", calls.statistics, dict),
        )
    ),
    Call("POST", "/v2/repository/index", calls.index, IndexRequest, INDEX, "models"),
    Call("POST", f"{LOADING}/load", calls.load, LoadRequest),
    Call("POST", f"{LOADING}/unload", calls.unload, LoadRequest),
    Call("POST", f"{SHARED}{REGION}/register", calls.register, RegisterRequest),
    *(
        call
        for whose in (SHARED, SHARED + REGION)
        for call in (
            Call("GET", f"{whose}/status", calls.regions, None, list, "regions"),
            Call("POST", f"{whose}/unregister", calls.unregister),
        )
    ),
)


class _RunsByHttp:
    """Answers runs before routes are looked for, which takes as long as a small model.

    One whose client has gone stops computing.
    """

    _path = re.compile(
        "/v2/models/(?P<model_name>[^/]+)(/versions/(?P<model_version>[^/]+))?/infer$"
    )

    def __init__(self, app: Application, door: Door) -> None:
        self._app, self._door = app, door
        self._run = CancelOnDisconnect(self._answer)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = self._path.match(scope["path"]) if is_post else None
        if found is None:
            await self._app(scope, receive, send)
        else:
            scope["path_params"] = found.groupdict("")
            await self._run(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            answer = await infer(self._door, Request(scope, receive))
        except AsyncnnError as error:
            answer = _refused(error)
        await answer(scope, receive, send)


class _TokenGate:
    """Lets only requests with a token pass, but for those that ask for health."""

    def __init__(self, app: Application, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/v2/health/"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            try:
                self._tokens.check(given)
            except UnauthorizedError as error:
                answer = _refused(error)
                answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refused(error: AsyncnnError) -> Response:
    fields = {"error": str(error), "status": error.status.name}
    return json_answer(encode(fields), codes_of(error).http)


async def _failed(_: Request, error: Exception) -> Response:
    return _refused(failure_of(error))


async def _unknown(_: Request, error: Exception) -> Response:
    """Answer a path or a method that is none."""
    assert isinstance(error, HTTPException)
    answer = json_answer(encode({"error": error.detail}), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def rest_application(door: Door, tokens: Tokens, document: object) -> Starlette:
    """Return the ASGI application of the protocol, which shows its OpenAPI document."""
    described = encode(document)

    async def openapi(_: Request) -> Response:
        return json_answer(described)

    routes = [
        Route(call.path, partial(call.respond, door), methods=[call.method])
        for call in CALLS
    ]
    gate = [Middleware(_TokenGate, tokens=tokens)] if tokens else []
    return Starlette(
        routes=[*routes, Route("/openapi.json", openapi)],
        middleware=[*gate, Middleware(_RunsByHttp, door=door)],
        exception_handlers={
            AsyncnnError: _failed,
            Exception: _failed,
            HTTPException: _unknown,
        },
    )
