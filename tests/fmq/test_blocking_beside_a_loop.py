"""A thread that blocks at an end of a queue to which an event loop listens, too."""

import asyncio
import threading

import pytest

from asyncnn.fmq import MessageQueue
from asyncnn.fmq import queue as queue_module


async def test_the_loop_leaves_the_ring_to_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A sleeper that has lost its ring would only look again after this.
    monkeypatch.setattr(queue_module, "RECHECK_S", 60)
    loop = asyncio.get_running_loop()
    with (
        MessageQueue.create(4, 8) as reader,
        MessageQueue.open(reader.descriptor) as writer,
    ):
        reader.is_local = writer.is_local = False
        monkeypatch.setattr(writer, "_wake_peer", writer._peer_doorbell.ring)
        waiting = asyncio.create_task(reader.read(spins=False))
        await asyncio.sleep(0.01)  # it sleeps, so that the loop listens
        writer.write_nowait(b"once")
        assert await waiting == b"once"
        announce = reader._announce

        def announce_and_let_the_loop_look(*args: int) -> bool:
            announced = announce(*args)
            writer.write_nowait(b"more")
            looked = threading.Event()
            for _ in range(3):
                looked.clear()
                loop.call_soon_threadsafe(looked.set)
                assert looked.wait(20)
            return announced

        monkeypatch.setattr(reader, "_announce", announce_and_let_the_loop_look)
        async with asyncio.timeout(20):
            read = await asyncio.to_thread(reader.read_blocking, timeout=30)
        assert read == b"more"
