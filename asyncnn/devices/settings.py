"""What can be set when a device is opened."""

import msgspec

from asyncnn.errors import InvalidArgumentError


class DeviceSettings(msgspec.Struct, frozen=True):
    """Limits and trade-offs of an in-process device.

    ``max_pending`` bounds the executions that wait or run; more are refused with
    RESOURCE_EXHAUSTED_TRANSIENT. Executions of a model that lately took less than
    ``inline_below_us`` microseconds run on the event loop itself when nothing else is
    pending, since handing them to a thread would cost more; 0 switches that off.

    Process-wide while any device is open: ``blas_threads`` pins BLAS, whose own
    threads are slower than one on small matrices (0 leaves it alone), and
    ``switch_interval_s`` makes busy lanes hand the interpreter to the loop sooner.

    :raises InvalidArgumentError: if a limit is not positive.
    """

    max_pending: int = 4096
    inline_below_us: float = 50.0
    blas_threads: int = 1
    switch_interval_s: float = 0.001

    def __post_init__(self) -> None:
        if self.max_pending < 1:
            raise InvalidArgumentError("max_pending must be at least 1")
        if not self.switch_interval_s > 0:
            raise InvalidArgumentError("switch_interval_s must be positive")
        if self.blas_threads < 0 or not self.inline_below_us >= 0:
            raise InvalidArgumentError("a setting of DeviceSettings is negative")
