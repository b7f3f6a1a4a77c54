"""Bodies of cases that do what stress is to find."""

import asyncio
import ctypes
import os
import signal
import socket
import threading

import numpy as np

from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.service.process import peer_of, socket_address
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.stress.place import (
    CountedCallback,
    FaultError,
    NotApplicableError,
    StressPlace,
)


def _begun(place: StressPlace) -> None:
    place.done("began")
    place.report()


async def waits_for_ever(place: StressPlace) -> None:
    _begun(place)
    await asyncio.Event().wait()


async def blocks_for_ever(place: StressPlace) -> None:
    _begun(place)
    threading.Event().wait()


async def crashes(place: StressPlace) -> None:
    _begun(place)
    ctypes.string_at(0)


async def exits(place: StressPlace) -> None:
    _begun(place)
    os._exit(3)


async def finds_a_fault(place: StressPlace) -> None:
    _begun(place)
    raise FaultError("a result is wrong")


async def is_notified_twice(place: StressPlace) -> None:
    _begun(place)
    callback = CountedCallback()
    for _ in range(2):
        callback.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)
    await callback.ended()


async def is_notified_again_later(place: StressPlace) -> None:
    _begun(place)
    callback = CountedCallback()
    callback.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)
    await callback.ended()
    callback.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)


async def ends_early(place: StressPlace) -> None:
    _begun(place)


async def does_not_apply(place: StressPlace) -> None:
    raise NotApplicableError("it has no driver")


async def works(place: StressPlace) -> None:
    while not place.is_over:
        place.done("worked")
        await asyncio.sleep(0.001)


async def adds(place: StressPlace) -> None:
    async with place.opened() as device:
        model = await device.prepare(tiny_addition())
        for number in range(10):
            x = np.full(4, number, np.float32)
            if (await model.run([x, x]))["sum"][0] != 2 * number:
                raise FaultError("a sum is wrong")
            _begun(place)


async def kills_its_driver(place: StressPlace) -> None:
    await adds(place)
    assert place.order.socket is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(socket_address(place.order.socket))
        os.kill(peer_of(connection).pid, signal.SIGKILL)
    await asyncio.Event().wait()
