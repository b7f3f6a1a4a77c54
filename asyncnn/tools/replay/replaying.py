"""The work behind ``asyncnn replay``: a recording repeated, compared and cut down."""

import statistics
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from asyncnn.devices.device_settings import DeviceSettings, with_options
from asyncnn.devices.own_devices import own_device
from asyncnn.hal.types import ErrorStatus, Memory, Model
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service.recorded_memory import CallKind
from asyncnn.service.recording import (
    CallRecord,
    RecordedModel,
    decoded_model,
    digest_of,
    encoded_model,
)
from asyncnn.tools.replay.cutting import cut
from asyncnn.tools.replay.judging import (
    CallDifference,
    differing_output,
    differing_status,
    status_name,
)
from asyncnn.tools.replay.repeating import Repetition, is_complete


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be repeated, and how.

    ``device`` None is the recorded one. ``models`` are files of those models that the
    recording has not. Calls are ``paced`` as they were, or made as soon as may be. They
    are made ``rounds`` times.
    """

    record: CallRecord
    device: str | None = None
    models: Sequence[Path] = ()
    extensions: Sequence[str] = ()
    paced: bool = False
    rounds: int = 1


class KindTimes(msgspec.Struct, frozen=True):
    """Calls of a kind, and medians in microseconds of how long they took."""

    kind: str
    calls: int
    recorded_us: float
    replayed_us: float


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a repetition went.

    Of ``calls``, ``repeated`` were made again, and of ``compared`` of these the outputs
    were compared, too. ``by_time`` may have ended otherwise. ``refusals`` say why
    others were not made, and how many.
    """

    device: str
    calls: int
    repeated: int
    compared: int
    by_time: int
    refusals: dict[str, int]
    differences: tuple[CallDifference, ...]
    times: tuple[KindTimes, ...] = ()
    cut_calls: int | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def replayed(request: ReplayRequest) -> ReplayReport:
    """Repeat a recording on a device that is opened for it, and compare.

    :raises AsyncnnError: if the device cannot be opened, or a model file not be read.
    """
    models = found_models(request.record, request.models, request.extensions)
    reports = [await _once(request, models) for _ in range(request.rounds)]
    told = [report for report, _ in reports]
    report = next((each for each in told if not each.passed), told[0])
    times = _times(request.record, [each for _, each in reports])
    return msgspec.structs.replace(report, times=times)


async def cut_down(request: ReplayRequest) -> CallRecord:
    """Return the part of a recording that differs still.

    :raises AsyncnnError: as `replayed`.
    """
    models = found_models(request.record, request.models, request.extensions)

    async def fails(part: CallRecord) -> bool:
        trial = msgspec.structs.replace(request, record=part)
        return not (await _once(trial, models))[0].passed

    return await cut(request.record, fails)


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


def _whole(known: RecordedModel) -> Model:
    pools: list[Memory] = [from_buffer(data) for data in known.pools]
    return msgspec.structs.replace(decoded_model(known.content), pools=tuple(pools))


@asynccontextmanager
async def _opened(request: ReplayRequest) -> AsyncIterator[Device]:
    """Open the device, in a process of its own if it is one of this package's."""
    driver = request.record.driver
    name = request.device or driver.device or None
    settings = DeviceSettings()
    if request.device in (None, driver.device):
        # A file may name any path; such settings do not change what is computed.
        paths = ("cache_key_file", "packed_weights_dir", "capabilities_file")
        told = [each for each in driver.settings if not each.startswith(paths)]
        settings = with_options(settings, told)
    extensions = tuple(request.extensions)
    if name is None or own_device(name):
        opening = connect(device=name, settings=settings, extensions=extensions)
    else:
        opening = open_device(name, settings=settings, extensions=extensions)
    async with opening as device:
        yield device


async def _once(
    request: ReplayRequest, models: dict[int, Model]
) -> tuple[ReplayReport, Repetition]:
    async with _opened(request) as device:
        repetition = Repetition(request.record, device.hal, models)
        await repetition.run(is_paced=request.paced)
        name, other = device.name, [*_routes(request.record, repetition, device.hal)]
        cause = cause_of_death(device.hal)
        if cause is not None:
            other.append(_death(request.record, repetition, cause))
    return _judged(request.record, repetition, name, other), repetition


def _routes(
    record: CallRecord, repetition: Repetition, device: IDevice
) -> Iterator[CallDifference]:
    """Yield which models are divided among devices in another way than they were."""
    for told in record.routes:
        prepared = repetition.prepared.get(told.model)
        if isinstance(device, IRouting) and prepared is not None:
            route = device.usual_route(prepared)
            if route is not None and route != told.route:
                what = f"the route of model {told.model}"
                yield CallDifference(0, "prepare", what, str(told.route), str(route))


def _death(
    record: CallRecord, repetition: Repetition, cause: AsyncnnError
) -> CallDifference:
    """Return what tells that the driver died, at the first call that it did not end."""
    lost = ErrorStatus.DEVICE_UNAVAILABLE
    places = [
        n for n, each in sorted(repetition.outcomes.items()) if each.status == lost
    ]
    place = places[0] if places else len(record.calls) - 1
    kind, then = "driver", "no end"
    if places:
        call = record.calls[place]
        kind, then = call.kind.name.lower(), status_name(call.status)
    return CallDifference(place, kind, "the driver died", then, str(cause))


def _judged(
    record: CallRecord,
    repetition: Repetition,
    device: str,
    differences: list[CallDifference],
) -> ReplayReport:
    compared = by_time = 0
    for place, outcome in sorted(repetition.outcomes.items()):
        call = record.calls[place]
        name = call.kind.name.lower()
        if repetition.needs.by_time[place]:
            by_time += 1
            continue
        if differing_status(call, outcome):
            told = status_name(outcome.status)
            told = f"{told}: {outcome.reason}" if outcome.reason else told
            differences.append(
                CallDifference(place, name, "status", status_name(call.status), told)
            )
            continue
        request, model = record.requests.get(call.subject), repetition.model_of(call)
        if outcome.status != ErrorStatus.NONE or not repetition.needs.is_known[place]:
            continue
        if call.kind is CallKind.COPY_TO:
            compared += 1
            if call.outputs[:1] != outcome.outputs[:1] and call.outputs:
                told = "other bytes"
                differences.append(CallDifference(place, name, "buffer", "", told))
        elif request is not None and model is not None and call.outputs:
            if not outcome.outputs or not is_complete(call, request):
                continue
            compared += 1
            found = differing_output(call, outcome, request, model)
            if found is not None:
                what, how = f"output {found[0]}", f"{found[1]} differ"
                differences.append(CallDifference(place, name, what, "", how))
    return ReplayReport(
        device=device,
        calls=len(record.calls),
        repeated=len(repetition.outcomes),
        compared=compared,
        by_time=by_time,
        refusals=dict(Counter(repetition.refusals.values())),
        differences=tuple(differences),
    )


def _times(
    record: CallRecord, repetitions: Sequence[Repetition]
) -> tuple[KindTimes, ...]:
    """Return how long calls of each kind took, then and now."""
    found = []
    for kind in CallKind:
        places = [n for n, call in enumerate(record.calls) if call.kind is kind]
        then = [
            (ended - call.began_ns) / 1000
            for call in (record.calls[n] for n in places)
            if (ended := call.ended_ns) is not None
        ]
        now = [
            each.outcomes[n].took_ns / 1000
            for each in repetitions
            for n in places
            if n in each.outcomes
        ]
        if then and now:
            medians = statistics.median(then), statistics.median(now)
            found.append(KindTimes(kind.name.lower(), len(places), *medians))
    return tuple(found)
