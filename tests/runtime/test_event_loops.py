"""The options ``--loop`` and ``--eager`` hold for what the tests wait on."""

import asyncio

import pytest


async def test_the_loop_is_the_one_that_was_chosen(pytestconfig: pytest.Config) -> None:
    module = type(asyncio.get_running_loop()).__module__
    assert module.partition(".")[0] == pytestconfig.getoption("--loop")


async def test_tasks_begin_at_once_if_that_was_chosen(
    pytestconfig: pytest.Config,
) -> None:
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()

    task = asyncio.create_task(begin())
    assert begun.is_set() == pytestconfig.getoption("--eager")
    await task
