"""A prepared model that outlives the driver that prepared it."""

import asyncio
from collections.abc import Sequence
from functools import partial

from asyncnn import hal
from asyncnn.callbacks import (
    IExecutionCallback,
    IPreparedModelCallback,
    OneShot,
    PreparedModelFuture,
)
from asyncnn.fenced_run import BasePreparedModel, FencedRun, Source, launcher_of
from asyncnn.hal.interfaces import IDescribed, error_of
from asyncnn.hal.refusals import (
    BurstArguments,
    CacheArguments,
    LoadArguments,
    PrepareArguments,
    refuse_execution,
)
from asyncnn.hal.routes import Route
from asyncnn.hal.types import ExecutionOptions
from asyncnn.hal.validate import RequestRules, validate_measure_timing
from asyncnn.memory.descriptors import duplicated, handles_of
from asyncnn.service.client.asking import SentCache
from asyncnn.service.client.remote_device import RemoteDevice
from asyncnn.service.client.remote_model import RemotePreparedModel
from asyncnn.service.supervision import Life, Waiting
from asyncnn.tracing import Layer, Phase, span

_ATTEMPTS = 5
_PAUSE_S = 0.05


class ModelOrder:
    """What it takes to have a model once more: it, or the files it was loaded from.

    :raises ResourceExhaustedTransientError: if the files cannot be kept open.
    """

    def __init__(self, source: PrepareArguments | SentCache) -> None:
        self._asked: PrepareArguments | LoadArguments
        if isinstance(source, SentCache):
            self._files = duplicated(source.fds)  # the caller may close its own
            handles, split = handles_of(self._files), source.info.model_files
            caches = handles[:split], handles[split:]
            cache = CacheArguments(*caches, source.info.token)
            self._asked = LoadArguments(None, cache)
        else:
            self._asked = source

    def give(
        self,
        remote: RemoteDevice,
        deadline: int | None,
        callback: IPreparedModelCallback,
    ) -> hal.ErrorStatus:
        """Launch the preparation, or the loading; see `IDevice`."""
        return self._asked._replace(deadline=deadline).by(remote, callback)

    def model_of(self, prepared: hal.IPreparedModel) -> hal.Model:
        """Return the model, or the signature of what was loaded."""
        if isinstance(self._asked, PrepareArguments):
            return self._asked.model
        assert isinstance(prepared, IDescribed)
        return prepared.signature


class SupervisedModel(BasePreparedModel):
    """A model of a supervised device; it is prepared again by each new driver.

    Executions that are asked for while it is not prepared wait.
    """

    def __init__(
        self,
        order: ModelOrder,
        remote: RemoteDevice,
        prepared: hal.IPreparedModel,
        wait_s: float,
        life: Life,
    ) -> None:
        self._order = order
        self._rules = RequestRules(order.model_of(prepared))
        self._remote = remote
        self._prepared: hal.IPreparedModel | None = prepared
        self._waiting = Waiting(wait_s)
        self._refusal: hal.AsyncnnError | None = None
        self._life = life

    @property
    def waiting(self) -> int:
        """Number of executions that wait for the model to be prepared again."""
        return len(self._waiting)

    async def prepare_again(self, remote: RemoteDevice) -> None:
        """Prepare the model in a new driver, and launch what waited for it."""
        # `_remote` stays the lost one until the end, so that executions wait.
        self._prepared = self._refusal = None
        try:
            self._prepared = await self._prepare_retrying(remote)
        except hal.AsyncnnError as error:
            if not remote.is_lost:
                self._remote, self._refusal = remote, error
                self._waiting.fail(error)
            return
        self._remote = remote
        self._waiting.release()

    def end(self, error: hal.AsyncnnError) -> None:
        """Let those executions fail that wait: there is no hope for others."""
        self._prepared = None
        self._waiting.fail(error)

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return what was lost, maybe before there was another driver; see `Life`."""
        return self._life.cause_of_death(self._remote)

    async def _prepare_retrying(self, remote: RemoteDevice) -> hal.IPreparedModel:
        """Prepare the model, several times if the driver is short of something."""
        attempt = 0
        while True:
            attempt += 1
            callback = PreparedModelFuture()
            self._order.give(remote, None, callback)
            try:
                return await callback
            except hal.AsyncnnError as error:
                is_short = error.status is hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
                if not is_short or attempt == _ATTEMPTS:
                    raise
            await asyncio.sleep(attempt * _PAUSE_S)

    @property
    def usable(self) -> hal.IPreparedModel | None:
        """The driver's model; None while there is none."""
        return None if self._remote.is_lost else self._prepared

    @property
    def usual_route(self) -> Route | None:
        """How executions go as a rule; None if that is not known, or by one device."""
        prepared = self._prepared
        if isinstance(prepared, RemotePreparedModel):
            return prepared.usual_route
        return None

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Launch an execution, or hold it; see `IPreparedModel.execute_1_3`."""
        given = request, measure, deadline, loop_timeout_duration
        prepared = self.usable
        if prepared is not None:
            return prepared.execute_1_3(*given, callback)
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        try:
            self._check(request, measure)
        except hal.AsyncnnError as error:
            return refuse_execution(callback, error)
        notify = OneShot(callback.notify_1_3)
        return self._waiting.hold(
            callback,
            deadline,
            partial(self.execute_1_3, *given, callback),
            lambda status: notify(status, (), hal.NO_TIMING),
        )

    def _check(self, request: hal.Request, measure: hal.MeasureTiming) -> None:
        self._check_hope()
        with span("validate", Layer.DRIVER, Phase.EXECUTION):
            self._rules.check(request, allow_unspecified_output=True)
        validate_measure_timing(measure)

    def _check_hope(self) -> None:
        self._life.check()
        # A new one each time: one raised again keeps the frames of all calls.
        # What one driver refused, the next one may take.
        if self._refusal is not None and not self._remote.is_lost:
            raise hal.error_for(self._refusal.status, str(self._refusal))

    def launch_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
    ) -> FencedRun:
        """Ask the driver; fail while there is none.

        :raises AsyncnnError: if it is not taken.
        """
        prepared = self.usable
        if prepared is None:
            unavailable = hal.ErrorStatus.DEVICE_UNAVAILABLE
            raise error_of(self, unavailable, "there is no driver at the moment")
        return launcher_of(prepared)(request, wait_for, options)

    async def save_to_cache(
        self, model_cache: hal.Handle, data_cache: hal.Handle, token: bytes
    ) -> hal.ErrorStatus:
        """Ask the driver; fail while there is none."""
        prepared: object = self.usable
        if not isinstance(prepared, hal.ISavable):
            return hal.ErrorStatus.DEVICE_UNAVAILABLE
        return await prepared.save_to_cache(model_cache, data_cache, token)

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        """Ask the driver, once there is one. A burst dies with its driver."""
        try:
            prepared = await self.awaited()
        except hal.AsyncnnError as error:
            return error.status, None
        return await prepared.configure_execution_burst(*asked)

    async def awaited(self) -> hal.IPreparedModel:
        """Return the driver's model, once there is one.

        :raises AsyncnnError: if there is not going to be one.
        """
        usable = self.usable
        if usable is not None:
            return usable
        self._check_hope()
        callback = PreparedModelFuture()
        self._waiting.hold(
            callback,
            None,
            lambda: callback.notify_1_3(hal.ErrorStatus.NONE, self._prepared),
            lambda status: callback.notify_1_3(status, None),
        )
        return await callback
