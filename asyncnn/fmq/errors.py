"""What can go wrong with a queue, one class for each cause."""

from asyncnn.errors import BusyError, DeviceClosedError, GeneralFailureError


class MemoryOrderError(GeneralFailureError):
    """This platform does not order memory the way a queue needs."""


class QueueClosedError(DeviceClosedError):
    """This end of the queue was closed here."""


class QueueBrokenError(GeneralFailureError):
    """The peer put something impossible into the queue, which is closed now."""


class QueueBusyError(BusyError):
    """Another task or callback waits at this end of the queue already."""
