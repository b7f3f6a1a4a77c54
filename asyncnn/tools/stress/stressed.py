"""A process under stress; this module is run by name.

It does what an `StressOrder` says, writes a line of JSON, a `Beat`, now and then when
something was verified, and dies with the process that started it. SIGUSR1 has it write
the stacks of its tasks and threads to standard error, and end.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import traceback
from types import FrameType

import msgspec

from asyncnn.devices.own_devices import imported
from asyncnn.tools.stress.place import (
    Body,
    CountedCallback,
    NotApplicableError,
    StressOrder,
    StressPlace,
    StressSpan,
)

FAILED = 1
"""What a process ends with whose body found a fault."""


def _end_with_stacks(number: int, frame: FrameType | None) -> None:
    """Write the stacks of all tasks, and die, so that threads' are written."""
    for each in gc.get_objects():  # the loops of other threads have some as well
        if isinstance(each, asyncio.Task):
            each.print_stack(file=sys.stderr)
    sys.stderr.flush()
    os.abort()


def _die_with_parent() -> None:
    """End once standard input has: whoever watches holds its other end."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def main(text: str) -> int:
    """Do what an order says; return the exit status."""
    order = msgspec.json.decode(text, type=StressOrder)
    output = os.dup(1)
    os.dup2(2, 1)  # libraries may write there
    os.write(output, b"{}\n")
    span = msgspec.json.decode(os.read(sys.stdin.fileno(), 4096), type=StressSpan)
    place = StressPlace(order, span, output)
    signal.signal(signal.SIGUSR1, _end_with_stacks)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        body: Body = imported(order.body)
        asyncio.run(body(place))
        CountedCallback.check()  # some may have been notified again much later
        place.report()
    except NotApplicableError as reason:
        place.report(str(reason), is_skipped=True)
    except BaseException as error:
        traceback.print_exc()
        reasons = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        place.report("; ".join(f"{type(each).__name__}: {each}" for each in reasons))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
