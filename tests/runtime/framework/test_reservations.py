"""Tensors between partitions of one device, in buffers of that device."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.refusals import AllocateArguments
from asyncnn.hal.types import BufferDesc, BufferToken, ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from tests.runtime.framework.crippled import EXECUTING, CrippledDevice, Fault
from tests.runtime.framework.mixed import FLOATS, WHEREVER_BETTER, assert_same, expected

T = asyncnn.OperationType
SHAPE = (8, 12)
GIVEN = {"x": np.linspace(1, 2, 96, dtype=np.float32).reshape(SHAPE)}
PATHS = ("async", "sync", "burst", "fenced")


def around() -> asyncnn.NamedModel:
    """Return a model whose last partition needs the CPU's, and a tensor of the first.

    The device has all but FLOOR.
    """
    builder = asyncnn.ModelBuilder()
    real = asyncnn.hal.Operand(FLOATS, SHAPE)
    x = builder.input("x", FLOATS, SHAPE)
    kept = builder.operation(T.SIN, [x], real)
    handed = builder.operation(T.EXP, [x], real)
    back = builder.operation(T.FLOOR, [handed], real)
    none = builder.scalar(0)
    builder.output(builder.operation(T.ADD, [kept, back, none], real), "y")
    return builder.build()


@asynccontextmanager
async def framework(
    settings: FrameworkSettings = WHEREVER_BETTER, **options: Any
) -> AsyncIterator[tuple[Device, CrippledDevice]]:
    async with ReferenceDevice() as inner:
        own = CrippledDevice(inner, {T.FLOOR}, has_memory=True, **options)
        async with open_framework(
            DeviceSettings(), devices=[OpenDevice("own", own)], framework=settings
        ) as hal:
            yield Device("framework", hal), own
            assert not hal._host.active
        own.bursts.close()


@pytest.mark.parametrize("path", PATHS)
async def test_what_one_device_hands_to_itself_stays_there(path: str) -> None:
    async with framework() as (device, own):
        prepared = await device.prepare(around())
        assert own.allocated == 1
        async with prepared.runner(path) as run:
            for _ in range(3):
                outputs = await run(GIVEN)
                assert_same(dict(outputs), await expected(GIVEN, around()))
                assert outputs.route.devices == ("own", "reference", "own")
        # Fenced ones are launched before the buffer has its contents.
        assert own.in_buffers == (0 if path == "fenced" else 6)


async def test_a_driver_of_another_user_keeps_them_too() -> None:
    async with asyncnn.connect() as remote:
        partial = CrippledDevice(remote.hal, {T.FLOOR}, has_memory=True)  # type: ignore[arg-type]
        partial.get_type = remote.hal.get_type  # type: ignore[method-assign]
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("driver", partial, is_remote=True, copies=True)],
            framework=WHEREVER_BETTER,
        ) as hal:
            prepared = await Device("framework", hal).prepare(around())
            for _ in range(2):
                outputs = await prepared.run(GIVEN)
                assert_same(dict(outputs), await expected(GIVEN, around()))
        assert partial.in_buffers == 4
        partial.bursts.close()


async def test_only_one_execution_at_a_time_has_them() -> None:
    async with framework() as (device, own):
        prepared = await device.prepare(around())
        every = await asyncio.gather(*(prepared.run(GIVEN) for _ in range(8)))
        for outputs in every:
            assert_same(dict(outputs), await expected(GIVEN, around()))
            assert not outputs.route.fell_back
        assert 2 <= own.in_buffers < 2 * len(every)


FAILURES = [(ErrorStatus.INVALID_ARGUMENT, Mock(), 1), (ErrorStatus.NONE, None, 0)]
"""Answers of a device that has allocated no buffer, though the HAL has none of them."""


@pytest.mark.parametrize("answer", [None, *FAILURES])
async def test_a_device_without_room_gets_shared_memory(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    async def full(*_: Any) -> Any:
        if answer is None:
            raise MemoryError
        return answer

    monkeypatch.setattr(CrippledDevice, "allocate", full)
    async with framework() as (device, own):
        prepared = await device.prepare(around())
        outputs = await prepared.run(GIVEN)
        assert_same(dict(outputs), await expected(GIVEN, around()))
        assert not outputs.route.fell_back
        assert own.in_buffers == 0


@pytest.mark.parametrize("answer", FAILURES)
async def test_what_a_device_of_others_answers_is_a_buffer_or_an_error(
    answer: Any,
) -> None:
    device = Mock(allocate=AsyncMock(return_value=answer))
    with pytest.raises(AsyncnnError, match="has allocated no buffer") as caught:
        await AllocateArguments(BufferDesc(()), [], [], []).by(device)
    assert caught.value.status is (answer[0] or ErrorStatus.GENERAL_FAILURE)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fallback", [Fallback.PARTIAL, Fallback.FULL])
@pytest.mark.parametrize("healthy", [0, 1])
@pytest.mark.parametrize("fault", EXECUTING)
async def test_what_fails_is_computed_without_them(
    fault: Fault, healthy: int, fallback: Fallback, path: str
) -> None:
    settings = replace(WHEREVER_BETTER, fallback=fallback)
    async with framework(settings, fault=fault, healthy=healthy) as (device, _):
        prepared = await device.prepare(around())
        async with prepared.runner(path) as run:
            for _ in range(3):
                outputs = await run(GIVEN)
                assert_same(dict(outputs), await expected(GIVEN, around()))
        assert outputs.route.fell_back


@pytest.mark.parametrize("fault", [Fault.EXECUTING_LATER, Fault.LATE])
async def test_without_a_fallback_it_fails(fault: Fault) -> None:
    settings = replace(WHEREVER_BETTER, fallback=Fallback.FORBID)
    async with framework(settings, fault=fault, healthy=1) as (device, _):
        prepared = await device.prepare(around())
        with pytest.raises(asyncnn.AsyncnnError) as caught:
            await prepared.run(GIVEN)
        assert caught.value.status is EXECUTING[fault]


async def test_a_buffer_that_is_gone_costs_one_attempt() -> None:
    settings = replace(WHEREVER_BETTER, fallback=Fallback.FORBID)
    async with framework(settings) as (device, own):
        prepared = await device.prepare(around())
        assert_same(dict(await prepared.run(GIVEN)), await expected(GIVEN, around()))
        # As if its driver had been restarted.
        tokens = prepared.hal.spaces._with_buffers.reserved.tokens
        tokens.update(dict.fromkeys(tokens, BufferToken(99)))
        for _ in range(2):
            outputs = await prepared.run(GIVEN)
            assert_same(dict(outputs), await expected(GIVEN, around()))
            assert not outputs.route.fell_back
        assert own.in_buffers == 3
