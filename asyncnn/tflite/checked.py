"""Files that have been read and checked, and that nobody can change.

Loading a file and preparing it need the same of it. In one process it is read once;
what was found is kept as long as the memory of the file, by where that lies.
"""

import weakref

from asyncnn.hal.types import Memory
from asyncnn.memory.handles import is_immutable, seals_of, span_of
from asyncnn.tflite.tables import Contents

_known: dict[tuple[int, int], Contents] = {}
"""By the addresses and sizes of files. Contents refer to their file, so that no other
one comes to lie there.
"""


def keep(memory: Memory, address: int, contents: Contents) -> None:
    """Keep what was found sound in ``memory``, which begins at ``address``.

    Nothing is kept of memory that somebody could write to.
    """
    if memory.buffer is None or not memory.handle.fds:
        return
    if not is_immutable(seals_of(span_of(memory).fd)):
        return
    place = address, memory.size
    _known[place] = contents
    weakref.finalize(memory, _known.pop, place, None).atexit = False


def found(address: int, size: int) -> Contents | None:
    """Return what was found in a file of ``size`` bytes, if it is kept."""
    return _known.get((address, size))
