"""Whatever a field holds, the answer is None or an InvalidArgumentError."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    BufferToken,
    HalVersion,
    Memory,
    Model,
    OperandType,
    Request,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate import validate_model, validate_request
from asyncnn.tools.conformance.mutations.mutant import with_operand
from tests.hal.validate.samples import (
    float_model,
    float_request,
    nested_model,
    q8_model,
)

GARBAGE = (
    *(None, "", "text", b"bytes", object(), [], [0], (), (0,), (None,), ("0",), {}),
    *(-1, 0, 1, 2, 7, 255, 256, 65536, 0xFFFF, 0xFFFFFFFF, 1 << 32, -(1 << 31)),
    *(1 << 64, 10**5000, -(10**5000), 0.5, -0.0, 1e39, 1e308),
    *(math.nan, math.inf, -math.inf, (math.nan,), (1 << 40,) * 70, (-1, -1)),
)


def corrupted(value: Any) -> Iterator[Any]:
    """Yield ``value`` with garbage in place of one thing in it, at any depth."""
    if isinstance(value, Memory):
        for field in ("name", "size", "handle", "buffer"):
            for garbage in GARBAGE:
                yield msgspec.structs.replace(value, **{field: garbage})
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            for corrupt in (*GARBAGE, *corrupted(getattr(value, field))):
                yield msgspec.structs.replace(value, **{field: corrupt})
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            for corrupt in (*GARBAGE, *corrupted(item)):
                yield (*value[:index], corrupt, *value[index + 1 :])


def per_channel_model() -> Model:
    return with_operand(
        q8_model(),
        3,
        type=OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        scale=0.0,
        zero_point=0,
        extra_params=SymmPerChannelQuantParams((1.0, 2.0), 0),
    )


@pytest.mark.unrecorded
@pytest.mark.parametrize("model", [q8_model(), per_channel_model(), nested_model()])
@pytest.mark.parametrize("version", [HalVersion.V1_0, HalVersion.V1_3])
def test_garbage_in_a_model_never_escapes(model: Model, version: HalVersion) -> None:
    for corrupt in corrupted(model):
        with suppress(InvalidArgumentError):
            validate_model(corrupt, version)


def test_garbage_in_a_request_never_escapes() -> None:
    request: Request = float_request(2)
    pools = (*request.pools, BufferToken(1))
    for corrupt in corrupted(msgspec.structs.replace(request, pools=pools)):
        with suppress(InvalidArgumentError):
            validate_request(corrupt, float_model(2))
