"""Floor 2: sync fences, the one thing that executions wait for.

A fence is an event that happens once. It is signalled or fails, never goes back to
being active, and never stays active because its owner is gone: a source that is
collected, or whose process dies, leaves the error DEVICE_UNAVAILABLE behind.

`SyncFence`
    what is waited for; awaiting it returns None, or raises what it failed with
`FenceSource`
    the only thing that ends it; `SyncFence.pair` makes both
`merge`
    one fence for several: it is signalled once all of them are
`FenceState`
    active, signalled, error, or unknown of a fence that was closed
`Producer`
    what ends a fence in another process, and passes its descriptor on

Any number of tasks, threads and processes wait for a fence: tasks await it, or await
`SyncFence.wait` with a timeout in seconds; threads without a loop call
`SyncFence.wait_blocking`; other processes poll its descriptor. A source may be used
from any thread, and its first call decides. Callbacks of `SyncFence.add_done_callback`
run on the loop that added them. `SyncFence.signalled_at_ns` is nanoseconds of the
steady clock, `time.monotonic_ns`. A cancelled waiter leaves the fence, and the others
that wait for it, as they are.

Within a process a fence is plain state, without descriptor or thread. The descriptor
comes into being when `SyncFence.fileno` or `SyncFence.handle` asks for it, and is the
fence's own: duplicate it to keep it. `SyncFence.from_fd` takes in fences of other
makers, duplicating theirs. A fence is closed with the last reference to it, or earlier
by `SyncFence.close` or its context.

Awaiting a failed fence raises the `AsyncnnError` of its status, with the reason that
the source gave; a wait that times out raises `TimeoutError`. A closed fence refuses all
use with `InvalidArgumentError`. Asking for a descriptor raises
`ResourceExhaustedTransientError` if these have run out, and blocking a thread whose
event loop runs raises `RuntimeError`.

>>> import asyncio
>>> import threading
>>> from asyncnn import AsyncnnError, ErrorStatus
>>> from asyncnn.fences import SyncFence, merge
>>> async def main():
...     camera, captured = SyncFence.pair()
...     model, computed = SyncFence.pair()
...     both = merge(camera, model)
...     threading.Timer(0.01, captured.signal).start()
...     await camera.wait(timeout=5)
...     computed.fail(ErrorStatus.GENERAL_FAILURE, "the lens is covered")
...     try:
...         await both
...     except AsyncnnError as error:
...         return camera.state, both.status.name, error.message
>>> asyncio.run(main())
(<FenceState.SIGNALLED: 'signalled'>, 'GENERAL_FAILURE', 'the lens is covered')
"""

from asyncnn.fences.core import FenceState, Producer
from asyncnn.fences.fence import FenceSource, SyncFence, merge

__all__ = ("FenceSource", "FenceState", "Producer", "SyncFence", "merge")
