"""Waiting for what nothing announces."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Let the loop run until a condition holds, for up to so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def cancelled(running: "asyncio.Future[Any]") -> None:
    """Cancel what runs; wait until it has ended for that reason."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
