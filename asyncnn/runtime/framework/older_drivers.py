"""Drivers of HAL 1.0, 1.1 and 1.2 as devices of HAL 1.3.

`OlderDriver` gives a driver models, requests and callbacks of its version, and does
the rest itself: deadlines, fences, bursts, and buffers in memory of this process.
Operations that came later, or are used in a later way, are not offered. An older driver
knows no priority, and orders executions as it likes.

Source: the HAL's runtime (VersionedInterfaces) and HAL 1.0 to 1.2/IDevice.hal.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar, cast

from asyncnn import hal
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import preparation_error
from asyncnn.deadlines import check_deadline, lateness
from asyncnn.devices import DeviceSettings
from asyncnn.devices.device_buffers import FREQUENCY, RELAXED, Buffers
from asyncnn.hal.errors import PreparationFailedError, closed_error
from asyncnn.hal.interfaces import OneShot, cause_of_death
from asyncnn.hal.operations import check_operation
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    LoadArguments,
    PrepareArguments,
)
from asyncnn.hal.validate import validate_model
from asyncnn.hal.versions import noncompliant_operations, v1_0, v1_2
from asyncnn.hal.versions.convert import (
    AnyModel,
    canonical_capabilities,
    convert_model,
    convert_status,
    fits_beside_operations,
)
from asyncnn.offload import offload
from asyncnn.runtime.framework.managed_memory import allocate_fixed
from asyncnn.runtime.framework.older_executions import OlderHost, on_answer_in
from asyncnn.runtime.framework.older_models import OlderPreparedModel
from asyncnn.runtime.framework.submodels import build_submodels

logger = logging.getLogger(__name__)

_NONE = hal.ErrorStatus.NONE
_NEWEST = hal.HalVersion.V1_3

_UNKNOWN_VERSION = "UNKNOWN"
"""Version of a driver of before HAL 1.2, which has no way to report it."""

_SUFFIXES = {
    hal.HalVersion.V1_0: "",
    hal.HalVersion.V1_1: "_1_1",
    hal.HalVersion.V1_2: "_1_2",
    hal.HalVersion.V1_3: "_1_3",
}
"""What the names of calls end with that a version brought anew."""

T = TypeVar("T")


def version_of(device: object) -> hal.HalVersion:
    """Return the newest version up to HAL 1.3 whose calls ``device`` has.

    :raises InvalidArgumentError: if it has the calls of none.
    """
    for version, suffix in reversed(_SUFFIXES.items()):
        if hasattr(device, f"prepare_model{suffix}"):
            return version
    raise hal.InvalidArgumentError(f"{type(device).__name__} is no device of any HAL")


@asynccontextmanager
async def newest(
    device: object, settings: DeviceSettings | None = None
) -> AsyncIterator[hal.IDevice]:
    """Give out a device of HAL 1.3 as it is, and an `OlderDriver` of an older one.

    :raises InvalidArgumentError: if it is no device.
    """
    given: Any = device
    if version_of(device) >= _NEWEST:
        yield given
        return
    async with OlderDriver(given, settings) as adapted:
        yield adapted


class OlderDriver(BaseDevice):
    """An `IDevice` of what has the calls of an older version. A context manager.

    ``driver`` is one of `asyncnn.hal.versions.v1_0.IDevice` and its successors. One of
    before HAL 1.2 does not `tell_shapes`: executions whose outputs have no known shape
    are INVALID_ARGUMENT there, as is an output that is too short. Leaving the context
    ends what waits for fences, bursts and buffers; whoever opened the driver closes it.

    :raises InvalidArgumentError: if it has the calls of no older version.
    """

    def __init__(
        self, driver: v1_0.IDevice, settings: DeviceSettings | None = None
    ) -> None:
        self.version = version_of(driver)
        if self.version >= _NEWEST:
            raise hal.InvalidArgumentError("the driver is not older than HAL 1.3")
        limits = settings or DeviceSettings()
        later = ["Priority"]
        if self.version < hal.HalVersion.V1_1:
            later += ["ExecutionPreference", RELAXED]
        why = f"not used: {self.version.title} has none"
        self.hal_hints = {**FREQUENCY, **dict.fromkeys(later, why)}
        self.driver = driver
        self._is_closed = False
        self._preparations: set[_OlderPreparation] = set()
        self._buffers = Buffers(limits.max_buffer_bytes, self.cause_of_death)
        self._host = OlderHost(
            self.version,
            self._buffers,
            OpenBursts(limits.max_bursts),
            limits.max_waiting,
            self.cause_of_death,
        )
        self.tells_shapes = self._host.tells_shapes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what is pending here, and ask the driver to stop the rest."""
        self._is_closed = True
        for preparation in tuple(self._preparations):
            preparation.fail(closed_error())
            preparation.on_answer.die()
        self._buffers.close()
        await self._host.aclose()
        await self._buffers.wait_ended()

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why it takes no work any more; see `IMortal`."""
        if self._is_closed:
            return closed_error()
        return cause_of_death(self.driver)

    def get_status(self) -> hal.DeviceStatus:
        """Return the driver's status; OFFLINE once this is closed."""
        return hal.DeviceStatus.OFFLINE if self._is_closed else self.driver.get_status()

    def get_version_string(self) -> tuple[hal.ErrorStatus, str]:
        """Return the driver's version, if that has one."""
        return self._since_1_2("get_version_string", (_NONE, _UNKNOWN_VERSION))

    def get_type(self) -> tuple[hal.ErrorStatus, hal.DeviceType]:
        """Return the driver's type; OTHER if it cannot say."""
        return self._since_1_2("get_type", (_NONE, hal.DeviceType.OTHER))

    def get_supported_extensions(
        self,
    ) -> tuple[hal.ErrorStatus, tuple[hal.Extension, ...]]:
        """Return the driver's extensions; none before HAL 1.2."""
        return self._since_1_2("get_supported_extensions", (_NONE, ()))

    def get_number_of_cache_files_needed(self) -> tuple[hal.ErrorStatus, int, int]:
        """Return how many files the driver needs; 0 and 0 before HAL 1.2."""
        return self._since_1_2("get_number_of_cache_files_needed", (_NONE, 0, 0))

    def get_capabilities_1_3(self) -> tuple[hal.ErrorStatus, hal.Capabilities]:
        """Return the driver's performance; nothing is known of what it has not."""
        status, capabilities = self._call("get_capabilities")()
        return self._converted(status), canonical_capabilities(capabilities)

    async def _supported(self, model: hal.Model) -> tuple[bool, ...]:
        """Return which operations the driver would run, of those that it can know.

        Where it cannot know some, it is asked for a model of the others.
        """
        self._check_open()
        old, known = await offload(_offered, model, self.version)
        count = len(model.main.operations)
        none = (False,) * count
        if old is None:
            return none
        given, supports = await self._call("get_supported_operations")(old)
        status = self._converted(given)
        if status is not _NONE and len(known) < count:
            return none  # of a model that nobody has made, it says nothing
        if status is not _NONE or len(supports) != len(known):
            failed = hal.ErrorStatus.GENERAL_FAILURE if status is _NONE else status
            raise hal.error_for(failed, "the driver does not say what it supports")
        answers = dict(zip(known, supports, strict=True))
        return tuple(answers.get(index, False) for index in range(count))

    def _prepare(
        self, asked: PrepareArguments, callback: hal.IPreparedModelCallback
    ) -> hal.ErrorStatus:
        model, preference, _, deadline, cache = asked
        self._check_open()
        asked.validate()
        lacking = noncompliant_operations(model, self.version)
        if lacking or not fits_beside_operations(model, self.version):
            raise hal.GeneralFailureError(_lack(model, self.version, sorted(lacking)))
        old = convert_model(model, self.version)
        more = () if self.version < hal.HalVersion.V1_1 else (preference,)
        caches = () if self.version < hal.HalVersion.V1_2 else cache
        return self._launch(
            partial(self._call("prepare_model"), old, *more, *caches),
            model,
            deadline,
            callback,
        )

    def _load(
        self, asked: LoadArguments, callback: hal.IPreparedModelCallback
    ) -> hal.ErrorStatus:
        self._check_open()
        if self.version < hal.HalVersion.V1_2:
            raise hal.GeneralFailureError(f"{self.version.title} does not cache models")
        driver = cast("v1_2.IDevice", self.driver)
        load = partial(driver.prepare_model_from_cache, *asked.cache)
        return self._launch(load, None, asked.deadline, callback)

    def _launch(
        self,
        launch: Callable[[Any], hal.ErrorStatus],
        model: hal.Model | None,
        deadline: int | None,
        callback: hal.IPreparedModelCallback,
    ) -> hal.ErrorStatus:
        """Have the driver prepare a model, of which nothing may be known."""
        check_deadline(deadline)
        ended = self._preparations.discard
        preparation = _OlderPreparation(self._host, model, deadline, callback, ended)
        self._preparations.add(preparation)
        on_answer = preparation.on_answer
        try:
            status = self._converted(launch(on_answer))
        except (Exception, asyncio.CancelledError) as error:
            preparation.fail(hal.failure_of(error))
            return hal.ErrorStatus.GENERAL_FAILURE
        if status is not _NONE:
            preparation.fail(preparation_error(status, on_answer.reason))
        return status

    async def _allocate(self, asked: AllocateArguments) -> tuple[hal.IBuffer, int]:
        return allocate_fixed(self._buffers, asked, OlderPreparedModel)

    def _call(self, name: str) -> Any:
        return getattr(self.driver, f"{name}{_SUFFIXES[self.version]}")

    def _since_1_2(self, name: str, otherwise: T) -> T:
        """Return what a call of HAL 1.2 returns, or else what stands for that."""
        if self.version < hal.HalVersion.V1_2:
            return otherwise
        found: T = getattr(self.driver, name)()
        return found

    def _converted(self, status: hal.ErrorStatus) -> hal.ErrorStatus:
        return convert_status(status, self.version)

    def _check_open(self) -> None:
        cause = self.cause_of_death()
        if cause is not None:
            raise cause


