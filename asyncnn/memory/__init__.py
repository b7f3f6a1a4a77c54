"""Floor 2: memory pools and how they are mapped. Knows nothing of models.

A client makes pools (`allocate` and its kin, `map_file`, `from_buffer`) and sends them
with `shareable`. A driver receives them with one `Mapper` for each connection: it calls
`Mapper.map` for the pools of every request and `Mapper.flush` for the spans it wrote,
and so never touches memory that a client could take away beneath it. Buffers that a
device keeps for its clients are in `asyncnn.memory.managed`.
"""

from asyncnn.memory.limits import MapperStatistics, MappingPolicy
from asyncnn.memory.mapping import Mapper
from asyncnn.memory.pools import as_array, from_buffer, map_file, part_of, view
from asyncnn.memory.shared import allocate, allocate_blob, shareable
from asyncnn.memory.slabs import shared_array

__all__ = (
    "Mapper",
    "MapperStatistics",
    "MappingPolicy",
    "allocate",
    "allocate_blob",
    "as_array",
    "from_buffer",
    "map_file",
    "part_of",
    "shareable",
    "shared_array",
    "view",
)
