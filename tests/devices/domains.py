"""Models, requests and calls for tests of device-managed buffers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncnn.callbacks import ExecutionFuture
from asyncnn.execution import reusable
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IBuffer, IDevice, IPreparedModel
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import (
    NO_TIMING,
    BufferDesc,
    BufferRole,
    BufferToken,
    DataLocation,
    ErrorStatus,
    FusedActivationFunc,
    MeasureTiming,
    Memory,
    Operand,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.devices.fencing import Launched

NONE = ErrorStatus.NONE
INVALID = ErrorStatus.INVALID_ARGUMENT
FAILURE = ErrorStatus.GENERAL_FAILURE

SHAPE = (1, 4, 4, 2)
PATHS = ("async", "sync", "fenced", "reusable", "reusable, fenced")


UNMEASURED = (MeasureTiming.NO, None, None)


class Kind(NamedTuple):
    """A type of tensors, and how it is quantised."""

    type: OperandType
    scale: float = 0.0
    zero_point: int = 0

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.type]

    def operand(self, dimensions: tuple[int, ...] = SHAPE) -> Operand:
        return Operand(
            self.type, dimensions, scale=self.scale, zero_point=self.zero_point
        )

    def data(self, seed: int, dimensions: tuple[int, ...] = SHAPE) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.integers(0, 100, dimensions).astype(self.dtype)


F32 = Kind(OperandType.TENSOR_FLOAT32)
F16 = Kind(OperandType.TENSOR_FLOAT16)
Q8 = Kind(OperandType.TENSOR_QUANT8_ASYMM, 1.0, 0)
Q8S = Kind(OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 1.0, 0)
KINDS = (F32, F16, Q8, Q8S)


def convolutions(
    kind: Kind, count: int = 1, dimensions: tuple[int, ...] = SHAPE
) -> NamedModel:
    """``count`` times ``y = CONV_2D(x)``, 3x3 and SAME: y has the shape of x."""
    builder = ModelBuilder()
    for number in range(count):
        x = builder.input(
            f"x{number}",
            kind.type,
            dimensions,
            scale=kind.scale,
            zero_point=kind.zero_point,
        )
        y = builder.operation(
            OperationType.CONV_2D,
            [
                x,
                _filter(builder, kind),
                _bias(builder, kind),
                builder.scalar(1),  # SAME
                builder.scalar(1),
                builder.scalar(1),
                builder.scalar(FusedActivationFunc.NONE),
            ],
            kind.operand(dimensions),
        )
        builder.output(y, f"y{number}")
    return builder.build()


def _filter(builder: ModelBuilder, kind: Kind) -> int:
    weights = np.zeros((2, 3, 3, 2), kind.dtype)
    weights[0, 1, 1, 1] = weights[1, 1, 1, 0] = 1  # swaps the channels
    scale = 0.5 if kind.scale else 0.0
    return builder.constant(2 * weights, kind.type, scale=scale)


def _bias(builder: ModelBuilder, kind: Kind) -> int:
    if not kind.scale:
        return builder.constant(np.zeros(2, kind.dtype))
    zeros = np.zeros(2, np.int32)
    return builder.constant(zeros, OperandType.TENSOR_INT32, scale=kind.scale / 2)


def convolved(x: np.ndarray) -> np.ndarray:
    """What `convolutions` compute of quantised ``x``; twice that of floats."""
    y = x[..., ::-1]
    return 2 * y if y.dtype.kind == "f" else y


def additions(
    kind: Kind,
    dimensions: tuple[int, ...] = SHAPE,
    other: tuple[int, ...] | None = None,
) -> NamedModel:
    """``z = x + y``, where the activation is an input as well."""
    builder = ModelBuilder()
    x, y = (
        builder.input(name, kind.type, d, scale=kind.scale, zero_point=kind.zero_point)
        for name, d in (("x", dimensions), ("y", other or dimensions))
    )
    activation = builder.input("activation", OperandType.INT32)
    z = builder.operation(
        OperationType.ADD, [x, y, activation], kind.operand(dimensions)
    )
    builder.output(z, "z")
    return builder.build()


def role(model: int = 0, index: int = 0, frequency: float = 1.0) -> BufferRole:
    return BufferRole(model, index, frequency)


class Buffer:
    """A buffer that was allocated, and the pool that requests name it by."""

    def __init__(self, hal: IBuffer, token: int) -> None:
        self.hal = hal
        self.token = token

    @property
    def pool(self) -> BufferToken:
        return BufferToken(self.token)

    async def fill(
        self, array: np.ndarray, dimensions: tuple[int, ...] = ()
    ) -> ErrorStatus:
        return await self.hal.copy_from(from_buffer(array), dimensions)

    async def contents(self, like: np.ndarray) -> np.ndarray:
        array = np.zeros_like(like)
        assert await self.hal.copy_to(from_buffer(array)) is NONE
        return array

    async def read(self, size: int) -> ErrorStatus:
        return await self.hal.copy_to(from_buffer(np.zeros(size, np.uint8)))


async def allocated(
    device: IDevice,
    prepared: Sequence[IPreparedModel],
    inputs: Sequence[BufferRole] = (),
    outputs: Sequence[BufferRole] = (),
    dimensions: tuple[int, ...] = (),
) -> Buffer:
    status, buffer, token = await device.allocate(
        BufferDesc(dimensions), prepared, inputs, outputs
    )
    assert status is NONE
    assert buffer is not None
    assert token > 100
    return Buffer(buffer, token)


class Argument(NamedTuple):
    """A buffer or an array, with dimensions that the request gives it."""

    what: "Buffer | BufferToken | np.ndarray"
    dimensions: tuple[int, ...] = ()


Given = Argument | Buffer | BufferToken | np.ndarray


def request(inputs: Sequence[Given], outputs: Sequence[Given]) -> Request:
    pools: list[Memory | BufferToken] = []

    def argument(given: Given) -> RequestArgument:
        what, dimensions = given if isinstance(given, Argument) else (given, ())
        size = 0
        if isinstance(what, np.ndarray):
            size = what.nbytes
            pools.append(from_buffer(what))
        else:
            pools.append(what.pool if isinstance(what, Buffer) else what)
        return RequestArgument(False, DataLocation(len(pools) - 1, 0, size), dimensions)

    ins = tuple([argument(given) for given in inputs])
    outs = tuple([argument(given) for given in outputs])
    return Request(ins, outs, tuple(pools))


async def execute(
    path: str,
    prepared: IPreparedModel,
    inputs: Sequence[Given],
    outputs: Sequence[Given],
) -> ErrorStatus:
    """Execute by a path; return how it ended, be it refused or failed."""
    asked = request(inputs, outputs)
    if path.startswith("reusable"):
        try:
            asked = reusable(prepared, asked)
        except InvalidArgumentError as error:
            return error.status
        # The second run is of what the first one has found.
        if "fenced" not in path:
            await prepared.execute_synchronously_1_3(asked, *UNMEASURED)
    if path.endswith("fenced"):
        try:
            return await Launched(prepared, asked).end()
        except AssertionError:
            status, fence, callback = prepared.execute_fenced(
                asked, (), *UNMEASURED, None
            )
            assert (fence, callback) == (None, None)
            return status
    if path == "sync":
        status, shapes, timing = await prepared.execute_synchronously_1_3(
            asked, MeasureTiming.YES, None, None
        )
    else:
        future = ExecutionFuture()
        launched = prepared.execute_1_3(asked, MeasureTiming.YES, None, None, future)
        result = await future
        status, shapes, timing = result.status, result.output_shapes, result.timing
        assert launched in (NONE, status)
    if status is not NONE:
        assert shapes == ()
        assert timing == NO_TIMING
    return status
