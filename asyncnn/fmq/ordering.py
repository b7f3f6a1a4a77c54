"""Why two processes may share a queue without locks, and where they may not.

A queue makes two demands on the order in which memory changes become visible.

*Publishing.* Whoever sees a counter must see what was done before it was stored: the
bytes of a packet before ``WRITTEN`` covers them, and the last load of a packet before
``READ`` gives its bytes back to the writer.

*Waking.* Whoever goes to sleep stores its announcement and then loads the counter; the
peer stores the counter and then loads the announcement. At least one of them must see
the other's store, or a packet lies there while its reader sleeps.

*Compiled.* ``_ring.c`` asks for both by name. Counters and announcements are atomic,
stored with release and loaded with acquire semantics, which is publishing; a
sequentially consistent fence stands between the store and the load of waking. By C11's
rules one of the two fences comes first, and who comes second sees what was stored
before it. On aarch64 that makes ``stlr``, ``ldar`` or ``ldapr``, and ``dmb ish``; on
x86-64 plain moves and a locked instruction or ``mfence``.

*In Python* there is no asking, so ``ring`` needs a processor that does it unasked. On
x86-64 memory is in total store order: loads are not reordered with loads, stores not
with stores, and no store moves before an older load. That is all that publishing needs.
An item of an aligned ``memoryview`` of format ``Q`` is loaded and stored by a single
``mov``, so a counter is never torn. Bytes are copied by the C library, which ends
non-temporal stores with a fence of its own; string instructions may store out of order
among themselves, but never after a later store to another place.

The one thing this order leaves open is a load that overtakes an older store to another
address, which waits in the processor's store buffer: just what waking forbids. A locked
instruction in between drains the buffer. Taking an uncontended ``threading.Lock`` runs
one, and it is what pure Python has to offer; every lock here belongs to one end, so it
is uncontended but for threads that share that end. Without it about one sleep in two
thousand was seen to miss its packet. ``tests/fmq/test_protocol.py`` explores all
interleavings under this model, with the fence and without.

That argument rests on the interpreter storing an item at once and in program order. As
a second line of defence every sleeper looks again a few milliseconds after it lay down,
which bounds the cost of a wake-up that is lost for a reason not foreseen here. Once is
enough: a store leaves the buffer within microseconds, so whatever is written later
meets the announcement.

On aarch64 plain stores may become visible in any order: a reader could see the counter
before the bytes. There, and wherever nothing is known, a queue without the compiled
ring refuses to open rather than be right most of the time.
"""

import platform
import sys

from asyncnn.fmq import built
from asyncnn.fmq.errors import MemoryOrderError

_TOTAL_STORE_ORDER = frozenset({"x86_64", "AMD64"})


def check_platform() -> None:
    """Check that the argument of this module holds on this platform.

    :raises MemoryOrderError: if it does not.
    """
    if sys.platform != "linux":
        raise MemoryOrderError(f"queues need Linux, this is {sys.platform}")
    if built.IS_COMPILED:
        return
    machine, python = platform.machine(), platform.python_implementation()
    if machine not in _TOTAL_STORE_ORDER:
        raise MemoryOrderError(
            f"plain loads and stores of {machine} are not ordered",
            hint="executions go by socket; with a C compiler asyncnn builds a ring "
            "that works here",
        )
    if python != "CPython":
        raise MemoryOrderError(f"nothing is known of how {python} orders its stores")
