"""A web application that classifies digits with a driver in another process.

Its page is a field to draw a digit in; programs send images to ``/classify``.
The driver may crash and be replaced at any time; the application stays up. Its
settings come from the environment:

DIGITS_SOCKET   socket of a driver; without it the application starts its own
DIGITS_TIMEOUT  seconds that a request may take, 1 by default
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import asyncnn
from asyncnn.hal.types import DeviceStatus
from asyncnn.tools.demo import MAX_GREY, encode, model_path
from asyncnn.web import CancelOnDisconnect

SIDE = 8
MAX_BODY_BYTES = 4096
SUPERVISION = asyncnn.Supervision(wait=0.5)
PAGE = Path(__file__).parent / "page"
PAGE_FIELDS = {"Content-Security-Policy": "default-src 'self'; img-src data:"}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Stay connected, with the model prepared, while the application runs."""
    socket = os.environ.get("DIGITS_SOCKET")
    async with asyncnn.connect(socket, supervised=SUPERVISION) as device:
        app.state.device = device
        app.state.model = await device.prepare(
            await asyncnn.load_model(model_path("float"))
        )
        app.state.timeout = float(os.environ.get("DIGITS_TIMEOUT", "1"))
        yield


async def classify(request: Request) -> JSONResponse:
    """Answer with the digit that an image shows, and how likely each is.

    The image is JSON, 8 rows of 8 grey levels from 0 to 16, or 64 bytes of them.
    """
    state = request.app.state
    pixels = encode(await _image(request), state.model.inputs[0])
    outputs = await state.model.run(pixels[0], timeout=state.timeout)
    (probabilities,) = next(iter(outputs.values()))
    return JSONResponse(
        {
            "digit": int(probabilities.argmax()),
            "probabilities": [round(float(p), 6) for p in probabilities],
        }
    )


async def page(_: Request) -> FileResponse:
    """Answer with the page to draw on; its scripts are beside it."""
    return FileResponse(PAGE / "index.html", headers=PAGE_FIELDS)


async def health(request: Request) -> JSONResponse:
    """Answer 200 if there is a driver, 503 if not."""
    status = request.app.state.device.hal.get_status()
    available = status is DeviceStatus.AVAILABLE
    return JSONResponse({"device": status.name}, 200 if available else 503)


async def _image(request: Request) -> NDArray[np.uint8]:
    """Return the image in a request, uint8 [1, 8, 8].

    :raises HTTPException: with status 413 or 422 if there is none.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "an image has 64 pixels")
    try:
        if request.headers.get("content-type") == "application/octet-stream":
            image = np.frombuffer(bytes(body), np.uint8)
        else:
            image = np.array(msgspec.json.decode(body, type=list[list[int]]))
        image = image.reshape(1, SIDE, SIDE)
    except (ValueError, msgspec.DecodeError) as error:
        raise HTTPException(422, f"no image of 8 by 8 pixels: {error}") from error
    if image.min() < 0 or image.max() > MAX_GREY:
        raise HTTPException(422, f"a grey level is not within 0 and {MAX_GREY}")
    return image.astype(np.uint8)


async def too_late(_: Request, error: Exception) -> JSONResponse:
    """Answer 504: the driver gave up at the deadline."""
    return JSONResponse({"error": str(error)}, 504)


async def no_driver(_: Request, error: Exception) -> JSONResponse:
    """Answer 503: the driver died, or is not back yet."""
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "1"})


app = Starlette(
    routes=[
        Route("/", page),
        Mount("/page", StaticFiles(directory=PAGE)),
        Route("/classify", classify, methods=["POST"]),
        Route("/health", health),
    ],
    lifespan=lifespan,
    middleware=[Middleware(CancelOnDisconnect)],
    exception_handlers={
        asyncnn.MissedDeadlineTransientError: too_late,
        asyncnn.MissedDeadlinePersistentError: too_late,
        asyncnn.DeviceUnavailableError: no_driver,
    },
)
