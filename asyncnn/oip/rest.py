"""The protocol by HTTP: JSON, and tensors as bytes behind it.

Source: the Open Inference Protocol (KServe's predict protocol, version 2), and its
extensions for binary tensors, repositories, statistics and system shared memory.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.offload import offload
from asyncnn.oip import describing
from asyncnn.oip.admission import (
    MAX_CALL_BYTES,
    Tokens,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    asked_run,
    codes_of,
    refuse_parameters,
)
from asyncnn.oip.client_regions import Placement
from asyncnn.oip.json_tensors import (
    HEADER_LENGTH,
    InferRequest,
    decoded,
    encode,
    json_answer,
    number_of,
    read_request,
    write_answer,
)
from asyncnn.oip.repository import ServedModel
from asyncnn.oip.under_way import Admitted, Door
from asyncnn.web import Application, CancelOnDisconnect, Message, Receive, Send

_SHORT_BYTES = 1 << 15
"""JSON of so many bytes is read or written in a moment."""

T = TypeVar("T")


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


def _told(record: object, status: int = 200) -> Response:
    return json_answer(encode(record), status)


class RestFace:
    """The protocol's calls for the models of a repository; each answers a request."""

    def __init__(self, door: Door) -> None:
        self._door, self._repository = door, door.repository

    async def live(self, _: Request) -> Response:
        """Answer that the server is there."""
        return _told({"live": True})

    async def ready(self, _: Request) -> Response:
        """Answer whether the device can be reached: 200, or 503."""
        is_ready = self._door.is_ready
        return _told({"ready": is_ready}, 200 if is_ready else 503)

    async def server(self, _: Request) -> Response:
        """Answer what the server is."""
        return _told(
            describing.server_metadata(has_regions=self._repository.regions.is_open)
        )

    async def model_ready(self, request: Request) -> Response:
        """Answer whether a model can be run: 200, or 503."""
        served = self._named(request)
        is_ready = served.ready and self._door.is_ready
        told = {"name": served.name, "ready": is_ready}
        return _told(told, 200 if is_ready else 503)

    async def model(self, request: Request) -> Response:
        """Answer what a model takes and returns."""
        served = self._repository.usable(*_name_of(request))
        return _told(describing.model_metadata(self._repository, served))

    async def statistics(self, request: Request) -> Response:
        """Answer how often models were run."""
        return _told(describing.statistics(self._repository, *_name_of(request)))

    async def infer(self, request: Request) -> Response:
        """Run a model, and answer with its outputs."""
        repository = self._repository
        size = _size_of(request, repository.limits.max_request_bytes)
        with Admitted(self._door, size) as under_way:
            body = await _body_in_time(request, size, repository.limits.body_s)
            served = under_way.served = repository.usable(*_name_of(request))
            placement = Placement(repository.regions)
            length = request.headers.get(HEADER_LENGTH)
            given = body, length, served, placement
            if (len(body) if length is None else number_of(length)) <= _SHORT_BYTES:
                asked, arrays = read_request(*given)
            else:
                asked, arrays = await offload(read_request, *given)
            running = arrays, placement, asked_run(asked.parameters), asked.outputs
            outputs = await under_way.run(*running)
            answering = served, asked, outputs, placement
            if sum([each.nbytes for each in outputs.values()]) <= _SHORT_BYTES:
                return write_answer(*answering)
            return await offload(write_answer, *answering)

    async def index(self, request: Request) -> Response:
        """Answer which models there are."""
        asked = await _asked(request, IndexRequest)
        return _told(describing.index(self._repository, ready=asked.ready))

    async def load(self, request: Request) -> Response:
        """Load a model from the file that the server was started with."""
        name, _ = _name_of(request)
        asked = await _asked(request, LoadRequest)
        refuse_parameters(asked.parameters)
        await self._repository.load(name)
        return _told({"name": name, "ready": True})

    async def unload(self, request: Request) -> Response:
        """Let go of a model."""
        name, _ = _name_of(request)
        await _asked(request, LoadRequest)
        self._repository.unload(name)
        return _told({"name": name, "ready": False})

    async def regions(self, request: Request) -> Response:
        """Answer which regions of shared memory there are."""
        name = request.path_params.get("region_name", "")
        return _told(self._repository.regions.records(name))

    async def register(self, request: Request) -> Response:
        """Know a region of shared memory."""
        asked = await _asked(request, RegisterRequest)
        span = asked.key, asked.offset, asked.byte_size
        self._repository.regions.register(request.path_params["region_name"], *span)
        return _told({})

    async def unregister(self, request: Request) -> Response:
        """Forget a region of shared memory, or all."""
        self._repository.regions.unregister(request.path_params.get("region_name", ""))
        return _told({})

    def _named(self, request: Request) -> ServedModel:
        return self._repository.find(*_name_of(request))


