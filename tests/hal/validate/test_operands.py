import math
from typing import Any, TypeAlias

import msgspec
import pytest

from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate import validate_model
from asyncnn.tools.conformance.mutations.mutant import with_main, with_operand
from tests.hal.validate.samples import (
    COPY,
    EXTENSION_TYPE,
    extension_model,
    float_model,
    nested_model,
    q8_model,
    refusal,
)

V1_0, V1_1 = HalVersion.V1_0, HalVersion.V1_1
HUGE = 1 << 70
NO_SCALES = 0.0, -1.0, math.nan, math.inf, 1e300, 10**39, 1e-46
T = OperandType
CHANNELS = {"type": T.TENSOR_QUANT8_SYMM_PER_CHANNEL, "scale": 0.0, "zero_point": 0}


def refused(model: Model, index: int, rule: str, **changes: Any) -> str:
    """Return why an operand is refused with these changes: by this rule, and named."""
    changed = with_operand(model, index, **changes)
    message = refusal(changed)
    name = OperandType(changed.main.operands[index].type).name
    assert f"operand {index} ({name})" in message
    assert f"[{rule}]" in message
    return message


def constant(type_: int, dimensions: tuple[int, ...], length: int) -> Model:
    """A FLOOR of a constant of this type, in 32 bytes of operand values."""
    location = DataLocation(0, 0, length)
    operand = Operand(type_, dimensions, 1, lifetime=COPY, location=location)
    operands = (operand, float_model(2).main.operands[1])
    model = with_main(float_model(2), operands=operands, input_indexes=())
    return msgspec.structs.replace(model, operand_values=bytes(32))


@pytest.mark.parametrize(
    "type_", [-1, 16, 9999, 10002, 0xFFFF, 0xFFFFFFFF, 1 << 32, HUGE, EXTENSION_TYPE]
)
def test_an_unknown_operand_type_is_refused(type_: int) -> None:
    message = refusal(with_operand(q8_model(), 1, type=type_))
    assert message.startswith("main subgraph: operand 1 (")
    assert message.endswith("[M2]")


def test_an_operand_type_newer_than_the_model_is_refused() -> None:
    message = refusal(with_operand(q8_model(), 0, type=OperandType.BOOL), V1_1)
    assert message == (
        "main subgraph: operand 0 (BOOL): HAL 1.1 has no such operand type [M2]"
    )


@pytest.mark.parametrize("dimensions", [(0,), (1,), (2, 3)])
def test_a_scalar_has_no_dimensions(dimensions: tuple[int, ...]) -> None:
    message = refused(q8_model(), 2, "M3", dimensions=dimensions)
    assert "operand 2 (INT32): a scalar cannot have rank" in message


@pytest.mark.parametrize("version", [V1_0, V1_1])
def test_before_1_2_a_rank_must_be_known(version: HalVersion) -> None:
    assert "[M3]" in refusal(with_operand(q8_model(), 3, dimensions=()), version)


@pytest.mark.parametrize(
    "dimensions", [(-1, 3), (2, 1 << 32), (2, HUGE), (2, 1.5), (1,) * 65]
)
def test_dimensions_are_32_bit_numbers_for_at_most_64_axes(
    dimensions: tuple[int, ...],
) -> None:
    refused(q8_model(), 3, "M3", dimensions=dimensions)


@pytest.mark.parametrize(
    ("type_", "scale"),
    [
        *((T.TENSOR_QUANT8_ASYMM, scale) for scale in NO_SCALES),
        (T.TENSOR_QUANT8_SYMM, 0.0),
        (T.TENSOR_QUANT16_ASYMM, 0.0),
        (T.TENSOR_QUANT16_SYMM, 0.0),
        (T.TENSOR_QUANT8_ASYMM_SIGNED, 0.0),
        (T.TENSOR_INT32, -1.0),
        (T.TENSOR_INT32, math.nan),
        (T.TENSOR_FLOAT32, 1.0),
        (T.TENSOR_FLOAT16, math.nan),
        (T.TENSOR_BOOL8, 1.0),
        (T.TENSOR_QUANT8_SYMM_PER_CHANNEL, 1.0),
    ],
)
def test_a_scale_must_be_what_its_type_allows(type_: OperandType, scale: float) -> None:
    message = refused(q8_model(), 3, "M4", type=type_, scale=scale, zero_point=0)
    assert f"operand 3 ({type_.name}): scale must be" in message


@pytest.mark.parametrize(
    ("type_", "zero_point"),
    [
        *((T.TENSOR_QUANT8_ASYMM, point) for point in (-1, 256, HUGE, math.nan)),
        *((T.TENSOR_QUANT8_ASYMM_SIGNED, point) for point in (-129, 128)),
        *((T.TENSOR_QUANT16_ASYMM, point) for point in (-1, 65536)),
        (T.TENSOR_QUANT8_SYMM, 1),
        (T.TENSOR_QUANT16_SYMM, -1),
        (T.TENSOR_INT32, 1),
    ],
)
def test_a_zero_point_must_be_what_its_type_allows(
    type_: OperandType, zero_point: int
) -> None:
    message = refused(q8_model(), 3, "M4", type=type_, zero_point=zero_point)
    assert f"operand 3 ({type_.name}): zero point must be" in message


