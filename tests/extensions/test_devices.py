"""Extensions on devices in this process and behind a socket."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings
from asyncnn.extensions import (
    Argument,
    BoundOperation,
    Extension,
    Extensions,
    stateless,
)
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    ExtensionNameAndPrefix,
    MeasureTiming,
    Model,
    Operand,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
)
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import connect, open_device
from tests.extensions.models import magnitude
from tests.extensions.vendor import (
    COMPLEX,
    COMPLEX_SCALAR,
    F32,
    I32,
    MAGNITUDE,
    NONZERO,
    SCALE,
    vendor,
)
from tests.networks import chain

X = np.array([3 + 4j, 0, -1j], np.complex64)


def scaled_twice() -> NamedModel:
    """``y = |x * factor * 2j|`` with complex constants and a temporary of open rank."""
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (3,))
    factor = builder.input("factor", COMPLEX_SCALAR)
    scaled = builder.operation(SCALE, [x, factor], Operand(COMPLEX))
    rest = builder.scalar(2j, COMPLEX_SCALAR)
    again = builder.operation(SCALE, [scaled, rest], Operand(COMPLEX, (3,)))
    builder.output(builder.operation(MAGNITUDE, [again], Operand(F32, (3,))), "y")
    return builder.build()


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_operations_of_an_extension_run(device: Device, path: str) -> None:
    model = await device.prepare(scaled_twice())
    factor = np.array(0.5, np.complex64)
    outputs = await model.run({"x": X, "factor": factor}, path=path)
    assert outputs["y"].tolist() == [5, 0, 1]


async def test_bursts_carry_values_of_an_extension(device: Device) -> None:
    model = await device.prepare(magnitude())
    async with model.burst() as burst:
        for factor in (1, 2):
            outputs = await burst.run({"x": factor * X})
            assert outputs["y"].tolist() == [5 * factor, 0, factor]


async def test_operations_of_the_hal_stand_beside_them(device: Device) -> None:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (3,))
    absolute = builder.operation(MAGNITUDE, [x], Operand(F32, (0,)))
    twice = builder.operation(SCALE, [absolute, builder.scalar(2.0)], Operand(F32))
    total = builder.operation(
        OperationType.REDUCE_SUM,
        [twice, builder.constant(np.array([0], np.int32)), builder.scalar(True)],
        Operand(F32, (1,)),
    )
    builder.output(total, "total")
    model = await device.prepare(builder.build())
    assert (await model.run([X]))["total"].tolist() == [12]


async def test_what_follows_from_constants_is_computed_once(device: Device) -> None:
    builder = ModelBuilder()
    constant = builder.constant(np.full((64,), 3 + 4j, np.complex64), COMPLEX)
    length = builder.operation(MAGNITUDE, [constant], Operand(F32, (64,)))
    x = builder.input("x", F32, (64,))
    none = builder.scalar(0)
    total = builder.operation(OperationType.ADD, [x, length, none], Operand(F32, (64,)))
    builder.output(total, "y")
    model = await device.prepare(builder.build())
    assert set((await model.run([np.ones(64, np.float32)]))["y"]) == {6}


async def test_output_shapes_may_depend_on_data(device: Device) -> None:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (0,))
    builder.output(builder.operation(NONZERO, [x], Operand(I32, (0,))), "places")
    model = await device.prepare(builder.build())
    assert (await model.run([X]))["places"].tolist() == [0, 2]
    assert (await model.run([X[:2]]))["places"].tolist() == [0]


async def test_kernels_read_opaque_parameters(device: Device) -> None:
    squared = magnitude(Operand(0, (3,), extra_params=b"\2")).knowing([vendor])
    model = await device.prepare(squared)
    assert (await model.run([X]))["y"].tolist() == [25, 0, 1]


async def test_each_model_has_prefixes_of_its_own(device: Device) -> None:
    named = magnitude()
    high = _moved(named.model, 0xFFFF)
    model = await device.prepare(NamedModel.of(high, ["x"], ["y"]).knowing([vendor]))
    assert (await model.run([X]))["y"].tolist() == [5, 0, 1]


def _moved(model: Model, prefix: int) -> Model:
    """Return the model with another prefix for its only extension."""
    main = model.main

    def moved(type_: int) -> int:
        return prefix << 16 | type_ & 0xFFFF if type_ > 0xFFFF else type_

    return replace(
        model,
        main=replace(
            main,
            operands=tuple(replace(o, type=moved(o.type)) for o in main.operands),
            operations=tuple(replace(o, type=moved(o.type)) for o in main.operations),
        ),
        extension_name_to_prefix=(ExtensionNameAndPrefix(vendor.name, prefix),),
    )


async def test_a_device_lists_its_extensions(device: Device) -> None:
    status, extensions = device.hal.get_supported_extensions()
    assert status is ErrorStatus.NONE
    assert extensions == Extensions([vendor]).described()
    assert extensions[0] == vendor.described()


async def test_values_of_an_extension_stay_on_the_device(device: Device) -> None:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (3,))
    twice = builder.operation(
        SCALE, [x, builder.scalar(2, COMPLEX_SCALAR)], Operand(COMPLEX, (3,))
    )
    builder.output(twice, "twice")
    doubling = await device.prepare(builder.build())
    absolute = await device.prepare(magnitude())
    state = await device.buffer_for(doubling.output("twice"), absolute.input("x"))
    await doubling.run({"x": X}, out={"twice": state})
    assert (await absolute.run({"x": state}))["y"].tolist() == [10, 0, 2]


@pytest.mark.parametrize(
    ("lengths", "dimensions"),
    [((23, 12), ()), ((25, 12), ()), ((0, 12), ()), ((16, 12), (2,))],
)
async def test_requests_of_wrong_sizes_are_refused(
    device: Device, lengths: Sequence[int], dimensions: tuple[int, ...]
) -> None:
    model = await device.prepare(magnitude())
    pools = tuple(from_buffer(bytearray(64)) for _ in lengths)
    read, written = (
        DataLocation(index, 0, length) for index, length in enumerate(lengths)
    )
    request = Request(
        (RequestArgument(location=read, dimensions=dimensions),),
        (RequestArgument(location=written),),
        pools,
    )
    callback = ExecutionFuture()
    model.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
    assert (await callback).status is ErrorStatus.INVALID_ARGUMENT


class TestCaching:
    """A cached model goes on working for as long as its extension is the same."""

    async def prepared_anew(self, folder: Path, versions: Sequence[str]) -> int:
        """Return how often a model was prepared on devices of these versions."""
        inferred = []

        def shape(operation: BoundOperation) -> tuple[tuple[int, ...]]:
            inferred.append(operation)
            return (operation.shape(0),)

        for version in versions:
            extension = Extension("com.example.cached", version=version)
            double = extension.operation(
                "DOUBLE",
                0,
                inputs=[Argument("x", F32)],
                outputs=[Argument("y", F32)],
                shape=shape,
                prepare=lambda operation: stateless(_double),
            )
            builder = ModelBuilder()
            x = builder.input("x", F32, (3,))
            builder.output(builder.operation(double, [x], Operand(F32, (3,))), "y")
            settings = DeviceSettings(
                extensions=(extension,), cache_key_file=str(folder / "key")
            )
            async with open_device(settings=settings, cache_dir=folder) as device:
                model = await device.prepare(builder.build())
                assert (await model.run([[1, 2, 3]]))["y"].tolist() == [2, 4, 6]
        return len(inferred)

    async def test_a_cached_model_is_not_prepared_again(self, tmp_path: Path) -> None:
        assert await self.prepared_anew(tmp_path, "111") == 1

    async def test_that_of_another_version_is(self, tmp_path: Path) -> None:
        assert await self.prepared_anew(tmp_path, "1122") == 2


def _double(inputs: Inputs, outputs: Outputs) -> None:
    np.add(inputs[0], inputs[0], out=outputs[0])


class TestBugs:
    """An extension's mistakes are errors of the model that meets them, no others."""

    @pytest.fixture(params=["shape", "prepare", "run"])
    def where(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    async def device(self, where: str) -> AsyncIterator[Device]:
        def fails(at: str) -> None:
            if where == at:
                raise ZeroDivisionError("oops")

        def shape(operation: BoundOperation) -> tuple[tuple[int, ...]]:
            fails("shape")
            return (operation.shape(0),)

        def prepare(operation: BoundOperation) -> PreparedKernel:
            fails("prepare")
            return stateless(lambda inputs, outputs: fails("run"))

        self.extension = Extension("com.example.bug")
        self.bug = self.extension.operation(
            "BUG",
            0,
            inputs=[Argument("x", F32)],
            outputs=[Argument("y", F32)],
            shape=shape,
            prepare=prepare,
        )
        settings = DeviceSettings(extensions=(self.extension,), inline_below_us=1e9)
        async with open_device(settings=settings) as device:
            yield device

    @pytest.mark.parametrize("length", [3, 0])
    async def test_a_bug_fails_the_model(self, device: Device, length: int) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (length,))
        builder.output(builder.operation(self.bug, [x], Operand(F32, (length,))), "y")
        with pytest.raises(GeneralFailureError, match=r"BUG .*ZeroDivisionError: oops"):
            await (await device.prepare(builder.build())).run([np.ones(3, np.float32)])
        model = await device.prepare(chain(1, 3))
        assert (await model.run([np.ones(3, np.float32)]))["z"].tolist() == [2, 2, 2]


def test_a_builder_takes_no_value_of_another_type() -> None:
    builder = ModelBuilder()
    with pytest.raises(InvalidArgumentError):
        builder.constant(np.ones(3, np.float32), COMPLEX)
    with pytest.raises(InvalidArgumentError):
        builder.constant(X, COMPLEX_SCALAR)
    with pytest.raises(InvalidArgumentError):
        builder.scalar(1, COMPLEX)
    with pytest.raises(InvalidArgumentError):
        builder.scalar(1j, OperandType.FLOAT32)


async def test_only_a_driver_of_ones_own_is_told_its_extensions(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="running"):
        async with connect(tmp_path / "driver.sock", extensions=["a:b"]):
            pass
