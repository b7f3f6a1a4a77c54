"""Executions that omit an output of the model that a later partition needs."""

import numpy as np
import pytest

import asyncnn
from asyncnn.callbacks import ExecutionFuture
from asyncnn.fenced_run import execute_fenced, launcher_of
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    RequestArgument,
)
from asyncnn.memory.slabs import place_of, shared_array
from tests.runtime.framework.mixed import (
    DEVICES,
    SHAPE,
    WHEREVER_BETTER,
    expected,
    inputs,
    mixed,
)


def argument(array: np.ndarray, number: int) -> RequestArgument:
    _, offset = place_of(array)
    return RequestArgument(location=DataLocation(number, offset, array.nbytes))


@pytest.mark.parametrize("open_axis", [None, 1])
@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_an_output_that_is_read_further_on_may_be_omitted(
    path: str, open_axis: int | None
) -> None:
    given = inputs()
    wanted = await expected(given)
    x, y = shared_array(SHAPE), shared_array(SHAPE)
    x[...] = given["x"]
    request = Request(
        (argument(x, 0),),
        (argument(y, 1), RequestArgument(has_no_value=True)),
        (place_of(x)[0], place_of(y)[0]),
    )
    if open_axis is not None:
        first = RequestArgument(location=request.inputs[0].location, dimensions=SHAPE)
        request = Request((first,), request.outputs, request.pools)
    framework = asyncnn.FrameworkSettings(
        fallback="forbid", moving_weight=WHEREVER_BETTER.moving_weight
    )
    async with asyncnn.open_devices(*DEVICES, framework=framework) as device:
        prepared = (await device.prepare(mixed(open_axis=open_axis))).hal
        assert len(prepared.steps) == 3
        for _ in range(3):
            y[...] = 0
            options = (MeasureTiming.NO, None, None)
            if path == "fenced" and open_axis is None:
                launch = launcher_of(prepared)
                result = await execute_fenced(launch, request, ExecutionOptions())
            elif path == "sync":
                result = await prepared.execute_synchronously_1_3(request, *options)
            else:
                callback = ExecutionFuture()
                prepared.execute_1_3(request, *options, callback)
                result = await callback
            status = result[0] if isinstance(result, tuple) else result.status
            assert status is ErrorStatus.NONE
            np.testing.assert_array_equal(y, wanted["y"])
