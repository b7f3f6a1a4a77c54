import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.devices.support import supporting
from asyncnn.hal.errors import (
    ResourceExhaustedPersistentError,
    all_memory_bytes,
    check_memory,
    group_memory_bytes,
)
from asyncnn.hal.types import (
    ErrorStatus,
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.pacing import completed
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests import networks
from tests.engine.test_control_flow import if_model
from tests.hal.validate.chains import chain

VECTOR = Operand(OperandType.TENSOR_FLOAT32, (1024,))
VECTOR_BYTES = 4 * 1024


def test_one_can_stop_asking_every_hundred_operations() -> None:
    model = chain(1_000)
    assert sum(1 for _ in supporting(model)) >= 10
    assert completed(supporting(model)) == (True,) * 1_000


def test_one_can_stop_asking_within_subgraphs() -> None:
    body = chain(500).main
    model = replace(if_model((3,)), referenced=(body, body))
    assert sum(1 for _ in supporting(model)) >= 10


def test_only_what_runs_a_subgraph_without_kernels_does_not_run() -> None:
    model = if_model((3,))
    assert completed(supporting(model)) == (True,)
    body = model.referenced[0]
    oem = replace(body.operations[0], type=OperationType.OEM_OPERATION)
    wrong = replace(body, operations=(oem, *body.operations[1:]))
    model = replace(model, referenced=(wrong, *model.referenced[1:]))
    assert completed(supporting(model)) == (False,)


@pytest.mark.parametrize("name", ["reference", "accelerated"])
@pytest.mark.parametrize("fits", [True, False])
async def test_what_takes_too_much_memory_is_refused(name: str, fits: bool) -> None:
    most_bytes = 2 * VECTOR_BYTES - (not fits)
    model = networks.chain(4, 1024)
    settings = DeviceSettings(max_run_bytes=most_bytes)
    async with asyncnn.open_device(name, settings=settings) as device:
        status, supported = await device.hal.get_supported_operations_1_3(model.model)
        assert status is ErrorStatus.NONE
        assert supported == (True, fits, fits, True)
        if fits:
            await device.prepare(model)
            return
        with pytest.raises(ResourceExhaustedPersistentError) as caught:
            await device.prepare(model)
        told = f"{2 * VECTOR_BYTES} bytes at a time: DeviceSettings.max_run_bytes is"
        assert f"{told} {most_bytes}" in str(caught.value)


async def test_what_is_there_at_a_time_counts() -> None:
    """Though each operation alone needs less."""
    builder = ModelBuilder()
    x = builder.input("x", VECTOR.type, VECTOR.dimensions)
    none = builder.scalar(FusedActivationFunc.NONE)
    parts = [builder.operation(OperationType.RELU, [x], VECTOR) for _ in range(8)]
    value = parts.pop(0)
    while parts:
        value = builder.operation(OperationType.ADD, [value, parts.pop(), none], VECTOR)
    builder.output(value, "z")
    model = builder.build()
    settings = DeviceSettings(max_run_bytes=4 * VECTOR_BYTES)
    async with asyncnn.open_device("reference", settings=settings) as device:
        status, supported = await device.hal.get_supported_operations_1_3(model.model)
        assert (status, all(supported)) == (ErrorStatus.NONE, True)
        with pytest.raises(ResourceExhaustedPersistentError, match="at a time"):
            await device.prepare(model)


def far_apart() -> NamedModel:
    """Return a convolution whose two taps lie 4 MiB of padding apart."""
    builder = ModelBuilder()
    image = Operand(OperandType.TENSOR_FLOAT32, (1, 1, 1, 1))
    x = builder.input("x", image.type, image.dimensions)
    filter_ = builder.constant(np.ones((1, 2, 1, 1), np.float32))
    bias = builder.constant(np.full(1, 3, np.float32))
    apart = 2**20
    numbers = [0, 0, apart // 2, apart // 2, 1, 1, 0]
    scalars = [builder.scalar(number) for number in numbers]
    layout = [builder.scalar(False), builder.scalar(1), builder.scalar(apart)]
    inputs = [x, filter_, bias, *scalars, *layout]
    builder.output(builder.operation(OperationType.CONV_2D, inputs, image), "y")
    return builder.build()


def of_any_length() -> NamedModel:
    """Return a model of temporaries whose lengths only runs tell."""
    builder = ModelBuilder()
    open_ = Operand(OperandType.TENSOR_FLOAT32, (0,))
    value = builder.input("x", open_.type, open_.dimensions)
    for _ in range(3):
        value = builder.operation(OperationType.RELU, [value], open_)
    builder.output(value, "y")
    return builder.build()


def as_long_as_it_says() -> NamedModel:
    """Return a model of temporaries as long as its input says."""
    builder = ModelBuilder()
    open_ = Operand(OperandType.TENSOR_FLOAT32, (0,))
    x = builder.input("x", OperandType.TENSOR_INT32, (1,))
    one = builder.constant(np.ones(1, np.float32))
    value = builder.operation(OperationType.TILE, [one, x], open_)
    for _ in range(3):
        value = builder.operation(OperationType.RELU, [value], open_)
    axes = builder.constant(np.zeros(1, np.int32))
    inputs = [value, axes, builder.scalar(True)]
    y = Operand(OperandType.TENSOR_FLOAT32, (1,))
    builder.output(builder.operation(OperationType.REDUCE_MAX, inputs, y), "y")
    return builder.build()


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(
    ("make", "x", "expected"),
    [
        # Each of four takes 2 MiB.
        (as_long_as_it_says, np.full(1, 2**19, np.int32), 1),
        (far_apart, np.ones((1, 1, 1, 1), np.float32), 3),
        (of_any_length, np.ones(2**20, np.float32), 1),
    ],
)
async def test_what_only_runs_show_counts(
    make: Callable[[], NamedModel], x: np.ndarray, expected: float, fits: bool
) -> None:
    settings = DeviceSettings(max_run_bytes=2**24 if fits else 2**22 - 1)
    async with asyncnn.open_device("reference", settings=settings) as device:
        prepared = await device.prepare(make())
        if fits:
            y = (await prepared.run([x]))["y"]
            np.testing.assert_array_equal(y, np.full_like(x, expected))
            return
        with pytest.raises(ResourceExhaustedPersistentError, match="at a time"):
            await prepared.run([x])


def test_without_a_limit_it_is_what_a_process_can_have() -> None:
    most_bytes = all_memory_bytes()
    check_memory(most_bytes, None)
    with pytest.raises(ResourceExhaustedPersistentError, match="a process can have"):
        check_memory(most_bytes + 1, None)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "max\n"}, math.inf),
        ("0::/a/b\n", {"memory.max": "9", "a/memory.max": "max"}, 9),
        ("0::/a/b\n", {"a/memory.max": "7", "a/b/memory.max": "8"}, 7),
        ("0::/of/the/host\n", {"memory.max": "5"}, 5),
        ("5:cpu:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "6"}, 6),
        ("5:cpu:/\n", {"cpu/memory.limit_in_bytes": "1"}, math.inf),
        (None, {}, math.inf),
    ],
)
def test_a_process_has_no_more_than_its_control_groups(
    groups: str | None, limits: dict[str, str], expected: float, tmp_path: Path
) -> None:
    listed = tmp_path / "groups"
    if groups is not None:
        listed.write_text(groups)
    for name, text in limits.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert group_memory_bytes(listed, tmp_path / "root") == expected
