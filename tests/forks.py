"""Runs a piece of a test in a forked child."""

import asyncio
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

LIMIT_S = 20
"""Seconds that a child lives at most."""

_MOST_BYTES = 65536


def in_child_blocking(work: Callable[[], T]) -> T:
    """Return what ``work`` returns in a child, or fail with what it raises there."""
    child, reader = _forked(work)
    try:
        data = os.read(reader, _MOST_BYTES)
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    return _outcome(data)  # type: ignore[no-any-return]


async def in_child(work: Callable[[], T]) -> T:
    """Do what `in_child_blocking` does while the parent's event loop goes on."""
    child, reader = _forked(work)
    os.set_blocking(reader, False)
    try:
        data = await _first_of(reader)
    finally:
        os.close(reader)
        while not os.waitpid(child, os.WNOHANG)[0]:  # noqa: ASYNC110, ASYNC222
            await asyncio.sleep(0.001)
    return _outcome(data)  # type: ignore[no-any-return]


def _forked(work: Callable[[], object]) -> tuple[int, int]:
    """Return the id of a child that does ``work``, and where it tells the outcome."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the parent's time limit
        signal.alarm(LIMIT_S)
        _tell(writer, work)
    os.close(writer)
    return child, reader


def _tell(writer: int, work: Callable[[], object]) -> NoReturn:
    """Do ``work``, tell the outcome and end: nothing of pytest may go on in here."""
    try:
        try:
            data = pickle.dumps(work())
        except BaseException:
            text = traceback.format_exc()[-4000:]
            data = pickle.dumps(AssertionError(f"in the child: {text}"))
        os.write(writer, data)
    finally:
        os._exit(0)


async def _first_of(reader: int) -> bytes:
    """Return what comes first: a small outcome, whole, or nothing at the end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(reader, lambda: ready.done() or ready.set_result(None))
    try:
        async with asyncio.timeout(LIMIT_S + 10):
            await ready
    finally:
        loop.remove_reader(reader)
    return os.read(reader, _MOST_BYTES)


def _outcome(data: bytes) -> Any:
    assert data, "the child has died"
    outcome = pickle.loads(data)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
