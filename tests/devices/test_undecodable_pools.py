"""Pools whose handles no driver could decode: of constants, and of requests."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    DataLocation,
    ErrorStatus,
    ExecutionPreference,
    Memory,
    Model,
    OperandLifeTime,
    OperandType,
    Priority,
    RequestArgument,
)
from asyncnn.memory import allocate, view
from asyncnn.memory.handles import BLOB_FORMAT, CPU_READ_OFTEN
from asyncnn.memory.shared import allocate_blob
from asyncnn.runtime.requests import RequestBuilder
from tests.devices.conftest import Caller
from tests.memory.foreign import pool_of
from tests.networks import addition, as_regions, chain
from tests.preparing import launch_preparation

SIZE = 16
FAST, MEDIUM = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM

UNDECODABLE = {
    "general hardware buffer": ("hardware_buffer", SIZE, ()),
    "protection that is none": ("mmap_fd", SIZE, (4, 0, 0)),
    "protection against all": ("mmap_fd", SIZE, (0, 0, 0)),
    "offset without its high word": ("mmap_fd", SIZE, (1, 0)),
    "offset behind the end": ("mmap_fd", SIZE, (1, 2**20, 0)),
    "ashmem with an integer": ("ashmem", SIZE, (1,)),
    "file shorter than the pool": ("ashmem", 2**20, ()),
    "blob without a description": ("hardware_buffer_blob", SIZE, ()),
    "blob of another width": (
        "hardware_buffer_blob",
        SIZE,
        (SIZE + 1, 1, 1, BLOB_FORMAT, CPU_READ_OFTEN, 0),
    ),
    "blob of another format": (
        "hardware_buffer_blob",
        SIZE,
        (SIZE, 1, 1, 1, CPU_READ_OFTEN, 0),
    ),
    "blob that no CPU may read": (
        "hardware_buffer_blob",
        SIZE,
        (SIZE, 1, 1, BLOB_FORMAT, 0, 0),
    ),
}


@pytest.fixture(params=UNDECODABLE.values(), ids=UNDECODABLE.keys())
def undecodable(request: pytest.FixtureRequest) -> Iterator[Memory]:
    name, size, ints = request.param
    behind = allocate(SIZE)
    yield pool_of(behind.handle.fds[0], size, *ints, name=name)
    del behind  # and its descriptor


def with_constants_in(pool: Memory) -> Model:
    """Return ``z = x + 1``, whose 1 begins ``pool``."""
    with as_regions(""):
        model = chain(1, 4).model
    operands = tuple(
        replace(
            operand,
            lifetime=OperandLifeTime.CONSTANT_REFERENCE,
            location=DataLocation(0, 0, 4),
        )
        if operand.lifetime == OperandLifeTime.CONSTANT_COPY
        and operand.type == OperandType.TENSOR_FLOAT32
        else operand
        for operand in model.main.operands
    )
    return replace(model, main=replace(model.main, operands=operands), pools=(pool,))


def preparing(device: IDevice, model: Model) -> tuple[ErrorStatus, PreparedModelFuture]:
    future = PreparedModelFuture()
    token = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
    launched = launch_preparation(device, model, future, token=token)
    return launched, future


async def test_a_model_that_needs_one_for_its_constants_is_not_supported(
    device: IDevice, undecodable: Memory
) -> None:
    answer = await device.get_supported_operations_1_3(with_constants_in(undecodable))
    assert answer == (ErrorStatus.GENERAL_FAILURE, ())


async def test_such_a_model_is_valid_and_cannot_be_prepared(
    device: IDevice, undecodable: Memory
) -> None:
    launched, future = preparing(device, with_constants_in(undecodable))
    assert launched is ErrorStatus.NONE
    with pytest.raises(GeneralFailureError, match=r"pool|handle|protection|blob|CPU"):
        await future


@pytest.mark.parametrize("make", [allocate, allocate_blob])
async def test_what_can_be_decoded_is_supported(
    device: IDevice, make: Callable[[int], Memory]
) -> None:
    pool = make(SIZE)
    np.frombuffer(view(pool), np.float32)[:] = 1
    model = with_constants_in(Memory(pool.name, pool.size, pool.handle))
    answer = await device.get_supported_operations_1_3(model)
    assert answer == (ErrorStatus.NONE, (True,))
    _, future = preparing(device, model)
    assert await future


async def test_a_request_that_needs_one_fails(
    device: IDevice, execute: Caller, undecodable: Memory
) -> None:
    named = addition(2)
    _, future = preparing(device, named.model)
    prepared = await future
    x, y, z = (np.zeros(2, np.float32) for _ in range(3))
    request = RequestBuilder(named.inputs, named.outputs)([x, y], [z])
    last, is_opaque = len(request.pools), undecodable.name == "hardware_buffer"
    argument = RequestArgument(location=DataLocation(last, 0, 0 if is_opaque else 8))
    request = replace(
        request,
        inputs=(argument, request.inputs[1]),
        pools=(*request.pools, undecodable),
    )
    answer = await execute(prepared, request)
    assert answer.status is ErrorStatus.GENERAL_FAILURE
