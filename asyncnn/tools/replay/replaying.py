"""The work behind ``asyncnn replay``: a recording repeated, compared and cut down."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from asyncnn.devices.device_settings import DeviceSettings, with_options
from asyncnn.devices.own_devices import own_device
from asyncnn.extensions.regions import region_of
from asyncnn.hal.interfaces import cause_of_death
from asyncnn.hal.types import Memory, Model
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.device import Device, numbered_ends
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.translation import has_extensions_of, translate
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.service.recording import (
    CallRecord,
    RecordedModel,
    decoded_model,
    digest_of,
    encoded_model,
)
from asyncnn.tools.replay.differing_calls import (
    ReplayReport,
    death_of,
    differing_routes,
    judged,
    times_of,
)
from asyncnn.tools.replay.pinning import cut
from asyncnn.tools.replay.repeating import Repetition
from asyncnn.tools.samples import Tolerance
from asyncnn.tools.watched_processes import served_driver


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be repeated, and how.

    ``device`` None is the recorded one. ``models`` are files of those models that the
    recording has not. Calls are ``paced`` as they were, or made as soon as may be. They
    are made ``rounds`` times. Outputs may be off by as much as is ``allowed``, or by no
    bit.
    """

    record: CallRecord
    device: str | None = None
    models: Sequence[Path] = ()
    extensions: Sequence[str] = ()
    paced: bool = False
    rounds: int = 1
    allowed: Tolerance | None = None


async def replayed(request: ReplayRequest) -> ReplayReport:
    """Repeat a recording on a device that is opened for it, and compare.

    :raises AsyncnnError: if the device cannot be opened, or a model file not be read.
    """
    record = request.record
    async with _trials(request) as trials:
        rounds = [await trials.judge(record) for _ in range(request.rounds)]
    report = next((each for each in rounds if not each.passed), rounds[0])
    return replace(report, times=times_of(record, trials.repetitions))


async def cut_down(request: ReplayRequest) -> CallRecord:
    """Return the part of a recording that differs still.

    :raises AsyncnnError: as `replayed`.
    """
    async with _trials(request) as trials:

        async def fails(part: CallRecord) -> bool:
            return not (await trials.judge(part)).passed

        return await cut(request.record, fails)


class ReplayTrials:
    """Repeats recordings on one device, and opens another after that has died."""

    def __init__(
        self, request: ReplayRequest, models: dict[int, Model], stack: AsyncExitStack
    ) -> None:
        self.repetitions: list[Repetition] = []
        self._request = request
        self._models = models
        self._stack = stack
        self._device: Device | None = None

    async def judge(self, record: CallRecord) -> ReplayReport:
        """Repeat a recording, or a part of it."""
        device = self._device
        if device is None:
            opening = _opened(self._request)
            self._device = device = await self._stack.enter_async_context(opening)
            for number, model in self._models.items():
                self._models[number] = await _in_a_form_for(device, model)
        repetition = Repetition(record, device.hal, self._models)
        await repetition.run(is_paced=self._request.paced)
        self.repetitions.append(repetition)
        differences = list(differing_routes(record, repetition, device.hal))
        cause = cause_of_death(device.hal)
        if cause is not None:
            self._device = None
            await self._stack.aclose()
            differences.append(death_of(record, repetition, cause))
        allowed = self._request.allowed
        return judged(record, repetition, device.name, differences, allowed)


@asynccontextmanager
async def _trials(request: ReplayRequest) -> AsyncIterator[ReplayTrials]:
    models = found_models(request.record, request.models, request.extensions)
    async with AsyncExitStack() as stack:
        yield ReplayTrials(request, models, stack)


def found_models(
    record: CallRecord, paths: Sequence[Path], extensions: Sequence[str]
) -> dict[int, Model]:
    """Return the models by number that the recording or one of the files has.

    :raises AsyncnnError: if one cannot be read, or is damaged.
    """
    by_digest: dict[bytes, Model] = {}
    for path in paths:
        for strict in (False, True):
            model = load(path, extensions=extensions, strict=strict).model
            pools = tuple([view(pool)[: pool.size] for pool in model.pools])
            by_digest[digest_of(encoded_model(model)[0], pools)] = model
    found = {}
    for number, known in record.models.items():
        if known.content:
            found[number] = _whole(known)
        elif known.digest in by_digest:
            found[number] = by_digest[known.digest]
    return found


async def _in_a_form_for(device: Device, model: Model) -> Model:
    """Translate a region if its engine is not there, and it can be translated."""
    if region_of(model) is not None and not has_extensions_of(device.hal, model):
        with suppress(UnsupportedOperatorError):
            return (await translate(numbered_ends(model))).model
    return model


def _whole(known: RecordedModel) -> Model:
    pools: list[Memory] = [from_buffer(data) for data in known.pools]
    return replace(decoded_model(known.content), pools=tuple(pools))


@asynccontextmanager
async def _opened(request: ReplayRequest) -> AsyncIterator[Device]:
    """Open the device in a driver process, which may die of the calls."""
    driver = request.record.driver
    name = request.device or driver.device or None
    extensions = tuple(request.extensions)
    if name is not None and not own_device(name):
        with served_driver(name, records=False, extensions=extensions) as served:
            async with connect(served.path, extensions=extensions) as device:
                yield device
        return
    settings = DeviceSettings()
    if request.device in (None, driver.device):
        # A file may name any path; such settings do not change what is computed.
        settings = with_options(settings, driver.settings)
        paths = ("cache_key_file", "packed_weights_dir", "capabilities_file")
        settings = replace(settings, **dict.fromkeys(paths, ""))
    async with connect(device=name, settings=settings, extensions=extensions) as device:
        yield device
