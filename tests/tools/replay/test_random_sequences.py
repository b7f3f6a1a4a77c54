"""Random calls that a driver has recorded end in the same way once more."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import NoDriverError
from asyncnn.service import RecordingSettings, Server
from asyncnn.service.recorded_memory import CallKind
from asyncnn.service.recording import CallRecord, RecordedDriver
from asyncnn.tools.replay import replaying
from asyncnn.tools.replay.differing_calls import ReplayReport, judged
from asyncnn.tools.replay.pinning import CallNeeds, cut
from asyncnn.tools.replay.repeating import Repetition
from asyncnn.tools.replay.replaying import found_models
from tests.service.recorders import noted_by, recording_driver
from tests.tools.replay.sequences import MODELS, RandomCalls

SETTINGS = RecordingSettings(models=True, tensors=True, max_bytes=2**24)


async def recorded(path: Path, seed: int) -> CallRecord:
    """Return the recording of random calls."""
    chance = random.Random(seed)
    async with recording_driver(path / "first", SETTINGS) as recorder:
        async with asyncnn.connect(path / "first") as device:
            client = RandomCalls(device, path / "first", chance)
            await client.make(MODELS[chance.choice(sorted(MODELS))], 8)
            await client.make_others(MODELS["small"])
        return noted_by(recorder)


async def repeated(path: Path, record: CallRecord) -> ReplayReport:
    """Repeat a recording by another driver of this process."""
    async with (
        ReferenceDevice() as reference,
        Server(reference, path / "second"),
        asyncnn.connect(path / "second") as device,
    ):
        models = found_models(record, (), ())
        repetition = Repetition(record, device.hal, models)
        await repetition.run(is_paced=False)
        return judged(record, repetition, device.name, [])


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_statuses_and_outputs(tmp_path: Path, seed: int) -> None:
    record = await recorded(tmp_path, seed)
    assert {CallKind.PREPARE, CallKind.EXECUTE} <= {call.kind for call in record.calls}
    report = await repeated(tmp_path, record)
    assert report.differences == ()
    assert report.refusals == {}
    assert report.repeated == len(record.calls)
    assert report.compared > 5


async def test_a_planted_difference_is_found_and_cut_down(tmp_path: Path) -> None:
    record = await recorded(tmp_path, 1)
    calls = list(record.calls)
    needs = CallNeeds(record).of
    alone = [n for n, call in enumerate(calls) if any(call.outputs) and not needs[n]]
    place = alone[len(alone) // 2]
    wrong = bytes([calls[place].outputs[0][0] ^ 1]) + calls[place].outputs[0][1:]
    calls[place] = msgspec.structs.replace(calls[place], outputs=(wrong,))
    planted = msgspec.structs.replace(record, calls=tuple(calls))
    (found,) = (await repeated(tmp_path, planted)).differences
    assert found.call == place
    assert found.repeated.startswith("1 of ")

    async def fails(part: CallRecord) -> bool:
        return not (await repeated(tmp_path, part)).passed

    left = await cut(planted, fails)
    assert left.calls == (calls[place],)
    assert len(left.models) == len(left.requests) == 1


async def test_another_status_is_a_difference(tmp_path: Path) -> None:
    record = await recorded(tmp_path, 2)
    calls = [
        msgspec.structs.replace(call, status=2 if call.kind is CallKind.PREPARE else 0)
        for call in record.calls[:2]
    ]
    report = await repeated(tmp_path, record.of_calls(tuple(calls)))
    assert [each.recorded for each in report.differences] == ["GENERAL_FAILURE"]


async def test_inputs_that_do_not_fit_are_not_given(tmp_path: Path) -> None:
    record = await recorded(tmp_path, 0)
    place, call = next(
        (number, call)
        for number, call in enumerate(record.calls)
        if call.kind is CallKind.EXECUTE and any(call.details.inputs)
    )
    inputs = [data and data[:-1] for data in call.details.inputs]
    details = msgspec.structs.replace(call.details, inputs=tuple(inputs))
    calls = list(record.calls)
    calls[place] = msgspec.structs.replace(call, details=details)
    part = msgspec.structs.replace(record, calls=tuple(calls[: place + 1]))
    report = await repeated(tmp_path, part)
    assert report.refusals == {"its inputs do not fit its request": 1}
    assert report.repeated == place


@pytest.mark.parametrize(
    "option", ["packed_weights_dir=/x", " packed_weights_dir = /x"]
)
async def test_no_path_is_taken_from_a_recording(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    given: list[DeviceSettings] = []

    @asynccontextmanager
    async def opened(settings: DeviceSettings, **_: object) -> AsyncIterator[None]:
        given.append(settings)
        raise NoDriverError("not needed")
        yield

    monkeypatch.setattr(replaying, "connect", opened)
    driver = RecordedDriver("reference", settings=("lanes=3", option))
    record = CallRecord(driver, 0, (), {}, {}, {})
    with pytest.raises(NoDriverError, match="not needed"):
        await replaying.replayed(replaying.ReplayRequest(record=record))
    assert given == [DeviceSettings(lanes=3)]


async def test_what_a_chain_needs_stays_with_it(tmp_path: Path) -> None:
    chained = None
    for seed in range(20):
        record = await recorded(tmp_path, seed)
        chained = next((c for c in record.calls if c.details.wait_for), None)
        if chained is not None:
            break
    assert chained is not None

    async def fails(part: CallRecord) -> bool:
        return chained in part.calls

    left = await cut(record, fails)
    numbers = {call.number for call in left.calls if call.kind is CallKind.FENCED}
    assert numbers >= {chained.number, *chained.details.wait_for}
    assert (await repeated(tmp_path, left)).passed
