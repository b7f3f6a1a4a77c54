"""Lies down as often as it can while packets come at the worst moment.

    python tests/fmq/parks.py 1000000

The reader announces that it sleeps as soon as a queue is empty. The writer, in another
process, sees that it is and writes about as long afterwards, so that the packet and the
announcement often cross. A wake-up that is lost would leave the reader asleep until it
looks again; here it does not, and they are counted. What ``test_protocol`` shows for
the protocol, this shows for the machine it runs on.
"""

import argparse
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

from asyncnn.fmq import MessageQueue
from asyncnn.fmq.layout import READER_SLEEPS, WRITTEN
from asyncnn.hal.types import Handle

_LONG_MS = 200
_LONGEST_DELAY = 30
"""Turns of an empty loop, some 10 ns each."""


class Outcome(NamedTuple):
    """Times the reader announced itself, went to sleep and was left asleep."""

    parks: int
    sleeps: int
    lost: int


def count_lost(parks: int) -> Outcome:
    """Go to sleep so many times, or find on the second look that there is no need."""
    cpus = sorted(os.sched_getaffinity(0))
    ours, theirs = socket.socketpair()
    with MessageQueue.create(8, 1) as queue, ours:
        with theirs:
            options = [str(theirs.fileno()), str(cpus[-1])]
            process = subprocess.Popen(
                [sys.executable, __file__, "--write", *options],
                pass_fds=[theirs.fileno()],
            )
        socket.send_fds(ours, [b"queue"], list(queue.descriptor.fds))
        os.sched_setaffinity(0, cpus[:1])
        try:
            return _read(queue, parks)
        finally:
            os.sched_setaffinity(0, cpus)
            process.kill()
            process.wait()


def _read(queue: MessageQueue, parks: int) -> Outcome:
    poll = select.poll()
    poll.register(queue._doorbell.fileno(), select.POLLIN)
    delays = _delays(1)
    announced = sleeps = lost = 0
    while announced < parks:
        seen = queue._word(WRITTEN)
        if queue.read_nowait() is not None:
            for _ in range(next(delays)):
                pass
            continue
        announced += 1
        if queue._announce(READER_SLEEPS, WRITTEN, seen):
            sleeps += 1
            if poll.poll(_LONG_MS):
                queue._doorbell.silence()
            else:
                lost += queue.is_readable()
            queue._withdraw(READER_SLEEPS)
    return Outcome(announced, sleeps, lost)


def _write(queue: MessageQueue) -> None:
    delays = _delays(2)
    while True:
        while not queue.available_to_write():
            pass
        for _ in range(next(delays)):
            pass
        queue.write_nowait(b"packet!\n")


def _delays(seed: int) -> Iterator[int]:
    draw = random.Random(seed)
    return cycle([draw.randrange(_LONGEST_DELAY) for _ in range(997)])


def _opened(fd: int, cpu: int) -> MessageQueue:
    os.sched_setaffinity(0, {cpu})
    with socket.socket(fileno=fd) as end:
        _, fds, _, _ = socket.recv_fds(end, 16, 3)
    return MessageQueue.open(Handle(tuple(fds), (8, 1)))


def main() -> None:
    """Go to sleep as often as the command line says, and tell how it went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parks", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--write", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        _write(_opened(*options.write))
    started = time.perf_counter()
    outcome = count_lost(options.parks)
    seconds = time.perf_counter() - started
    sys.stdout.write(
        f"{outcome.parks} parks, {outcome.sleeps} slept through the second look, "
        f"{outcome.lost} wake-ups lost, {seconds:.0f} s\n"
    )
    sys.exit(bool(outcome.lost))


if __name__ == "__main__":
    main()
