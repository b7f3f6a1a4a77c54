"""A small HTTP/1.1 server for figures and pages, on the loop that entered its context.

It answers GET and HEAD, one request on each connection, and knows nothing of what the
answers say. A peer is not trusted: what it may send, how long that may take and how
many connections there are at a time is bounded. Where there is no place left, the peer
that the server has waited for longest, for the rest of a request or for an answer to be
taken, loses its own to the next one. Peers are not distinguished: all that are of this
machine have one address.

A page of another site may have its own name resolve to this machine once it is loaded
(DNS rebinding), and its scripts may then read what is answered here. What is not for
everybody therefore has ``only_for_names``: requests that name another host are refused.
"""

import asyncio
import email.message
import email.parser
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Self, TypeAlias

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.stapled import MultiListener

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.logs import SparseLogger

_log = SparseLogger(logging.getLogger(__name__))

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 32
"""More wait in the system's queue until one makes room."""

_EVERYWHERE = ("0.0.0.0", "::")
_MAX_REQUEST_BYTES = 16 * 1024
_LEAST_TIME_S = 0.05
"""For a request to come, and for its answer to be taken, whoever else comes."""
_PAUSE_S = 0.1
_BACKLOG = 1024


class HttpRequest(msgspec.Struct, frozen=True):
    """What is asked for; ``path`` has no query."""

    method: str
    path: str
    fields: email.message.Message

    @property
    def host(self) -> str | None:
        """The host that the request names, without its port; None if it names none."""
        fields = self.fields.get_all("Host", ())
        if len(fields) != 1:
            return None
        name = str(fields[0]).strip()
        bracket = name.find("]")
        if name.startswith("[") and bracket > 0:
            return name[1:bracket]
        return name.partition(":")[0].lower() or None