def _name_of(request: Request) -> tuple[str, str]:
    """Return the model's name and version in a path, empty if it has none."""
    given = request.path_params
    return given.get("model_name", ""), given.get("model_version", "")


def _size_of(request: Request, most: int) -> int:
    """Return how many bytes a request has; the most that it may, if it does not say."""
    length = number_of(request.headers.get("content-length", ""))
    return most if length < 0 else length


async def _body(request: Request, most: int) -> bytes:
    """Return the body of a request, which has been promised to have so many bytes.

    :raises TooLargeError: if it has more.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLargeError(f"the request has more than {most} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _body_in_time(request: Request, most: int, seconds: float) -> bytes:
    """Return what `_body` does.

    :raises TooSlowError: if it has not come within ``seconds``.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _body(request, most)
    except TimeoutError:
        raise TooSlowError(
            f"the request has not come within OipLimits.body_s, {seconds:g} s"
        ) from None


async def _asked(request: Request, kind: type[T]) -> T:
    """Return what a request asks for that may as well have no body."""
    body = await _body(request, MAX_CALL_BYTES)
    return decoded(msgspec.json.Decoder(kind), body or b"{}")


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
    told = {"error": str(error), "status": error.status.name}
    return _told(told, codes_of(error).http)


async def _failed(_: Request, error: Exception) -> Response:
    return _refused(failure_of(error))


async def _unknown(_: Request, error: Exception) -> Response:
    """Answer a path or a method that is none."""
    assert isinstance(error, HTTPException)
    answer = _told({"error": error.detail}, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


SHARED, REGION = "/v2/systemsharedmemory", "/region/{region_name}"
MODEL, VERSION = "/v2/models/{model_name}", "/versions/{model_version}"


class Call(NamedTuple):
    """A call of the protocol; ``takes`` and ``gives`` are types of its JSON."""

    method: str
    path: str
    answer: Callable[[RestFace, Request], Any]
    takes: Any = None
    gives: Any = dict


CALLS = (
    # First, as paths are looked for in this order.
    Call("POST", f"{MODEL}/infer", RestFace.infer, InferRequest),
    Call("POST", f"{MODEL}{VERSION}/infer", RestFace.infer, InferRequest),
    Call("GET", "/v2/health/live", RestFace.live),
    Call("GET", "/v2/health/ready", RestFace.ready),
    Call("GET", "/v2", RestFace.server, gives=describing.ServerRecord),
    Call("GET", "/v2/models/stats", RestFace.statistics),
    *(
        Call(method, MODEL + version + rest, answer, takes, gives)
        for version in ("", VERSION)
        for method, rest, answer, takes, gives in (
            ("GET", "", RestFace.model, None, describing.ServedRecord),
            ("GET", "/ready", RestFace.model_ready, None, dict),
            ("GET", "/stats", RestFace.statistics, None, dict),
        )
    ),
    Call(
        "POST",
        "/v2/repository/index",
        RestFace.index,
        IndexRequest,
        list[describing.IndexRecord],
    ),
    *(
        Call(
            "POST", f"/v2/repository/models/{{model_name}}/{verb}", answer, LoadRequest
        )
        for verb, answer in (("load", RestFace.load), ("unload", RestFace.unload))
    ),
    Call("POST", f"{SHARED}{REGION}/register", RestFace.register, RegisterRequest),
    *(
        call
        for whose in ("", REGION)
        for call in (
            Call("GET", f"{SHARED}{whose}/status", RestFace.regions, gives=list),
            Call("POST", f"{SHARED}{whose}/unregister", RestFace.unregister),
        )
    ),
)


def rest_application(door: Door, tokens: Tokens, document: object) -> Starlette:
    """Return the ASGI application of the protocol, which shows its OpenAPI document.

    A run whose client has gone stops computing.
    """
    face = RestFace(door)
    described = encode(document)

    async def openapi(_: Request) -> Response:
        return json_answer(described)

    middleware = [Middleware(_TokenGate, tokens=tokens)] if tokens else []
    ending = [Middleware(CancelOnDisconnect)]
    return Starlette(
        routes=[
            Route(
                call.path,
                call.answer.__get__(face),
                methods=[call.method],
                middleware=ending if call.takes is InferRequest else (),
            )
            for call in CALLS
        ]
        + [Route("/openapi.json", openapi)],
        middleware=middleware,
        exception_handlers={
            AsyncnnError: _failed,
            Exception: _failed,
            HTTPException: _unknown,
        },
    )