def test_a_message_says_which_value_broke_which_rule_where() -> None:
    assert refusal(with_operand(q8_model(), 3, scale=math.nan)) == (
        "main subgraph: operand 3 (TENSOR_QUANT8_ASYMM): "
        "scale must be positive, is nan [M4]"
    )


@pytest.mark.parametrize(
    "extra",
    [
        None,
        b"",
        SymmPerChannelQuantParams((1.0,), 0),
        *(SymmPerChannelQuantParams((1.0, 1.0), axis) for axis in (2, -1, HUGE)),
        SymmPerChannelQuantParams((), 0),
        SymmPerChannelQuantParams((1.0, 0.0), 0),
        *(
            SymmPerChannelQuantParams(scales, 0)
            for one in (math.nan, math.inf)
            for scales in ((1.0, one), (one, 1.0))
        ),
        *(SymmPerChannelQuantParams((1.0, bad), 0) for bad in (10**400, -1.0)),
    ],
)
def test_scales_per_channel_must_fit_the_channels(extra: Any) -> None:
    refused(q8_model(), 3, "M4", **CHANNELS, extra_params=extra)


def test_an_open_channel_axis_is_refused() -> None:
    none = SymmPerChannelQuantParams((), 0)
    open_axis = {**CHANNELS, "dimensions": (0, 3), "extra_params": none}
    assert "0 scales for 0 channels" in refused(q8_model(), 3, "M4", **open_axis)


@pytest.mark.parametrize("extra", [SymmPerChannelQuantParams((1.0, 1.0), 0), b"x"])
def test_other_types_have_no_extra_parameters(extra: Any) -> None:
    assert "[M4]" in refusal(with_operand(q8_model(), 3, extra_params=extra))


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 1.0},
        {"zero_point": 1},
        {"extra_params": SymmPerChannelQuantParams((1.0, 1.0), 0)},
    ],
)
def test_an_extension_operand_is_not_quantised(changes: Any) -> None:
    assert "[M4]" in refusal(extension_model(**changes))


def test_an_extension_operand_may_carry_opaque_bytes() -> None:
    validate_model(extension_model(extra_params=b"\x01"))


Place: TypeAlias = tuple[Any, ...]


@pytest.mark.parametrize("index", [0, 3, 6])
@pytest.mark.parametrize("place", [(1,), (0, 1), (0, 0, 1)])
def test_what_is_no_constant_has_no_location(index: int, place: Place) -> None:
    refused(q8_model(), index, "M5", location=DataLocation(*place))


@pytest.mark.parametrize(
    "place",
    [
        (1, 4, 6),
        (0, 5, 6),
        (0, 0xFFFFFFFE, 6),
        (0, 4, 0xFFFFFFFF),
        (0, -1, 6),
        (0, 1 << 32, 6),
        (0, HUGE, 6),
        (0, 4, -6),
        (0, 4.0, 6),
    ],
)
def test_a_copied_constant_lies_within_the_operand_values(place: Place) -> None:
    refused(q8_model(), 1, "M5", location=DataLocation(*place))


@pytest.mark.parametrize(
    "place", [(1, 2, 6), (-1, 2, 6), (0, 3, 6), (0, 0xFFFFFFFF, 6), (0, -2, 6)]
)
def test_a_referenced_constant_lies_within_a_pool(place: Place) -> None:
    refused(q8_model(), 4, "M5", location=DataLocation(*place))


@pytest.mark.parametrize("place", [(0, 2), (1,), (0, 0, 1), (0, -1)])
def test_a_subgraph_operand_names_a_referenced_subgraph(place: Place) -> None:
    refused(nested_model(), 1, "M5", location=DataLocation(*place))


@pytest.mark.parametrize(
    ("type_", "dimensions", "length"),
    [
        *((T.TENSOR_FLOAT32, (2,), length) for length in (7, 12, 0)),
        (T.TENSOR_FLOAT32, (), 4),
        (T.TENSOR_FLOAT32, (2, 0), 0),
        (T.TENSOR_FLOAT32, (1 << 16, 1 << 14), 4),
        (T.TENSOR_FLOAT32, (0xFFFFFFFF,) * 64, 4),
        (T.FLOAT32, (), 2),
        (T.TENSOR_OEM_BYTE, (2, 0), 2),
    ],
)
def test_a_constant_has_exactly_the_bytes_of_its_dimensions(
    type_: OperandType, dimensions: tuple[int, ...], length: int
) -> None:
    message = refusal(constant(type_, dimensions, length))
    assert f"operand 0 ({type_.name})" in message
    assert "[M6]" in message


def test_dimensions_must_not_overflow_even_of_temporaries() -> None:
    refused(q8_model(), 3, "M6", dimensions=(1 << 16, 1 << 16))


@pytest.mark.parametrize("lifetime", [-1, 7, 1 << 31, HUGE])
def test_an_unknown_lifetime_is_refused(lifetime: int) -> None:
    refused(q8_model(), 3, "M7", lifetime=lifetime)


@pytest.mark.parametrize(
    "changes",
    [
        {"lifetime": OperandLifeTime.SUBGRAPH},
        {"type": OperandType.SUBGRAPH, "dimensions": (), "scale": 0, "zero_point": 0},
    ],
)
def test_subgraph_is_both_type_and_lifetime_or_neither(changes: Any) -> None:
    assert "[M7]" in refusal(with_operand(q8_model(), 3, **changes))
