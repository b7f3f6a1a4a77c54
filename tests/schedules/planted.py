"""Faults that schedules have to find: each breaks one promise, only now and then."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from asyncnn.fences import core
from asyncnn.fences.core import Gate
from asyncnn.qos import run_queue
from asyncnn.qos.lanes import Lanes
from asyncnn.qos.native_lanes import LoopInbox
from asyncnn.qos.scheduler import Scheduler
from asyncnn.qos.work import RUNNING, Work
from asyncnn.service.channel import Channel


def _loses_an_end() -> None:
    put = LoopInbox.put

    def unless_due(inbox: LoopInbox, work: Work) -> None:
        if not inbox.is_due:
            put(inbox, work)

    _replace(LoopInbox, "put", unless_due)


def _ends_twice() -> None:
    take_out = Lanes._take_out

    def always(lanes: Lanes, work: Work) -> bool:
        runs = work.state is RUNNING
        return take_out(lanes, work) or runs

    _replace(Lanes, "_take_out", always)


def _forgets_priorities() -> None:
    _replace(run_queue, "_DESCENDING", run_queue._DESCENDING[::-1])


def _forgets_a_deadline() -> None:
    _replace(Scheduler, "_watch_over", lambda *_: None)


def _opens_after_its_close() -> None:
    _replace(Gate, "close", lambda _: None)


def _wakes_nobody_elsewhere() -> None:
    wake = core._wake

    def here_alone(futures: Iterable[Any]) -> None:
        if asyncio._get_running_loop() is not None:
            wake(futures)

    _replace(core, "_wake", here_alone)


def _loses_a_message() -> None:
    send, sent = Channel.send, WeakKeyDictionary[Channel[Any], int]()

    def most(channel: Channel[Any], data: Any, fds: Any = ()) -> None:
        sent[channel] = sent.get(channel, 0) + 1
        if sent[channel] % 8:
            send(channel, data, fds)

    _replace(Channel, "send", most)


def _replace(owner: object, name: str, by: object) -> None:
    setattr(owner, name, by)


PLANTED: dict[str, tuple[str, Callable[[], None]]] = {
    "loses-an-end": ("scheduler", _loses_an_end),
    "ends-twice": ("scheduler", _ends_twice),
    "forgets-priorities": ("scheduler", _forgets_priorities),
    "forgets-a-deadline": ("scheduler", _forgets_a_deadline),
    "opens-after-its-close": ("fences", _opens_after_its_close),
    "wakes-nobody-elsewhere": ("fences", _wakes_nobody_elsewhere),
    "loses-a-message": ("remote", _loses_a_message),
}
"""By name: the scenario that finds it, and what plants it in this process."""
