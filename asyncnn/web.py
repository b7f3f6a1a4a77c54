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

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Self, TypeAlias

import anyio

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application; what it is called with first is the connection's scope."""

__all__ = ("CLIENT_CLOSED_REQUEST", "CancelOnDisconnect")

CLIENT_CLOSED_REQUEST = 499
"""The status of an answer to nobody, as logs of web servers have it."""


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
        failure: BaseException | None = None
        with _Exchange(receive, send) as exchange:
            async with anyio.create_task_group() as group:
                group.start_soon(exchange.watch, group.cancel_scope)
                try:
                    await self.app(scope, exchange.receive, exchange.send)
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:  # the group would wrap it
                    failure = error
                group.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        if exchange.is_abandoned and not exchange.has_begun:
            start = {"type": "http.response.start", "status": CLIENT_CLOSED_REQUEST}
            with suppress(OSError):
                await send({**start, "headers": []})
                await send({"type": "http.response.body"})


class _Exchange:
    """A request and its answer, of which requests are received ahead."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._ahead, self._taken = anyio.create_memory_object_stream[Message](1)
        self.has_begun = self.has_ended = self.is_abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()
        self._taken.close()

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel ``scope`` if the client goes before it has its answer."""
        while (message := await self._receive())["type"] != "http.disconnect":
            await self._ahead.send(message)
        # To servers an answer that was sent is the end of the client, too.
        if not self.has_ended:
            self.is_abandoned = True
            scope.cancel()  # before the application reads that nobody is there
        self._ahead.close()

    async def receive(self) -> Message:
        """Return the next message, as the application asks for it."""
        try:
            return await self._taken.receive()
        except anyio.EndOfStream:
            return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a message of the application's."""
        if message["type"] == "http.response.start":
            self.has_begun = True
        elif message["type"] in ("http.response.body", "http.response.pathsend"):
            self.has_ended = not message.get("more_body", False)
        await self._send(message)