class HttpResponse(msgspec.Struct, frozen=True):
    """An answer. Its length, and that no other follows, is added when it is sent."""

    status: HTTPStatus
    fields: Mapping[str, str] = {}
    body: bytes = b""

    def encoded(self, *, with_body: bool) -> bytes:
        """Return the bytes to send; an answer to HEAD goes without the body."""
        own = {"Content-Length": str(len(self.body)), "Connection": "close"}
        fields = {**own, **self.fields}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n{lines}\r\n"
        return head.encode("latin-1") + (self.body if with_body else b"")


Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Has ``answer`` answer what is asked at ``host`` and ``port``.

    If that raises, it is logged, and the peer learns no more than that.

    A context manager. With port 0 the system chooses one; `port` says which. Leaving
    the context hangs up on all clients.

    :param host: an address or name of this machine; ``0.0.0.0`` and ``::`` are all.
    :param timeout_s: for a request to come and its answer to be taken.
    :param only_for_names: names by which requests may call this host besides its own,
        ``localhost`` and addresses, which nobody can have resolve to another; None
        lets them call it as they like.
    :raises InvalidArgumentError: if ``port`` is no port.
    :raises OSError: on entering, if the port is taken or ``host`` is not of this
        machine.
    """

    def __init__(
        self,
        answer: Answer,
        port: int = 0,
        *,
        host: str = LOOPBACK,
        timeout_s: float = 5.0,
        only_for_names: Collection[str] | None = None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise InvalidArgumentError(f"{port} is no port")
        self._answer = answer
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._names = only_for_names
        self._listeners: MultiListener[SocketStream]
        self._serving: asyncio.Task[None]
        self._connections: set[anyio.CancelScope] = set()
        self._waiting: dict[anyio.CancelScope, float] = {}
        self._left = anyio.Event()

    @property
    def port(self) -> int:
        """The port, that which was chosen while the context is entered."""
        return self._port

    @property
    def connections(self) -> int:
        """Number of clients that are connected."""
        return len(self._connections)

    @property
    def url(self) -> str:
        """Where the server is, while the context is entered; without a slash."""
        host = socket.gethostname() if self._host in _EVERYWHERE else self._host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        self._listeners = await anyio.create_tcp_listener(
            local_host=self._host, local_port=self._port, backlog=_BACKLOG
        )
        self._port = self._listeners.extra(SocketAttribute.local_port)
        # A task of its own, as another may leave the context than has entered it.
        self._serving = asyncio.get_running_loop().create_task(self._serve_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._listeners:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    async def _serve_all(self) -> None:
        async with anyio.create_task_group() as group:
            for listener in self._listeners.listeners:
                assert isinstance(listener, SocketListener)
                group.start_soon(self._accept, listener, group)

    async def _accept(self, listener: SocketListener, group: TaskGroup) -> None:
        while True:
            # All who are there would be accepted in one turn of the loop: more than
            # there is room for, before the first of them is read from.
            await anyio.wait_readable(listener.extra(SocketAttribute.raw_socket))
            await self._make_room()
            try:
                peer = await listener.accept()
            except OSError as error:  # too few descriptors, or it has gone
                _log.log(logging.WARNING, "nobody is accepted: %s", error)
                await anyio.sleep(_PAUSE_S)
                continue
            scope = anyio.CancelScope()
            self._connections.add(scope)
            group.start_soon(self._serve, peer, scope)

    async def _make_room(self) -> None:
        """Wait until there is room; hang up on the peer that is waited for longest.

        Not before it has had its least time: others may come faster than requests do.
        """
        while len(self._connections) >= MAX_CONNECTIONS:
            longest = next(iter(self._waiting), None)
            now = anyio.current_time()
            if longest and now >= self._waiting[longest] + _LEAST_TIME_S:
                del self._waiting[longest]
                longest.cancel()
            with anyio.move_on_after(_LEAST_TIME_S):
                await self._left.wait()

    async def _serve(self, peer: SocketStream, scope: anyio.CancelScope) -> None:
        """Answer one request and hang up."""
        errors = anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError
        scope.deadline = anyio.current_time() + self._timeout_s
        try:
            with scope, suppress(*errors):
                answer = await self._respond(peer, scope)
                with self._waiting_for_peer(scope):
                    await peer.send(answer)
        finally:
            self._connections.discard(scope)
            self._left.set()
            self._left = anyio.Event()
            await anyio.aclose_forcefully(peer)

    @contextmanager
    def _waiting_for_peer(self, scope: anyio.CancelScope) -> Iterator[None]:
        self._waiting[scope] = anyio.current_time()
        try:
            yield
        finally:
            self._waiting.pop(scope, None)

    async def _respond(self, peer: SocketStream, scope: anyio.CancelScope) -> bytes:
        try:
            with self._waiting_for_peer(scope):
                head = await BufferedByteReceiveStream(peer).receive_until(
                    b"\r\n\r\n", _MAX_REQUEST_BYTES
                )
        except anyio.DelimiterNotFound:
            refused = HttpResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return refused.encoded(with_body=False)
        request = _parsed(head)
        response = self._refusal(request)
        if request is None or response is not None:
            assert response is not None
            return response.encoded(with_body=True)
        try:
            response = await self._answer(request)
        except Exception as error:
            _log.log(logging.ERROR, "a request is not answered", error=error)
            response = HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR)
        return response.encoded(with_body=request.method != "HEAD")

    def _refusal(self, request: HttpRequest | None) -> HttpResponse | None:
        """Return the answer to what is refused whatever it asks for, else None."""
        if request is None:
            return HttpResponse(HTTPStatus.BAD_REQUEST)
        if request.method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, allowed)
        if self._names is not None and not _is_own(request.host, self._names):
            return HttpResponse(HTTPStatus.MISDIRECTED_REQUEST)
        return None


def _parsed(head: bytes) -> HttpRequest | None:
    """Return what is asked for, None if it is not HTTP/1."""
    line, _, lines = head.decode("latin-1").partition("\r\n")
    match line.split(" "):
        case [method, target, "HTTP/1.0" | "HTTP/1.1"]:
            fields = email.parser.HeaderParser().parsestr(lines)
            return HttpRequest(method, target.partition("?")[0], fields)
    return None


def _is_own(host: str | None, names: Collection[str]) -> bool:
    """Return whether ``host`` is no foreign name that resolves to this machine."""
    if host is None:
        return False
    if host in {"localhost", socket.gethostname().lower(), *names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
