"""Middleware for web applications: a request ends when its client has gone.

Servers notify an ASGI application that a client has hung up; frameworks do not look at
that while a handler computes, so that models run on for nobody. `CancelOnDisconnect`
looks, and cancels the handler: what it awaits, a run of a model say, stops at its next
boundary. It knows the protocol alone, and works with each framework and server.

>>> from asyncnn.web import CancelOnDisconnect
>>> async def application(scope, receive, send): ...
>>> application = CancelOnDisconnect(application)

In Starlette and FastAPI: ``app.add_middleware(CancelOnDisconnect)``.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application; what it is called with first is the connection's scope."""

__all__ = ("CLIENT_CLOSED_REQUEST", "CancelOnDisconnect")

CLIENT_CLOSED_REQUEST = 499
"""The status of an answer to nobody, as logs of web servers have it."""

_MOST_AHEAD = 2
_LOOK_AFTER_S = 0.005
"""What is answered sooner is not worth a task that looks for its client's going."""


class CancelOnDisconnect:
    """Cancels what an ASGI application does for a client that hangs up.

    That is by a cancel scope of anyio: what awaits while it cleans up is cancelled
    again, unless it is shielded. The answer has the status `CLIENT_CLOSED_REQUEST`
    then, which only middleware around this one sees; a stream that has begun just ends.
    Background tasks of an answer that was sent are left alone, and so are WebSockets.

    A body is read ahead of the application by two messages at most. Behind a longer one
    that it has not read, no disconnect is seen.

    :param app: the application, or a route of one.
    """

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Have the application handle a connection.

        :raises Exception: what the application raises.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with anyio.CancelScope() as cancelling:
            exchange = _Exchange(receive, send, cancelling)
            try:
                await self.app(scope, exchange.receive, exchange.send)
            finally:
                exchange.close()
        if cancelling.cancel_called and not exchange.has_begun:
            start = {"type": "http.response.start", "status": CLIENT_CLOSED_REQUEST}
            with suppress(OSError):
                await send({**start, "headers": []})
                await send({"type": "http.response.body"})


class _Exchange:
    """A request and its answer, of which requests are received ahead.

    What the application asks for it receives itself. While it does something else for
    some milliseconds, a task receives what is next: the client's going, in the end.
    """

    def __init__(
        self, receive: Receive, send: Send, cancelling: anyio.CancelScope
    ) -> None:
        self._receive, self._send, self._cancelling = receive, send, cancelling
        self._ahead: deque[asyncio.Future[Message]] = deque()
        self._next: asyncio.Future[Message] | None = None
        self._is_receiving = self._is_closed = False
        self.has_begun = self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.Handle | None = None
        self._look_soon()

    def close(self) -> None:
        """Look for nothing any more."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        if self._next is not None:
            self._next.cancel()

    def _look_soon(self) -> None:
        self._looking = self._loop.call_later(_LOOK_AFTER_S, self._look)

    def _look(self) -> None:
        """Receive the next message, unless that is done already, or many are ahead."""
        self._looking = None
        is_idle = self._next is None and not (self._is_receiving or self._is_closed)
        if is_idle and len(self._ahead) < _MOST_AHEAD:
            self._next = asyncio.ensure_future(self._receive())
            self._next.add_done_callback(self._received)

    def _received(self, received: "asyncio.Future[Message]") -> None:
        self._next = None
        if received.cancelled():
            return
        self._ahead.append(received)
        if received.exception() is None and not self._is_end(received.result()):
            self._look()

    def _is_end(self, message: Message) -> bool:
        """Return whether there is nothing behind a message; cancel if it is too soon.

        To servers an answer that was sent is the end of the client, too.
        """
        if message["type"] != "http.disconnect":
            return False
        if not (self._has_ended or self._is_closed):
            self._cancelling.cancel()
        return True

    async def receive(self) -> Message:
        """Return the next message, as the application asks for it."""
        if not self._ahead and self._next is not None:
            await asyncio.wait([self._next])
        self._is_receiving = True
        try:
            if self._ahead:
                message = self._ahead.popleft().result()
            else:
                message = await self._receive()
        finally:
            self._is_receiving = False
            if self._looking is None:
                self._look_soon()
        if self._is_end(message):
            await checkpoint()  # before it reads that nobody is there
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the application's."""
        if message["type"] == "http.response.start":
            self.has_begun = True
        elif message["type"] in ("http.response.body", "http.response.pathsend"):
            self._has_ended = not message.get("more_body", False)
        await self._send(message)
