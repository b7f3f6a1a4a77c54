"""Floor 2: memory pools and how they are mapped. Knows nothing of models.

A pool (`asyncnn.hal.Memory`) is the HAL's word for memory that tensors lie in.
`asyncnn.shared_array` is all that most applications need of this.

`allocate`
    a new pool that other processes can map, or with `allocate_blob` a hardware buffer;
    `map_file` and `from_buffer` make pools of what there is already
`as_array`
    an array over the bytes of a pool; `view` has the plain bytes, `part_of` a pool of
    some of them
`shared_array`
    an array in such memory, which drivers use where it is instead of copying it
`posix_array`, `FrameQueue`
    named POSIX shared memory, for programs that know nothing of this project
`Mapper`
    the driver's side: maps the pools that a client sends, within a `MappingPolicy`

Sizes, offsets and lengths are bytes. A pool owns its descriptor, which closes with it;
the mapping goes with the last array or view of it, on whichever thread. None of these
needs an event loop, and a `Mapper` may be used from any thread. `shareable` returns a
pool that can be sent: the same one if it has a descriptor, else a copy.

The file beneath a pool of one's own is trusted: `map_file` must not be given one that
shrinks meanwhile. What models and caches are read from is not trusted so, but copied
into memory that is sealed, or of this process (`asyncnn.memory.shared.FileReader`).

A driver has no such trust. It calls `Mapper.map` for the pools of each request and
`Mapper.flush` for what it wrote: files that a client could truncate are copied, all
others mapped once. `Mapper.close` is final, except that memory in use
goes with its last user; `MapperStatistics` has what there is.

`InvalidArgumentError` stands for sizes and spans that do not fit,
`GeneralFailureError` for files and handles that cannot be mapped, and
`ResourceExhaustedTransientError` for memory or descriptors that have run out. Beyond a
limit of its policy a mapper raises that as well, or
`ResourceExhaustedPersistentError` if one pool alone exceeds it.

>>> import numpy as np
>>> from asyncnn.hal import Memory
>>> from asyncnn.memory import Mapper, MappingPolicy, allocate, as_array, part_of
>>> pool = allocate(16)
>>> x = as_array(pool, np.float32, (2, 2))
>>> x[:] = [[1, 2], [3, 4]]
>>> as_array(part_of(pool, 8, 8), np.float32, (2,))
array([3., 4.], dtype=float32)

What a driver does with the same pool, of which it got a descriptor:

>>> with Mapper(MappingPolicy(max_pools=8)) as mapper:
...     mapped = mapper.map(Memory(pool.name, pool.size, pool.handle))
...     as_array(mapped, np.float32, (2, 2))[:] *= 2
...     mapper.flush(mapped)
>>> x.tolist()
[[2.0, 4.0], [6.0, 8.0]]

Buffers that a device keeps for its clients are in `asyncnn.memory.managed`.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.memory.frame_queue import FrameQueue as FrameQueue
    from asyncnn.memory.frame_writer import FrameWriter as FrameWriter
    from asyncnn.memory.limits import MapperStatistics as MapperStatistics
    from asyncnn.memory.limits import MappingPolicy as MappingPolicy
    from asyncnn.memory.mapping import Mapper as Mapper
    from asyncnn.memory.pools import as_array as as_array
    from asyncnn.memory.pools import from_buffer as from_buffer
    from asyncnn.memory.pools import map_file as map_file
    from asyncnn.memory.pools import part_of as part_of
    from asyncnn.memory.pools import view as view
    from asyncnn.memory.posix_memory import open_posix_array as open_posix_array
    from asyncnn.memory.posix_memory import posix_array as posix_array
    from asyncnn.memory.shared import allocate as allocate
    from asyncnn.memory.shared import allocate_blob as allocate_blob
    from asyncnn.memory.shared import shareable as shareable
    from asyncnn.memory.slabs import shared_array as shared_array
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.memory.frame_queue": "FrameQueue",
            "asyncnn.memory.frame_writer": "FrameWriter",
            "asyncnn.memory.limits": "MapperStatistics MappingPolicy",
            "asyncnn.memory.mapping": "Mapper",
            "asyncnn.memory.pools": "as_array from_buffer map_file part_of view",
            "asyncnn.memory.posix_memory": "open_posix_array posix_array",
            "asyncnn.memory.shared": "allocate allocate_blob shareable",
            "asyncnn.memory.slabs": "shared_array",
        },
    )
