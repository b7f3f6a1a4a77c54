"""Conformance vectors with a device-managed buffer for every input and output."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    BufferToken,
    DataLocation,
    ExecutionPreference,
    MeasureTiming,
    Memory,
    Priority,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.conformance.judging import compare
from asyncnn.tools.conformance.suite import CTS_ONLY
from asyncnn.tools.conformance.vectors import Case, find_specs, load_cases
from tests.devices.domains import NONE, Buffer, allocated, role
from tests.places import PLACES, placed

EMPTY = from_buffer(bytearray(1))
REFUSED = "the model was refused"


@pytest.fixture(params=PLACES)
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[IDevice]:
    async with placed(request.param, ReferenceDevice(), tmp_path) as device:
        yield device


async def problems(device: IDevice, case: Case) -> list[str]:
    """Run a case in buffers; return what is wrong with it."""
    prepared = await _prepared(device, case)
    if prepared is None:
        return [] if case.expect_failure else [REFUSED]
    pools: list[Memory | BufferToken] = []
    sources = [
        await _source(device, prepared, position, array)
        for position, array in enumerate(case.inputs)
    ]
    targets = [
        await allocated(device, [prepared], outputs=[role(index=position)])
        for position in range(len(case.outputs))
    ]
    inputs = []
    for source in sources:
        if source is None:
            inputs.append(RequestArgument(has_no_value=True))
        else:
            inputs.append(RequestArgument(location=DataLocation(len(pools))))
            pools.append(source if isinstance(source, Memory) else source.pool)
    outputs = [
        RequestArgument(location=DataLocation(len(pools) + position))
        for position in range(len(targets))
    ]
    pools += [target.pool for target in targets]
    request = Request(tuple(inputs), tuple(outputs), tuple(pools))
    status, shapes, _ = await prepared.execute_synchronously_1_3(
        request, MeasureTiming.NO, None, None
    )
    if case.expect_failure:
        statuses = {await target.read(1) for target in targets}
        return [] if status is not NONE and NONE not in statuses else ["succeeded"]
    if status is not NONE:
        return [status.name]
    results = [
        await target.contents(np.empty(shape.dimensions, output.value.dtype))
        for target, shape, output in zip(targets, shapes, case.outputs, strict=True)
    ]
    return compare(case, results)


async def _prepared(device: IDevice, case: Case) -> IPreparedModel | None:
    callback = PreparedModelFuture()
    settings = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
    token = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
    device.prepare_model_1_3(case.model, *settings, None, (), (), token, callback)
    try:
        return await callback
    except AsyncnnError:
        return None


async def _source(
    device: IDevice, prepared: IPreparedModel, position: int, array: np.ndarray | None
) -> Buffer | Memory | None:
    """Return a buffer of what the input is; an empty one cannot be filled."""
    if array is None or not array.size:
        return None if array is None else EMPTY
    buffer = await allocated(device, [prepared], [role(index=position)])
    assert await buffer.fill(array, array.shape) is NONE
    return buffer


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(40, id="a sample"),
        pytest.param(
            1, id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)]
        ),
    ],
)
async def test_vectors_pass_in_buffers(
    shared: Path, device: IDevice, every: int
) -> None:
    failed: dict[str, list[str]] = {}
    for spec in find_specs(shared / "vts")[::every]:
        for case in load_cases(spec):
            found = await problems(device, case)
            # Only what the client library alone has to take may be refused.
            if found == [REFUSED] and spec.parent.name.endswith(CTS_ONLY):
                continue
            if found:
                failed[case.name] = found
    assert not failed
