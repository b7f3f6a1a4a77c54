"""Allocating device-managed buffers by the HAL's rules: rows MA1 to MA15."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import BufferDesc, BufferRole
from asyncnn.runtime.model import NamedModel
from tests.devices.domains import (
    F16,
    F32,
    FAILURE,
    INVALID,
    KINDS,
    NONE,
    Q8,
    Q8S,
    Kind,
    additions,
    allocated,
    convolutions,
    execute,
    role,
)
from tests.devices.test_execution import prepare

QUANTISED = [Q8, Q8S]
COMBINATIONS = ("inputs", "input and output", "outputs")


class Foreign:
    """Looks like a prepared model, and must not be called."""

    def __getattr__(self, name: str) -> object:
        pytest.fail(f"{name} of a foreign object was asked for")


async def refusal(
    device: IDevice,
    prepared: Sequence[object],
    inputs: Sequence[BufferRole] = (),
    outputs: Sequence[BufferRole] = (),
    dimensions: tuple[int, ...] = (),
) -> None:
    answer = await device.allocate(
        BufferDesc(dimensions),
        prepared,  # type: ignore[arg-type]
        inputs,
        outputs,
    )
    assert answer == (INVALID, None, 0)


async def refusal_of_two(
    device: IDevice, combination: str, one: NamedModel, other: NamedModel
) -> None:
    """Allocate with a role of each model, which do not go together."""
    prepared = [await prepare(device, one), await prepare(device, other)]
    first, second = role(0), role(1)
    match combination:
        case "inputs":
            await refusal(device, prepared, inputs=[first, second])
        case "outputs":
            await refusal(device, prepared, outputs=[first, second])
        case _:
            await refusal(device, prepared, [first], [second])
            await refusal(device, prepared, [second], [first])


async def test_a_buffer_without_roles_is_refused(device: IDevice) -> None:
    await refusal(device, [])
    await refusal(device, [await prepare(device, convolutions(F32))])


@pytest.mark.parametrize("make", [lambda: None, Foreign, object])
async def test_models_of_others_are_refused_and_not_called(
    device: IDevice, make: Callable[[], object]
) -> None:
    missing = make()
    await refusal(device, [missing], inputs=[role()])
    await refusal(device, [missing], outputs=[role()])


async def test_models_of_another_device_are_refused(device: IDevice) -> None:
    async with ReferenceDevice() as other:
        prepared = [await prepare(other, convolutions(F32))]
        await refusal(device, prepared, inputs=[role()])
        await refusal(device, prepared, outputs=[role()])


@pytest.mark.parametrize(
    "bad",
    [
        role(model=1),
        role(model=-1),
        role(index=1),
        role(index=2**32),
        role(frequency=10.0),
        role(frequency=0.0),
        role(frequency=-0.5),
        role(frequency=float("nan")),
    ],
)
async def test_a_role_that_cannot_be_is_refused(
    device: IDevice, bad: BufferRole
) -> None:
    prepared = [await prepare(device, convolutions(F32))]
    await refusal(device, prepared, inputs=[bad])
    await refusal(device, prepared, outputs=[bad])


async def test_a_role_is_given_once_however_its_model_is_called(
    device: IDevice,
) -> None:
    prepared = await prepare(device, convolutions(F32))
    await refusal(device, [prepared], inputs=[role(), role()])
    await refusal(device, [prepared], outputs=[role(), role()])
    await refusal(device, [prepared, prepared], inputs=[role(0), role(1)])
    await refusal(device, [prepared, prepared], outputs=[role(0), role(1)])


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize(("one", "other"), [(F32, F16), (Q8, Q8S)])
async def test_roles_of_two_types_are_refused(
    device: IDevice, combination: str, one: Kind, other: Kind
) -> None:
    await refusal_of_two(device, combination, convolutions(one), convolutions(other))


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("change", [{"scale": 0.5}, {"zero_point": 10}])
async def test_roles_quantised_differently_are_refused(
    device: IDevice, combination: str, kind: Kind, change: dict[str, float]
) -> None:
    other = kind._replace(**change)
    await refusal_of_two(device, combination, convolutions(kind), convolutions(other))


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimensions", [(4, 4, 2), (4, 4, 4, 2)])
async def test_roles_of_other_dimensions_are_refused(
    device: IDevice, combination: str, kind: Kind, dimensions: tuple[int, ...]
) -> None:
    other = additions(kind, dimensions)
    await refusal_of_two(device, combination, additions(kind), other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimensions", [(4, 4, 2), (4, 4, 4, 2), (2**32,), (-1,) * 4])
async def test_a_description_of_other_dimensions_is_refused(
    device: IDevice, kind: Kind, dimensions: tuple[int, ...]
) -> None:
    prepared = [await prepare(device, convolutions(kind))]
    await refusal(device, prepared, [role()], dimensions=dimensions)
    await refusal(device, prepared, outputs=[role()], dimensions=dimensions)


async def test_the_buffer_of_a_scalar_has_no_dimensions(device: IDevice) -> None:
    prepared = [await prepare(device, additions(F32))]
    await refusal(device, prepared, [role(index=2)], dimensions=(1,))
    await allocated(device, prepared, [role(index=2)])


async def test_garbage_is_refused(device: IDevice) -> None:
    prepared = [await prepare(device, convolutions(F32))]
    await refusal(device, prepared, ["role"])  # type: ignore[list-item]
    await refusal(device, prepared, [role()], dimensions=(1, "x"))  # type: ignore[arg-type]
    await refusal(device, prepared, [role(index="0")])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_axes_and_ranks_go_with_known_ones(
    device: IDevice, kind: Kind
) -> None:
    fixed = await prepare(device, convolutions(kind))
    open_ = await prepare(device, convolutions(kind, dimensions=(0, 4, 4, 2)))
    await allocated(device, [fixed, open_], [role(0)], [role(1)], (0, 0, 4, 0))


async def test_the_same_slot_of_two_models_is_two_roles(device: IDevice) -> None:
    model = convolutions(F32)
    prepared = [await prepare(device, model), await prepare(device, model)]
    await allocated(device, prepared, [role(0), role(1)], [role(0), role(1)])


async def test_tokens_are_unlike_one_another(device: IDevice) -> None:
    prepared = [await prepare(device, convolutions(F32))]
    buffers = [await allocated(device, prepared, [role()]) for _ in range(20)]
    tokens = sorted(buffer.token for buffer in buffers)
    steps = {after - before for before, after in pairwise(tokens)}
    assert len(steps) == 19
    assert tokens[0] >= 2**31
    assert tokens[-1] < 2**32


async def test_a_buffer_outlives_its_models(device: IDevice) -> None:
    prepared: list[IPreparedModel] = [await prepare(device, convolutions(F32))]
    buffer = await allocated(device, prepared, [role()])
    prepared.clear()
    gc.collect()
    x = F32.data(1)
    assert await buffer.fill(x) is NONE
    np.testing.assert_array_equal(await buffer.contents(x), x)


async def test_a_buffer_goes_with_the_last_reference(device: IDevice) -> None:
    prepared = await prepare(device, convolutions(F32))
    buffer = await allocated(device, [prepared], [role()])
    x = F32.data(1)
    assert await buffer.fill(x) is NONE
    pool = buffer.pool
    assert await execute("sync", prepared, [pool], [np.empty_like(x)]) is NONE
    del buffer
    status = NONE
    async with asyncio.timeout(20):  # a lane may hold its last request a moment longer
        while status is NONE:
            gc.collect()
            await asyncio.sleep(0.001)
            status = await execute("sync", prepared, [pool], [np.empty_like(x)])
    assert status is INVALID


async def test_a_client_has_as_many_bytes_as_the_settings_say() -> None:
    settings = DeviceSettings(max_buffer_bytes=300)
    async with ReferenceDevice(settings) as device:
        prepared = [await prepare(device, convolutions(F32))]
        first = await allocated(device, prepared, [role()])
        second = await allocated(device, prepared, [role()])
        full = await device.allocate(BufferDesc(()), prepared, [role()], [])
        assert full == (FAILURE, None, 0)
        del first
        gc.collect()
        third = await allocated(device, prepared, [role()])
        assert second.token != third.token
