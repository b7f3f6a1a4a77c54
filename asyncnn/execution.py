"""Executions: what is bound to arrays once, for one prepared model, and then launched.

Source: aidl/android/hardware/neuralnetworks/IExecution.aidl.
"""

import warnings
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import msgspec

from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.interfaces import IExecutionCallback
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    Timing,
)

if TYPE_CHECKING:  # who talks to a driver has no engine
    from asyncnn.engine.plan import Plan


class Execution(Request, frozen=True, eq=False):
    """A request that was checked for ``executable``, a prepared model's, and bound.

    ``arrays`` are for all ports of ``plan``, inputs first. They have the dtypes
    and shapes of the ports, are C-contiguous and aligned, and the outputs' are
    writable: nothing is left to look up. There are none if the model leaves a shape
    open, say, or until a run has claimed the device-managed ``buffers`` of the request.
    Arguments and pools are left out if it is bound to an application's arrays.
    """

    executable: object
    plan: "Plan | None" = None
    arrays: Sequence[Array] | None = None
    buffers: Any = None


class RunTiming(msgspec.Struct, frozen=True):
    """Durations of a run in nanoseconds, None where the driver does not report them.

    ``on_device_ns`` is for computing, ``in_driver_ns`` with all that the driver
    does about it. Drivers measure whole microseconds, as the HAL has them, so both are
    multiples of 1000.
    """

    on_device_ns: int | None
    in_driver_ns: int | None

    @property
    def time_on_device(self) -> int:
        """Deprecated: ``on_device_ns`` in microseconds, `UINT64_MAX` for None."""
        return _microseconds("time_on_device", "on_device_ns", self.on_device_ns)

    @property
    def time_in_driver(self) -> int:
        """Deprecated: ``in_driver_ns`` in microseconds, `UINT64_MAX` for None."""
        return _microseconds("time_in_driver", "in_driver_ns", self.in_driver_ns)


def _microseconds(old: str, new: str, duration_ns: int | None) -> int:
    words = f"RunTiming.{old} is in microseconds; use {new}"
    warnings.warn(words, DeprecationWarning, stacklevel=3)
    return UINT64_MAX if duration_ns is None else duration_ns // 1000


def timing_of(timing: Timing) -> RunTiming | None:
    """Return what was measured of a run; None if nothing was."""
    if timing == NO_TIMING:
        return None
    return RunTiming(
        _nanoseconds(timing.time_on_device), _nanoseconds(timing.time_in_driver)
    )


def _nanoseconds(duration_us: int) -> int | None:
    """Return a duration of a HAL `Timing`, None if it is unavailable."""
    return None if duration_us == UINT64_MAX else 1000 * duration_us


class Outputs(dict[str, Array]):
    """Output arrays by name, in the model's order; also by position: ``outputs[0]``.

    ``timing`` is None unless it was measured. ``route`` says which devices have
    computed them, if the device is made of several.
    """

    __slots__ = ("route", "timing")

    route: Route | None
    timing: RunTiming | None

    if TYPE_CHECKING:

        def __getitem__(self, which: str | int) -> Array:
            """Return an output by name or position.

            :raises KeyError: if there is none.
            """

    def __getattr__(self, name: str) -> None:
        if name not in Outputs.__slots__:
            raise AttributeError(name)
        # Nothing is known yet: the run has not ended.

    def __missing__(self, which: object) -> Array:
        arrays = tuple(self.values())
        if isinstance(which, int) and -len(arrays) <= which < len(arrays):
            return arrays[which]
        raise KeyError(f"there is no output {which!r} (known: {', '.join(self)})")


@runtime_checkable
class IBinding(Protocol):
    """A prepared model that executes what is bound to arrays. Not in the HAL.

    What it binds is the application's: checked before, for this model alone.
    """

    def launch_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Awaitable[ExecutionResult] | None:
        """Launch an execution on arrays for all inputs and outputs, in this order.

        The caller has seen to it that they are C-contiguous and of the model's dtypes
        and shapes, and outputs' are writable. None if the model or one of
        ``tensors``, which may be no arrays, needs more than that. All that
        ``are_usual`` are aligned arrays of one set of dtypes and shapes, so that only
        the first ones are looked at. A device of this process makes all outputs itself
        where a list has None for them, and puts them there.
        """

    def launch(
        self, request: Request, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch any request, and return its end, to be awaited."""


@runtime_checkable
class IReusing(Protocol):
    """A prepared model that has less to do for a request that is repeated.

    Source: AIDL's IPreparedModel.createReusableExecution.
    """

    def create_reusable_execution(self, request: Request) -> Request:
        """Return a request that is checked, and bound to its memory if it can be.

        What a peer may change, the bytes in its pools, is read in each run.

        :raises InvalidArgumentError: if it breaks a rule.
        """


@runtime_checkable
class IInProcess(IBinding, IReusing, Protocol):
    """A prepared model of a device in this process. Not in the HAL.

    What it binds is a request, which goes all ways that requests do, any number of
    times at once.
    """

    def launch_fenced_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Any:
        """Launch a `FencedRun` that waits for nothing, as `IBinding.launch_on`.

        :raises AsyncnnError: if it is not taken.
        """

    def bind(
        self, tensors: Sequence[object], are_usual: bool = False, /
    ) -> Request | None:
        """Return a request on arrays as of `IBinding.launch_on`; None likewise."""

    def execute_threadsafe(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback,
    ) -> ErrorStatus:
        """Launch an execution as `IPreparedModel.execute_1_3` does, on any thread.

        ``callback`` is notified on the thread that ends it: no event loop has a part in
        that. It may be stopped on any thread. A request that names device-managed
        buffers is INVALID_ARGUMENT: these belong to the loop.
        """


def binding_of(prepared: object) -> IBinding | None:
    """Return what binds the executions of a prepared model; None if it does not.

    What wraps another one, and has all else of that, is to see the executions.
    """
    is_own = hasattr(type(prepared), "launch_on")
    return cast("IBinding", prepared) if is_own else None


def reusable(prepared: object, request: Request) -> Request:
    """Return what to execute in place of a request that is repeated.

    :raises InvalidArgumentError: if ``prepared`` looks at it now, and it breaks a rule.
    """
    if isinstance(prepared, IReusing):
        return prepared.create_reusable_execution(request)
    return request
