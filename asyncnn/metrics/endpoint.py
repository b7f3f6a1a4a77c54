"""Metrics over HTTP, for Prometheus to scrape."""

import asyncio
import contextlib
import email.parser
import logging
from http import HTTPStatus
from typing import NamedTuple, Self

from prometheus_client.exposition import choose_encoder

from asyncnn.devices import IMeasured
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.metrics.families import registry_of

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
PATH = "/metrics"
MAX_CONNECTIONS = 32
"""More are hung up on."""

_MAX_REQUEST_BYTES = 16 * 1024
_TIMEOUT_S = 5.0
"""For a request to come and its answer to be taken."""


class MetricsEndpoint:
    """Answers ``GET /metrics`` on 127.0.0.1 with the numbers of ``device``.

    A context manager. With port 0 the system chooses one; `url` says which. Every user
    of this machine can read them, whereas a driver's socket tells them to its own user.

    :raises InvalidArgumentError: if ``port`` is no port.
    :raises OSError: on entering, if the port is taken.
    """

    def __init__(self, device: IMeasured, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise InvalidArgumentError(f"{port} is no port")
        self._device = device
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where the metrics are, while the context is entered."""
        return f"http://{HOST}:{self._port}{PATH}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, HOST, self._port, limit=_MAX_REQUEST_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request and hang up."""
        peer_errors = (asyncio.IncompleteReadError, TimeoutError, ConnectionError)
        try:
            with contextlib.suppress(*peer_errors):
                async with asyncio.timeout(_TIMEOUT_S):
                    writer.write(await self._answer(reader))
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request = _parsed(head)
        if request is None:
            return _response(HTTPStatus.BAD_REQUEST)
        if request.method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        if request.path != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        try:
            statistics = await self._device.get_statistics()
        except AsyncnnError as error:
            logger.warning("no metrics: %s", error)
            return _response(HTTPStatus.SERVICE_UNAVAILABLE)
        encode, content_type = choose_encoder(request.accept)
        body = encode(registry_of(statistics))
        answer = _response(HTTPStatus.OK, {"Content-Type": content_type}, body)
        return answer[: -len(body)] if request.method == "HEAD" else answer


class _Request(NamedTuple):
    method: str
    path: str
    accept: str


def _parsed(head: bytes) -> _Request | None:
    """Return what is asked for, None if it is not HTTP/1."""
    line, _, headers = head.decode("latin-1").partition("\r\n")
    match line.split(" "):
        case [method, target, "HTTP/1.0" | "HTTP/1.1"]:
            fields = email.parser.HeaderParser().parsestr(headers)
            return _Request(method, target.partition("?")[0], fields["Accept"] or "")
    return None


def _response(
    status: HTTPStatus, headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    fields = {"Content-Length": len(body), "Connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n"
    return head.encode("latin-1") + body
