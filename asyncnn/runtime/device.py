"""`Device`: what applications prepare models on, over any `IDevice`."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeAlias

import numpy as np

from asyncnn.deadlines import DEADLINE_GRACE_S, deadline_after, seconds_until
from asyncnn.devices import DeviceStatistics, IMeasured
from asyncnn.extensions.regions import region_extension_of, region_of
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    PreparationFailedError,
    WrongTypeError,
)
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.operands import is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.routes import IRouting
from asyncnn.hal.types import (
    Capabilities,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Model,
    Priority,
)
from asyncnn.memory.slabs import isolated_array
from asyncnn.runtime.axes import hint_of_open_shapes
from asyncnn.runtime.buffers import DeviceBuffer, MakeArray, Slot, allocate_buffer
from asyncnn.runtime.home import Home, get_ident
from asyncnn.runtime.model import NamedModel, StateTensor, hinting
from asyncnn.runtime.model_cache import ModelCache, prepare
from asyncnn.runtime.opening import Opened
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.translation import (
    divisible,
    engine_forms,
    has_extensions_of,
    translate,
)

DEFAULT_MAX_IN_FLIGHT = 256

_REFUSALS = (ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT)
"""How a device says that it cannot compute a model."""

_PrepareOne: TypeAlias = Callable[..., Awaitable[IPreparedModel]]
"""Prepares one form of a model, in the cache if its kind there is a second argument."""


class Device(Opened):
    """Wraps any `IDevice`; ``hal`` is the device itself.

    One that was opened by ``await`` is closed by `aclose`, or as the context manager
    that it is; one that is made of an `IDevice` leaves that as it is.

    ``make_array`` makes arrays that it can work on where they are. Prepared models are
    kept in ``cache``. ``sync_exec_hal`` forces one of the HAL's calls, as of
    `open_device`. Bursts wait for ``deadline_grace`` seconds beyond a deadline.
    """

    def __init__(
        self,
        name: str,
        hal: IDevice,
        *,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        make_array: MakeArray = np.empty,
        cache: ModelCache | None = None,
        sync_exec_hal: bool | None = None,
        deadline_grace: float = DEADLINE_GRACE_S,
    ) -> None:
        if not isinstance(max_in_flight, int) or max_in_flight < 1:
            raise InvalidArgumentError(
                f"max_in_flight is {max_in_flight!r}", hint="give 1 or more"
            )
        self.name = name
        self.hal = hal
        self._max_in_flight = max_in_flight
        self._make_array = make_array
        self._cache = cache
        self._sync_exec_hal = sync_exec_hal
        self._deadline_grace = deadline_grace
        self._home = Home()
        self._routing = hal if isinstance(hal, IRouting) else None

    @property
    def is_remote(self) -> bool:
        """Whether it lies in another process, with which memory has to be shared."""
        return self._make_array is not np.empty

    @property
    def copies(self) -> bool:
        """Whether it lies in a process of another user, which sees no slabs."""
        return self._make_array is isolated_array

    @property
    def version(self) -> str:
        """Version string of the driver."""
        return self.hal.get_version_string()[1]

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self.hal.get_type()[1]

    @property
    def capabilities(self) -> Capabilities:
        """Performance relative to the CPU."""
        return self.hal.get_capabilities_1_3()[1]

    async def statistics(self) -> DeviceStatistics:
        """Return what the device does and has done since it was opened.

        A driver of another user shows only its totals and this client.

        :raises GeneralFailureError: if the device keeps no statistics.
        :raises DeviceUnavailableError: if its driver is gone, or it is closed.
        """
        self._check_home()
        if not isinstance(self.hal, IMeasured):
            raise GeneralFailureError(f"{self.name} keeps no statistics")
        return await self.hal.get_statistics()

    async def prepare(
        self,
        model: NamedModel | Model,
        *,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
        identity: bytes | None = None,
        warm: bool = False,
    ) -> PreparedModel:
        """Prepare ``model`` for execution.

        All whose shapes are known is compiled by then; memory is touched by the first
        run. Cancelling the call cancels the preparation. A bare `Model` gets the names
        ``input_0``, ``output_0`` and so on. One that is a region is translated if the
        device does not have its engine, or that refuses it.

        :param timeout: seconds from now until the deadline of the preparation.
        :param identity: what no other model has, such as a checksum of its file; saves
            reading all of a large model to find it in the cache.
        :param warm: run it once, on zeros, so that the first run of the application
            takes no longer than the second; costs that run, and its memory from now on.
            What the run raises is raised.
        :raises InvalidArgumentError: if it is no model, or breaks a rule of the HAL, or
            is to be warm and leaves shapes of inputs to each request.
        :raises GeneralFailureError: if an operation is not supported.
        :raises AsyncnnError: for any other status of the driver.
        """
        self._check_home()
        _check_member(Priority, priority)
        _check_member(ExecutionPreference, preference)
        named = model if isinstance(model, NamedModel) else numbered_ends(model)
        deadline = deadline_after(timeout)

        async def prepared_hal(
            form: NamedModel, kind: bytes | None = b""
        ) -> IPreparedModel:
            order = PrepareArguments(form.model, preference, priority, deadline)
            with hinting(lambda: _hint_of_lengths(form)):
                try:
                    if self._cache is None or kind is None:
                        return await prepare(self.hal, order)
                    known = None if identity is None else identity + kind
                    return await self._cache.prepare(self.hal, order, known)
                except PreparationFailedError as error:
                    raise error.at(self.name) from None

        named, hal = await self._in_a_form_of(named, prepared_hal, deadline)
        zeros = _zeros_for(named) if warm else None
        prepared = PreparedModel(
            named,
            hal,
            max_in_flight=self._max_in_flight,
            make_array=self._make_array,
            sync_exec_hal=self._sync_exec_hal,
            deadline_grace=self._deadline_grace,
            route=None if self._routing is None else self._routing.usual_route(hal),
            device=self.hal,
            owner=self,
        )
        if zeros is not None:
            await prepared.run(zeros, timeout=seconds_until(deadline))
        return prepared

    async def _in_a_form_of(
        self, named: NamedModel, prepare_one: _PrepareOne, deadline: int | None
    ) -> tuple[NamedModel, IPreparedModel]:
        named = await _until(deadline, divisible(self.hal, named))
        if not region_extension_of(named.model):
            return named, await prepare_one(named)
        refusal: AsyncnnError | None = None
        forms = engine_forms(named) if has_extensions_of(self.hal, named.model) else ()
        for form in forms:
            try:
                # To verify a file that a cache keeps takes longer than to prepare it.
                return form, await prepare_one(form, None)
            except AsyncnnError as error:
                if error.status not in _REFUSALS:
                    raise
                refusal = refusal or error
        try:
            translation = translate(named, is_refused=refusal is not None)
            translated = await _until(deadline, translation)
            return translated, await prepare_one(translated, b"translated")
        except AsyncnnError as error:
            if refusal is not None and error.status in _REFUSALS:
                message = f"{refusal.message}; {error.message}"
                raise GeneralFailureError(message, hint=error.hint) from error
            raise

    async def buffer_for(
        self, *slots: Slot, dimensions: tuple[int, ...] = ()
    ) -> DeviceBuffer:
        """Allocate a tensor that stays in the driver, as recurrent state does.

        ``slots`` are the inputs and outputs that it is going to be. One run cannot read
        and write the same buffer: state alternates between two.

        :param dimensions: of the tensor, as far as the slots leave them open.
        :raises InvalidArgumentError: if the slots differ in dtype, quantisation or
            shape, are not of this device, or there is none.
        :raises GeneralFailureError: if the driver has no such buffers, or no memory.
        :raises AsyncnnError: for any other status of the driver.
        """
        self._check_home()
        if not slots or not all(isinstance(slot, Slot) for slot in slots):
            raise WrongTypeError(
                "a buffer is for inputs and outputs of prepared models",
                hint="device.buffer_for(prepared.output('h'), prepared.input('h'))",
            )
        return await allocate_buffer(self.hal, slots, dimensions, self._make_array)

    def _check_home(self) -> None:
        if get_ident() != self._home.loop._thread_id:
            self._home.refuse("the device")

    def __repr__(self) -> str:
        return f"<Device {self.name} {self.hal.get_status().name}>"


def _hint_of_lengths(named: NamedModel) -> str:
    """Return what to do if the lengths of a file's example are why it is refused."""
    if not named.open_shapes:
        return ""
    from asyncnn.engine.lengths import refuses_lengths

    is_why = refuses_lengths(named.model)
    return hint_of_open_shapes(named.open_shapes) if is_why else ""


