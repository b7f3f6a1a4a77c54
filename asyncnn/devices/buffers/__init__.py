"""Device-managed buffers: allocation, use in requests, copies from and to pools.

Source: HAL 1.3/IDevice.hal (allocate), 1.3/IBuffer.hal.
"""

from asyncnn.devices.buffers.table import Buffers, ModelBuffers
from asyncnn.devices.buffers.use import BufferUse

__all__ = ("BufferUse", "Buffers", "ModelBuffers")