def _offered(
    model: hal.Model, version: hal.HalVersion
) -> tuple[AnyModel | None, Sequence[int]]:
    """Return what a driver is asked of a model, and the operations that this has.

    None if there are none, or pools or extensions of no version of the driver's.

    :raises InvalidArgumentError: if a rule is broken.
    """
    validate_model(model)
    lacking = noncompliant_operations(model, version)
    every = range(len(model.main.operations))
    known = [index for index in every if index not in lacking]
    if lacking and known:
        parts = [known, sorted(lacking)]
        model = build_submodels(model, parts).steps[0].model
    if not known or not fits_beside_operations(model, version):
        return None, ()
    return convert_model(model, version), known


def _lack(model: hal.Model, version: hal.HalVersion, lacking: Sequence[int]) -> str:
    if not lacking:
        return f"{version.title} does not have the pools of the model"
    what, main = f"{version.title} does not have operations {lacking}", model.main
    try:
        first = main.operations[lacking[0]]
        check_operation(first, main.operands, version, model.referenced)
    except hal.InvalidArgumentError as error:
        return f"{what}: {error.message}"
    return what


class _OlderPreparation:
    """Notifies a callback of what a driver has prepared, or that it is too late."""

    def __init__(
        self,
        host: OlderHost,
        model: hal.Model | None,
        deadline: int | None,
        callback: hal.IPreparedModelCallback,
        ended: "Callable[[_OlderPreparation], None]",
    ) -> None:
        self._host = host
        self._model = model
        self._callback = callback
        self._notify = OneShot(callback.notify_1_3)
        self._timer: asyncio.TimerHandle | None = None
        self.on_answer = on_answer_in(host.version, self.take)
        self._ended = ended
        callback.link_to_death(self.on_answer.die)  # nobody waits for it any more
        if deadline is not None:
            loop = asyncio.get_running_loop()
            asked_ns = int(loop.time() * 1e9)
            delay = max(0.0, deadline / 1e9 - loop.time())
            self._timer = loop.call_later(delay, self._expire, deadline, asked_ns)

    def take(self, *answer: Any) -> None:
        """Report what the driver reported; too late, it is let go."""
        if self._notify.is_done:
            return
        try:
            given, prepared = answer
            status = convert_status(given, self._host.version)
            if status is not _NONE or prepared is None:
                raise preparation_error(status, self.on_answer.reason)
            model = OlderPreparedModel(self._host, prepared, self._model)
        except Exception as error:  # it may be anything
            self.fail(hal.failure_of(error))
        else:
            self._end(_NONE, model)

    def fail(self, error: hal.AsyncnnError) -> None:
        """Report an error, unless the end was reported before."""
        if not self._notify.is_done:
            is_explained = not isinstance(error, PreparationFailedError)
            self._callback.reason = error.message if is_explained else ""
            self._end(error.status, None)

    def _end(self, status: hal.ErrorStatus, model: hal.IPreparedModel | None) -> None:
        self._ended(self)
        self._callback.unlink_to_death()
        if self._timer is not None:
            self._timer.cancel()
        self._notify(status, model)

    def _expire(self, deadline: int, asked_ns: int) -> None:
        late = lateness(deadline, asked_ns)
        self.fail(hal.error_for(hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT, late))
        self.on_answer.die()