async def _until(
    deadline: int | None, translation: Awaitable[NamedModel]
) -> NamedModel:
    if deadline is None:
        return await translation
    try:
        async with asyncio.timeout(seconds_until(deadline)) as limit:
            return await translation
    except TimeoutError:
        if limit.expired():
            raise MissedDeadlineTransientError(
                "the deadline passed while the model was translated"
            ) from None
        raise


def _check_member(kind: type[Enum], given: object) -> None:
    try:
        kind(given)
    except ValueError:
        known = ", ".join(f"asyncnn.{kind.__name__}.{each.name}" for each in kind)
        hint = f"give {known}"
        if isinstance(given, str):
            raise WrongTypeError(f"{given!r} is text", hint=hint) from None
        words = f"{given!r} is no {kind.__name__}"
        raise InvalidArgumentError(words, hint=hint) from None


def _zeros_for(named: NamedModel) -> dict[str, Array]:
    """Return real zeros for all inputs."""
    open_shapes = {
        info.name: [length or "?" for length in info.dimensions]
        for info in named.inputs
        if not is_scalar(info.type) and 0 in (info.dimensions or (0,))
    }
    if open_shapes:
        raise InvalidArgumentError(
            f"the shapes of {', '.join(open_shapes)} come with requests, and are not "
            "known",
            hint=hint_of_open_shapes(open_shapes),
        )
    return {info.name: StateTensor(info).first_value() for info in named.inputs}


def numbered_ends(model: Model) -> NamedModel:
    """Return a bare model with numbers for the names of its inputs and outputs.

    :raises InvalidArgumentError: if it is none.
    """
    if not isinstance(model, Model):
        raise WrongTypeError(
            f"a model of type {type(model).__name__} cannot be prepared",
            hint="asyncnn.load_model reads one: prepare(await load_model(path))",
        )
    named = NamedModel.of(
        model,
        [f"input_{k}" for k in range(len(model.main.input_indexes))],
        [f"output_{k}" for k in range(len(model.main.output_indexes))],
    )
    return named if region_of(model) is None else named.knowing(())
