"""What can be set when a device is opened."""

from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions import Extension
from asyncnn.offload import SWITCH_INTERVAL_S
from asyncnn.qos import Policy

T = TypeVar("T")


class DeviceSettings(msgspec.Struct, frozen=True):
    """Limits and trade-offs of an in-process device.

    ``max_pending`` bounds the executions that wait or run, ``max_waiting`` the fenced
    ones under way, which cost little while they wait for their fences; more are refused
    with RESOURCE_EXHAUSTED_TRANSIENT, and so are bursts beyond ``max_bursts`` that are
    open at a time. The device-managed buffers of one client hold ``max_buffer_bytes``
    at most. Executions of a model that lately took less than
    ``inline_below_us`` microseconds run on the event loop itself when nothing else is
    pending, since handing them to a thread would cost more; 0 switches that off.

    Three change the whole process while the device is open: ``blas_threads`` is the
    most that BLAS has, whose threads are slower than one on small matrices, and
    ``switch_interval_s`` makes busy lanes hand the interpreter to the loop sooner.
    With ``freezes_large_models``, the objects of the process are kept from full garbage
    collections (`gc.freeze`) once a model of many operations was prepared, since each
    would stop the loop for some hundred milliseconds; circular garbage that exists then
    stays until the last device is closed. Unset, they change nothing, but in a process
    that does nothing else, as a driver; see `for_own_process`. Nor does 0 or False.

    ``cache_key_file`` is the secret that keeps cached models from being forged, created
    when it is needed; by default it lies where the user's programs keep their state.
    Cache files of this user are mapped, and must not be truncated meanwhile, unless
    ``maps_cache_files`` is False. A driver maps copies of what its clients send.

    ``capabilities_file`` holds what `asyncnn.tools.capabilities` has measured here;
    by default it lies where the user's programs keep their state.

    ``policy`` orders what competes. With ``refuses_hopeless`` an execution whose
    deadline is sooner than its model has ever lately been is not begun. After
    ``idle_after_s`` without work, buffers and threads are given back, but for those of
    models that were prepared for SUSTAINED_SPEED. Executions and preparations that come
    to no boundary for ``stuck_after_s`` fail, at the latest after twice that, and
    closing the device waits for that long at most; 0 waits for ever.

    ``extensions`` are what the device has of operations and types beyond the HAL's.

    :raises InvalidArgumentError: if a limit is not positive.
    """

    max_pending: int = 4096
    max_waiting: int = 262_144
    max_bursts: int = 1024
    max_buffer_bytes: int = 2**30
    inline_below_us: float = 50.0
    blas_threads: int | None = None
    switch_interval_s: float | None = None
    freezes_large_models: bool | None = None
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
        if not self.idle_after_s > 0 or not self.stuck_after_s >= 0:
            raise InvalidArgumentError("a duration of DeviceSettings is out of range")
        if (
            not self.inline_below_us >= 0
            or (self.blas_threads or 0) < 0
            or not (self.switch_interval_s or 0) >= 0
        ):
            raise InvalidArgumentError("a setting of DeviceSettings is negative")

    def for_own_process(self) -> Self:
        """Return these for a process that does nothing but run models.

        What is unset of the settings of the whole process gets the values that models
        run best with: BLAS has one thread, the interpreter switches between threads
        every millisecond, large models are frozen.
        """
        return replace(
            self,
            blas_threads=_given_or(self.blas_threads, 1),
            switch_interval_s=_given_or(self.switch_interval_s, SWITCH_INTERVAL_S),
            freezes_large_models=_given_or(self.freezes_large_models, True),
        )


def _given_or(value: T | None, best: T) -> T:
    return best if value is None else value


OWN_PROCESS = DeviceSettings().for_own_process()
"""The settings of a driver process, and of commands that run models."""
