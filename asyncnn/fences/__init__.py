"""Floor 2: sync fences, the one thing that executions wait for. Knows no models.

`SyncFence.pair` makes a fence and the `FenceSource` that signals it. Within a process
that is plain state: no descriptor, no thread. The descriptor that other processes wait
on comes into being when it is asked for (`SyncFence.fileno`), and polls as readable
once the fence is done. Fences of other makers are taken in with `SyncFence.from_fd`.

A fence never goes back to being active, and never hangs because its owner is gone: a
source that is collected, or whose process dies, leaves an error behind.
"""

from asyncnn.fences.core import FenceState, Producer
from asyncnn.fences.fence import FenceSource, SyncFence, merge

__all__ = ("FenceSource", "FenceState", "Producer", "SyncFence", "merge")
