"""Runs on shared arrays copy nothing; ``out`` decides where results go."""

from typing import Any

import numpy as np
import pytest

from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.execution import Execution
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory, OperandType, OperationType, Request
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from tests.networks import addition
from tests.places import PLACES, device_at

LENGTH = 4


device = device_at(*PLACES)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Requests as the driver has them."""
    requests: list[Request] = []

    def watch(name: str) -> None:
        method = getattr(InProcessPreparedModel, name)

        def watched(self: Any, request: Request, *arguments: Any) -> Any:
            requests.append(request)
            return method(self, request, *arguments)

        monkeypatch.setattr(InProcessPreparedModel, name, watched)

    watch("execute_1_3")
    watch("launch")
    return requests


def arrays_of(request: Request) -> list[Array]:
    """The driver's own views of the arguments."""
    if isinstance(request, Execution):
        return list(request.arrays)
    views = []
    for argument in (*request.inputs, *request.outputs):
        memory, offset = request.pools[argument.location.pool_index], argument.location
        assert isinstance(memory, Memory)
        assert memory.buffer is not None
        data = memory.buffer.cast("B")[offset.offset :][: offset.length]
        views.append(np.frombuffer(data, np.float32))
    return views


def apart() -> list[Array]:
    return [shared_array(LENGTH) for _ in range(3)]


def rows_of_one() -> list[Array]:
    return list(shared_array((3, LENGTH)))


@pytest.mark.parametrize("make", [apart, rows_of_one])
@pytest.mark.parametrize("path", ["async", "sync"])
async def test_the_driver_works_on_shared_arrays_themselves(
    device: Device,
    seen: list[Request],
    make: Any,
    path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncnn.service.client.staging.allocate", None)
    arrays = x, y, z = make()
    prepared = await device.prepare(addition(LENGTH))
    for _ in range(3):
        x[:], y[:] = np.random.default_rng(0).random((2, LENGTH))
        outputs = await prepared.run({"x": x, "y": y}, out={"z": z}, path=path)
        assert outputs["z"] is z
        np.testing.assert_array_equal(z, x + y)
    for ours, theirs in zip(arrays, arrays_of(seen[-1]), strict=True):
        ours[:] = 42  # as only the same memory can show
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("shared", ["x", "y", "z", ""])
async def test_shared_and_ordinary_arrays_mix(device: Device, shared: str) -> None:
    prepared = await device.prepare(addition(LENGTH))
    arrays = {
        name: shared_array(LENGTH) if name == shared else np.zeros(LENGTH, np.float32)
        for name in "xyz"
    }
    for number in range(3):
        arrays["x"][:], arrays["y"][:] = number, 10
        z = arrays["z"]
        await prepared.run({name: arrays[name] for name in "xy"}, out=z)
        np.testing.assert_array_equal(z, np.full(LENGTH, 10 + number))


async def test_views_that_are_not_contiguous_are_copied(device: Device) -> None:
    prepared = await device.prepare(addition(LENGTH))
    columns = shared_array((LENGTH, 2))
    columns[:] = np.arange(2 * LENGTH).reshape(LENGTH, 2)
    outputs = await prepared.run([columns[:, 0], columns[:, 1]])
    np.testing.assert_array_equal(outputs["z"], columns.sum(1))


@pytest.mark.parametrize("form", ["mapping", "sequence", "array"])
async def test_out_is_given_as_inputs_are(device: Device, form: str) -> None:
    prepared = await device.prepare(addition(LENGTH))
    x, z = np.arange(LENGTH, dtype=np.float32), np.empty(LENGTH, np.float32)
    out: Any = {"mapping": {"z": z}, "sequence": [z], "array": z}[form]
    outputs = await prepared.run([x, x], out=out)
    assert list(outputs) == ["z"]
    assert outputs["z"] is z
    np.testing.assert_array_equal(z, 2 * x)


async def test_results_go_to_an_array_that_is_not_aligned(device: Device) -> None:
    prepared = await device.prepare(addition(LENGTH))
    out = np.zeros(4 * LENGTH + 1, np.uint8)[1:].view(np.float32)
    assert not out.flags.aligned
    outputs = await prepared.run([read_only(), read_only() + 1], out=out)
    assert outputs["z"] is out
    np.testing.assert_array_equal(out, 2 * read_only() + 1)


def read_only() -> Array:
    array = np.zeros(LENGTH, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ({}, "missing output: z"),
        ({"z": np.zeros(LENGTH, np.float32), "q": None}, "unknown output: q"),
        ([], "a list of 0 given for 1 output: z"),
        ("z", "outputs cannot be of type str"),
        (np.zeros(LENGTH), r"a float32 array of shape \[4\]"),
        (np.zeros(LENGTH + 1, np.float32), r"a float32 array of shape \[4\]"),
        (np.zeros(2 * LENGTH, np.float32)[::2], "contiguous and writable"),
        (read_only(), "contiguous and writable"),
    ],
)
async def test_an_array_that_an_output_cannot_go_to_is_refused(
    device: Device, out: Any, reason: str
) -> None:
    prepared = await device.prepare(addition(LENGTH))
    x = np.zeros(LENGTH, np.float32)
    with pytest.raises(InvalidArgumentError, match=reason):
        await prepared.run([x, x], out=out)


async def test_an_output_of_open_shape_is_given_no_array(device: Device) -> None:
    prepared = await device.prepare(_open_model())
    x = np.zeros(3, np.float32)
    assert (await prepared.run([x]))["y"].shape == (3,)
    with pytest.raises(InvalidArgumentError, match="no fixed shape"):
        await prepared.run([x], out=x)


def _open_model() -> NamedModel:
    builder = ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (0,))
    y = builder.operation(OperationType.RELU, [x], builder.operand(x))
    builder.output(y, "y")
    return builder.build()
