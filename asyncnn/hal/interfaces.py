"""The HAL's interfaces as protocols; every device and transport implements them.

Method names are the HAL's in snake_case with their version suffix, so that a reader of
the ``.hal`` files finds them. Each call returns at once; what takes time is reported to
a callback from the event loop. `IPreparedModel.execute_synchronously_1_3` is awaited
instead.

Deadlines are absolute nanoseconds of the steady clock (``time.monotonic_ns``),
durations nanoseconds; None is "none given".
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, runtime_checkable

from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError, error_for
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    BufferToken,
    Capabilities,
    DeviceStatus,
    DeviceType,
    Dimensions,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Handle,
    MeasureTiming,
    Memory,
    Model,
    OutputShapes,
    Priority,
    Request,
    Timing,
)
from asyncnn.pacing import TakeTurn

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class AlreadyNotifiedError(RuntimeError):
    """A callback was notified a second time: a bug in the driver."""


class CallbackObject:
    """An object of the client that may die while a driver still refers to it.

    ``reason`` explains a failure in words, where the driver can say more than the
    status; it is set before the notification. An object with ``takes_early_results``
    may hear of the outcome before the call that it was passed to has returned. If one
    that ``may_be_left`` dies, the outcome is reported at once, as at a deadline. It is
    marked as ``is_left`` if the driver may still write to the outputs.
    """

    takes_early_results: ClassVar[bool] = False
    may_be_left: ClassVar[bool] = False
    is_left = False

    def __init__(self) -> None:
        self.reason = ""
        self._is_dead = False
        self._recipients: list[Callable[[], None]] = []

    @property
    def is_dead(self) -> bool:
        """Whether nobody waits for a notification any more."""
        return self._is_dead

    def link_to_death(self, recipient: Callable[[], None]) -> None:
        """Call ``recipient`` once when this object dies; at once if it is dead."""
        if self._is_dead:
            recipient()
        else:
            self._recipients.append(recipient)

    def unlink_to_death(self) -> None:
        """Forget all recipients: what they watched over has ended."""
        self._recipients.clear()

    def die(self) -> None:
        """Notify every linked recipient that nobody waits for a notification."""
        if self._is_dead:
            return
        self._is_dead = True
        recipients, self._recipients = self._recipients, []
        for recipient in recipients:
            recipient()


class IPreparedModelCallback(CallbackObject, ABC):
    """Receives the result of preparing a model (1.3/IPreparedModelCallback.hal)."""

    __slots__ = ()

    @abstractmethod
    def notify_1_3(
        self, status: ErrorStatus, prepared_model: "IPreparedModel | None"
    ) -> None:
        """Receive a prepared model if and only if ``status`` is NONE."""


class IExecutionCallback(CallbackObject, ABC):
    """Receives the result of an execution (1.3/IExecutionCallback.hal)."""

    __slots__ = ()

    @abstractmethod
    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        """Receive the outcome; shapes are empty unless NONE or insufficient size."""

    def took(self, route: Route) -> None:
        """Learn, before the outcome, of an unusual route. Not in the HAL."""


class IFencedExecutionCallback(ABC):
    """Reports how a fenced execution ended (1.3/IFencedExecutionCallback.hal)."""

    __slots__ = ()
    may_still_write: bool = False  # a driver, to the outputs; not in the HAL

    @property
    def route(self) -> Route | None:
        """How it went, if not the usual way. Not in the HAL."""
        return None

    @abstractmethod
    def get_execution_info(self) -> tuple[ErrorStatus, Timing, Timing]:
        """Return status and timings since launch and since the last fence.

        Before completion: GENERAL_FAILURE and timings that are unavailable.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End the execution soon, with RESOURCE_EXHAUSTED_TRANSIENT. Not in the HAL."""


class IBurstCallback(ABC):
    """Resolves memory slots of a burst (1.2/IBurstCallback.hal)."""

    __slots__ = ()
    recorder: Any = None  # an `IBurstRecorder` of a driver; not in the HAL
    take_turn: TakeTurn | None = None  # asked before each packet
    carries_deadlines: bool = False  # whether one may follow a packet; not in the HAL

    @abstractmethod
    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory | BufferToken, ...]]:
        """Return one memory for each slot, or an error and no memory at all.

        INVALID_ARGUMENT if a slot is unknown. Awaited, as the client may have to be
        asked. The token of a buffer stands for its memory; the HAL's bursts have known
        those since they are AIDL's.
        """


class OneShot(Generic[P]):
    """Notifies a callback exactly once, and shields the driver from its exceptions.

    It ``is_done`` as soon as the notification is being given. This is the one place
    that sees to once: whatever may end an execution twice, as an answer and its
    deadline do, goes by here.
    """

    __slots__ = ("_notify", "is_done")

    def __init__(self, notify: Callable[P, None]) -> None:
        self._notify: Callable[P, None] | None = notify
        self.is_done = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Notify; a failing callback is logged, as a one-way call cannot fail.

        :raises AlreadyNotifiedError: if it was notified before.
        """
        notify, self._notify = self._notify, None
        if notify is None:
            raise AlreadyNotifiedError("the callback was notified before")
        self.is_done = True
        try:
            notify(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # the cancellation of a task, too
            logger.exception("callback failed while it was notified")


class ISyncFence(Protocol):
    """Signals, once, that something has ended, or that it has failed.

    ``status`` is None until then, NONE if it went well, and the error otherwise, of
    which ``reason`` is the cause in words.
    """

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""

    @property
    def reason(self) -> str:
        """Why it failed; empty otherwise."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> object:
        """Have ``callback`` called with the fence, soon after it is done."""

    def remove_done_callback(self, callback: Callable[[Any], None]) -> object:
        """Forget ``callback``."""

    def duplicate(self) -> "ISyncFence":
        """Return another fence that is done when this one is, closed by itself."""

    def close(self) -> None:
        """Let go of it; what waits for it goes on waiting."""

    def __await__(self) -> Generator[Any, None, None]: ...


class IBuffer(Protocol):
    """A buffer that the device manages (1.3/IBuffer.hal).

    It goes with the last reference to it, once no execution uses it. While an execution
    or a copy writes it, any other use fails with GENERAL_FAILURE, and so does writing
    it while somebody reads. Copies are awaited, as they may be long.
    """

    async def copy_to(self, destination: Memory) -> ErrorStatus:
        """Copy the contents to a pool of their size.

        GENERAL_FAILURE while the buffer is uninitialised.
        """

    async def copy_from(self, source: Memory, dimensions: Dimensions) -> ErrorStatus:
        """Set the contents from a pool of their size and, if left open, dimensions.

        If that fails the buffer is uninitialised.
        """


class IBurstContext(Protocol):
    """Lifetime of a burst, kept by the client (1.2/IBurstContext.hal)."""

    def free_memory(self, slot: int) -> None:
        """Forget the memory of ``slot``; unknown slots are ignored."""

    def cancel(self, request: int) -> None:
        """Stop an execution that nobody waits for; its result is sent all the same.

        ``request`` is its number in this burst, the first being 1; one that has ended
        is ignored. Not in the HAL, whose bursts cannot be cancelled.
        """

    def close(self) -> None:
        """Release the burst: stop what runs, without a result, and let go of it all."""

    def link_to_death(self, recipient: Callable[[], None]) -> None:
        """Call ``recipient`` once when no more results will come, unless by `close`."""


@runtime_checkable
class IDescribed(Protocol):
    """A prepared model that says what its requests have to be like. Not in the HAL.

    Whoever gets one from a cache may not have seen the model.
    """

    @property
    def signature(self) -> Model:
        """A model with the inputs and outputs of this one and nothing else."""


@runtime_checkable
class IMortal(Protocol):
    """A device or prepared model that may end before its users do. Not in the HAL."""

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return a new error that says why it takes no work for good.

        None while it may take some, and if it is not known.
        """


@runtime_checkable
class IWatched(Protocol):
    """A device that reports when its status changes. Not in the HAL."""

    def watch_status(
        self, listener: Callable[[DeviceStatus], None]
    ) -> Callable[[], None]:
        """Have ``listener`` called soon after each change, with the status.

        It may be called without a change. Calling the result ends all that.
        """


@runtime_checkable
class ISavable(Protocol):
    """A prepared model that can be saved at any time.

    Source: the first draft of HAL 1.2 (IPreparedModel.saveToCache). What was released
    saves a model while it is prepared.
    """

    async def save_to_cache(
        self, model_cache: Handle, data_cache: Handle, token: bytes
    ) -> ErrorStatus:
        """Write the model to one cache file of each kind; NONE once it can be loaded.

        INVALID_ARGUMENT if there is not one descriptor in each handle, both are of the
        same file, one is not empty, at offset 0 and open for reading and writing, or
        the token has not its 32 bytes; then nothing is written. GENERAL_FAILURE if one
        is no file, or the device does not cache models.
        """


@runtime_checkable
class IExplaining(Protocol):
    """A prepared model that explains what it returns as a status. Not in the HAL."""

    @property
    def refusal(self) -> str:
        """Why the last fenced execution that it refused was; empty if none was."""


class IPreparedModel(Protocol):
    """A model ready for execution (1.3/IPreparedModel.hal)."""

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution of whose end ``callback`` is notified, exactly once.

        A launch error has notified the callback already. A null callback is
        INVALID_ARGUMENT.
        """

    async def execute_synchronously_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
    ) -> tuple[ErrorStatus, OutputShapes, Timing]:
        """Execute and return status, output shapes and timing."""

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, ISyncFence | None, IFencedExecutionCallback | None]:
        """Launch an execution that starts when every fence has signalled.

        ``duration`` counts from there; ``deadline`` covers the waiting as well. An
        error of the launch comes with no fence and no callback. The fence is None if
        nothing was to wait for and the execution is over already.
        """

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Tie two Fast Message Queues to this model for a series of executions.

        Of the burst's context and the error, exactly one is given. Awaited, because the
        driver may have to be asked.
        """


@runtime_checkable
class IDevice(Protocol):
    """A driver (1.3/IDevice.hal). Queries answer the same until it is closed."""

    def get_status(self) -> DeviceStatus:
        """Return whether the device can take work; BUSY while a queue of it is full."""

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return a non-empty string, unique to this version of the driver."""

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of hardware."""

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the performance of the device relative to the CPU."""

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the extensions that are supported in full."""

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation of the main subgraph, whether it would run.

        INVALID_ARGUMENT and nothing if the model is malformed, GENERAL_FAILURE and
        nothing if the handle of one of its pools cannot be decoded or mapped. Awaited,
        because the driver may have to be asked.
        """

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return how many model and data cache files a model needs; 0 and 0: none."""

    def prepare_model_1_3(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of ``model``; ``callback`` gets the result."""

    def prepare_model_from_cache_1_3(
        self,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model from its cache files."""

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[IPreparedModel | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, IBuffer | None, int]:
        """Allocate a device-managed buffer and return it with its token.

        The token is positive; in a request, `BufferToken` of it is a pool. On failure:
        the status, None and 0. Awaited, because the driver may have to be asked.
        """


def cause_of_death(*mortals: object) -> DeviceUnavailableError | None:
    """Return what the first `IMortal` that has died says of it; None if none has."""
    causes = (each.cause_of_death() for each in mortals if isinstance(each, IMortal))
    return next((cause for cause in causes if cause is not None), None)


def seals_caches(device: object) -> bool:
    """Say whether a device closes its first model cache as `devices.cache_files` does.

    It says so itself, by an attribute of this name.
    """
    return bool(getattr(device, "seals_caches", False))


def has_measured_capabilities(device: object) -> bool:
    """Return whether a device's capabilities were measured; else they are estimates.

    It says so itself, by an attribute of this name.
    """
    return bool(getattr(device, "has_measured_capabilities", False))


def hal_hints(device: object) -> dict[str, str]:
    """Return what a device makes of hints of the HAL, in words.

    It says so itself, by an attribute of this name.
    """
    return dict(getattr(device, "hal_hints", {}))


def refusal_of(prepared: object, what: str) -> str:
    """Return ``what``, with the reason for it if an `IExplaining` knows that."""
    reason = prepared.refusal if isinstance(prepared, IExplaining) else ""
    return f"{what}: {reason}" if reason else what


def error_of(mortal: object, status: ErrorStatus, message: str) -> AsyncnnError:
    """Return the error for a ``status`` other than NONE that ``mortal`` has given.

    If it is DEVICE_UNAVAILABLE and an `IMortal` knows why, that is the error.
    """
    is_unavailable = status is ErrorStatus.DEVICE_UNAVAILABLE
    cause = cause_of_death(mortal) if is_unavailable else None
    return cause or error_for(status, message)
