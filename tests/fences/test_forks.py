"""A forked child ends no wait of its parent, and can wait by itself."""

import asyncio
import os
import threading

import pytest

from asyncnn.fences import SyncFence
from tests.forks import in_child_blocking


async def wait_for(fence: SyncFence) -> None:
    await fence


@pytest.mark.parametrize("child", ["ends", "waits as well"])
async def test_a_child_does_not_end_the_watch_of_its_parent(child: str) -> None:
    bell = os.eventfd(0)
    fence = SyncFence.from_fd(bell)
    waiting = asyncio.create_task(wait_for(fence))
    await asyncio.sleep(0)

    def act() -> None:
        if child == "ends":
            waiting.get_coro().close()  # type: ignore[union-attr]
        else:
            os.eventfd_write(bell, 1)
            asyncio.run(wait_for(fence))

    in_child_blocking(act)
    if child == "ends":
        os.eventfd_write(bell, 1)
    await asyncio.wait_for(waiting, 20)
    os.close(bell)


def test_descriptors_of_fences_can_be_had_though_others_were_asked_for_meanwhile() -> (
    None
):
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            SyncFence.pair()[0].fileno()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            in_child_blocking(lambda: SyncFence.signalled().fileno())
    finally:
        stop.set()
        thread.join()
