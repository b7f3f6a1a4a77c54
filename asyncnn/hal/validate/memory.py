"""Checks memory pools: rule M14.

Source: HAL 1.0/types.hal (hidl_memory) and the pool names that its drivers agree on.
"""

from asyncnn.hal.types import HalVersion, Memory
from asyncnn.hal.validate.wording import brief, broken

_SINCE = {
    "ashmem": HalVersion.V1_0,
    "mmap_fd": HalVersion.V1_0,
    "hardware_buffer_blob": HalVersion.V1_2,
    "hardware_buffer": HalVersion.V1_2,
}
HARDWARE_BUFFER = "hardware_buffer"
"""Name of pools that have no linear bytes; they are only ever used as a whole."""


def validate_memory(
    memory: Memory, version: HalVersion = HalVersion.AIDL_V4, *, rule: str = "M14"
) -> None:
    """Check the name, size and handle of a pool.

    :raises InvalidArgumentError: if it is no pool of the HAL of this version, or has
        fewer bytes than its size claims.
    """
    if memory.name not in _SINCE:
        raise broken(rule, f"{brief(memory.name)} is not a kind of pool")
    if version < _SINCE[memory.name]:
        raise broken(rule, f"{version.name} has no pools of kind {memory.name}")
    if not isinstance(memory.size, int) or memory.size < 0:
        raise broken(rule, f"the size of the pool is {brief(memory.size)}")
    if memory.buffer is None:
        if not memory.handle.fds:
            raise broken(rule, f"the {memory.name} pool has no handle")
    elif memory.buffer.nbytes < memory.size:
        raise broken(
            rule,
            f"the pool of {brief(memory.size)} bytes has only {memory.buffer.nbytes}",
        )
