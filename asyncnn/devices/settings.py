"""What can be set when a device is opened."""

import msgspec

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions import Extension
from asyncnn.qos import Policy


class DeviceSettings(msgspec.Struct, frozen=True):
    """Limits and trade-offs of an in-process device.

    ``max_pending`` bounds the executions that wait or run, ``max_waiting`` the fenced
    ones under way, which cost little while they wait for their fences; more are refused
    with RESOURCE_EXHAUSTED_TRANSIENT, and so are bursts beyond ``max_bursts`` that are
    open at a time. The device-managed buffers of one client hold ``max_buffer_bytes``
    at most. Executions of a model that lately took less than
    ``inline_below_us`` microseconds run on the event loop itself when nothing else is
    pending, since handing them to a thread would cost more; 0 switches that off.

    Process-wide while any device is open: ``blas_threads`` pins BLAS, whose own
    threads are slower than one on small matrices (0 leaves it alone), and
    ``switch_interval_s`` makes busy lanes hand the interpreter to the loop sooner.

    ``cache_key_file`` is the secret that keeps cached models from being forged, created
    when it is needed; by default it lies where the user's programs keep their state.
    Cache files of this user are mapped, and must not be truncated meanwhile, unless
    ``maps_cache_files`` is False. A driver maps copies of what its clients send.

    ``capabilities_file`` holds what `asyncnn.capabilities` measured of this machine;
    by default it lies where the user's programs keep their state.

    ``policy`` orders what competes. With ``refuses_hopeless`` an execution whose
    deadline is sooner than its model has ever lately been is not begun. After
    ``idle_after_s`` without work, buffers and threads are given back, but for those of
    models that were prepared for SUSTAINED_SPEED. An execution fails if one of its
    operations takes longer than ``stuck_after_s``, at the latest after twice that; 0
    waits for ever.

    ``extensions`` are what the device has of operations and types beyond the HAL's.

    :raises InvalidArgumentError: if a limit is not positive.
    """

    max_pending: int = 4096
    max_waiting: int = 65536
    max_bursts: int = 1024
    max_buffer_bytes: int = 2**30
    inline_below_us: float = 50.0
    blas_threads: int = 1
    switch_interval_s: float = 0.001
    cache_key_file: str = ""
    maps_cache_files: bool = True
    capabilities_file: str = ""
    policy: Policy = Policy()
    refuses_hopeless: bool = False
    idle_after_s: float = 2.0
    stuck_after_s: float = 30.0
    extensions: tuple[Extension, ...] = ()

    def __post_init__(self) -> None:
        if min(self.max_pending, self.max_waiting, self.max_bursts) < 1:
            raise InvalidArgumentError("a limit of DeviceSettings is not positive")
        if self.max_buffer_bytes < 0:
            raise InvalidArgumentError("max_buffer_bytes is negative")
        if not self.switch_interval_s > 0:
            raise InvalidArgumentError("switch_interval_s must be positive")
        if not self.idle_after_s > 0 or not self.stuck_after_s >= 0:
            raise InvalidArgumentError("a duration of DeviceSettings is out of range")
        if self.blas_threads < 0 or not self.inline_below_us >= 0:
            raise InvalidArgumentError("a setting of DeviceSettings is negative")
