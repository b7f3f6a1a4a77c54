"""Fixtures of the scheduler's tests."""

import threading
from collections.abc import AsyncIterator

import pytest

from asyncnn.qos import Scheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    scheduler = Scheduler("test-lane", max_pending=8)
    yield scheduler
    await scheduler.aclose()
    names = [thread.name for thread in threading.enumerate()]
    assert "test-lane" not in names
