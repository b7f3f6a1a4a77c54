"""Web applications that compute without end, for `tests.test_web` to serve."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import asyncnn
from asyncnn.web import CancelOnDisconnect
from tests.networks import AT_ONCE, FOREVER, counting_up


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[dict[str, Any]]:
    async with asyncnn.connect(os.environ["DRIVER"]) as device:
        urgent = asyncnn.Priority.HIGH
        yield {
            "model": await device.prepare(counting_up()),
            "urgent": await device.prepare(counting_up(), priority=urgent),
        }


async def computing(model: asyncnn.PreparedModel) -> None:
    while True:
        with suppress(asyncnn.MissedDeadlineError):  # of the loop in it, after 2 s
            await model.run(FOREVER)


async def endless(request: Request) -> Response:
    await request.body()
    await computing(request.state.model)
    raise AssertionError("it has ended")


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[str]:
        yield "begun"
        await computing(request.state.model)

    return StreamingResponse(parts())


async def burst(request: Request) -> Response:
    async with request.state.model.burst() as opened:
        while True:
            with suppress(asyncnn.ExecutionFailedError):  # its packets say no more
                await opened.run(FOREVER)


async def upload(request: Request) -> Response:
    await computing(await request.json())
    raise AssertionError("it has come")


async def quick(request: Request) -> Response:
    outputs = await request.state.urgent.run(AT_ONCE)
    return PlainTextResponse(str(outputs))


async def passing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


ENDING = Middleware(CancelOnDisconnect)
PASSING = Middleware(BaseHTTPMiddleware, dispatch=passing)
LONG = (endless, stream, burst, upload)


def application(
    *middleware: Middleware, for_routes: tuple[Middleware, ...] = ()
) -> Any:
    methods = ["GET", "POST"]
    routes = [
        Route(f"/{each.__name__}", each, methods=methods, middleware=for_routes)
        for each in LONG
    ]
    routes.append(Route("/quick", quick))
    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


starlette = application(ENDING)
inside = application(PASSING, ENDING)
outside = application(ENDING, PASSING)
of_routes = application(for_routes=(ENDING,))


class Plain:
    """An application of no framework."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with lifespan(self) as self._state:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["path"] == "/endless":
            await computing(self._state["model"])
        await self._state["urgent"].run(AT_ONCE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


plain = CancelOnDisconnect(Plain())
