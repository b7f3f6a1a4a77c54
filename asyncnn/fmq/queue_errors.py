"""What can go wrong with a queue, one class for each cause.

A file of its own because everything in this folder raises some of them.
"""

from asyncnn.hal.errors import BusyError, DeviceClosedError, GeneralFailureError


class MemoryOrderError(GeneralFailureError):
    """This platform does not order memory the way a queue needs."""


class QueueClosedError(DeviceClosedError):
    """This end of the queue was closed by its own process."""


class QueueBrokenError(GeneralFailureError):
    """The peer put something impossible into the queue, which is closed now."""


class QueueBusyError(BusyError):
    """Another task or callback waits at this end of the queue already."""
