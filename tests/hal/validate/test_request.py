import math
import time
from typing import Any

import msgspec
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Handle,
    Memory,
    Model,
    OperandType,
    Request,
    RequestArgument,
)
from asyncnn.hal.validate import RequestRules, validate_request
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.conformance.mutations.mutant import with_operand
from tests.hal.validate.samples import float_model, float_request, pool
from tests.networks import addition

HUGE = 1 << 70
HERE = DataLocation(0, 0, 8)


def argument(**changes: Any) -> RequestArgument:
    return RequestArgument(**{"location": HERE, **changes})


def with_input(request: Request, changed: RequestArgument) -> Request:
    return msgspec.structs.replace(request, inputs=(changed,))


def with_output(request: Request, changed: RequestArgument) -> Request:
    return msgspec.structs.replace(request, outputs=(changed,))


def refusal(request: Request, model: Model, **options: bool) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_request(request, model, **options)
    return str(caught.value)


def test_a_request_that_repeats_nothing_passes() -> None:
    validate_request(float_request(2), float_model(2))


def test_a_request_that_repeats_the_dimensions_passes() -> None:
    arguments = argument(dimensions=(2,))
    request = with_input(float_request(2), arguments)
    validate_request(with_output(request, arguments), float_model(2))


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("count", [0, 2])
def test_there_are_as_many_arguments_as_the_model_has(side: str, count: int) -> None:
    arguments = (argument(),) * count
    request = msgspec.structs.replace(float_request(2), **{side: arguments})
    message = refusal(request, float_model(2))
    assert message == f"the request has {count} {side}, the model 1 [R1]"


@pytest.mark.parametrize(
    "changes",
    [
        {"location": DataLocation(1)},
        {"location": DataLocation(0, 4)},
        {"location": HERE},
        {"location": DataLocation(), "dimensions": (2,)},
    ],
)
def test_an_omitted_argument_says_nothing_else(changes: Any) -> None:
    omitted = argument(has_no_value=True, **changes)
    request = float_request(2)
    assert "[R2]" in refusal(with_input(request, omitted), float_model(2))
    assert "[R2]" in refusal(with_output(request, omitted), float_model(2))


def test_an_omitted_argument_may_have_open_dimensions() -> None:
    omitted = RequestArgument(has_no_value=True)
    request = with_input(float_request(2), omitted)
    validate_request(with_output(request, omitted), float_model(0))


@pytest.mark.parametrize(
    "location",
    [
        DataLocation(1, 0, 8),
        DataLocation(-1, 0, 8),
        DataLocation(HUGE, 0, 8),
        DataLocation(0, 9, 8),
        DataLocation(0, 0xFFFFFFFF, 8),
        DataLocation(0, -1, 8),
        DataLocation(0, HUGE, 8),
        DataLocation(0, 0, -8),
        DataLocation(0, 12, 0xFFFFFFFC),
        DataLocation(0, 24, -8),
        DataLocation(0, 0.0, 8),
        DataLocation(0, 0, math.nan),
    ],
)
def test_an_argument_lies_within_its_pool(location: DataLocation) -> None:
    request, elsewhere = float_request(2), argument(location=location)
    message = refusal(with_input(request, elsewhere), float_model(2))
    assert message.startswith("input 0 (TENSOR_FLOAT32): ")
    assert "[R3]" in message
    message = refusal(with_output(request, elsewhere), float_model(2))
    assert message.startswith("output 0 (TENSOR_FLOAT32): ")
    assert "[R3]" in message


@pytest.mark.parametrize(
    "whole", [BufferToken(1), Memory("hardware_buffer", 0, Handle((3,)))]
)
def test_pools_without_bytes_are_used_as_a_whole(whole: Memory | BufferToken) -> None:
    request = msgspec.structs.replace(float_request(2), pools=(pool(16), whole))
    all_of_it = argument(location=DataLocation(1))
    validate_request(with_input(request, all_of_it), float_model(2))
    validate_request(with_output(request, all_of_it), float_model(2))
    for location in (DataLocation(1, 0, 8), DataLocation(1, 4, 0)):
        part = argument(location=location)
        assert "[R3]" in refusal(with_input(request, part), float_model(2))


def test_an_input_in_a_buffer_leaves_its_shape_to_the_buffer() -> None:
    model, whole = addition(0).model, argument(location=DataLocation())
    request = Request((whole, whole), (argument(),), (BufferToken(1),))
    shaped = argument(location=DataLocation(1), dimensions=(2,))
    validate_request(
        Request((whole, whole), (shaped,), (BufferToken(1), pool(16))), model
    )
    assert "[R3]" in refusal(request, model)
    open_ = argument(location=DataLocation(1, 0, 8))
    request = Request((whole, open_), (shaped,), (BufferToken(1), pool(16)))
    assert "[R5]" in refusal(request, model)


@pytest.mark.parametrize(
    "dimensions", [(2, 1), (3,), (1,), (0,), (-2,), (HUGE,), (2.0, 1), (1,) * 65]
)
def test_given_dimensions_agree_with_the_model(dimensions: tuple[int, ...]) -> None:
    request, given = float_request(2), argument(dimensions=dimensions)
    assert "[R4]" in refusal(with_input(request, given), float_model(2))
    assert "[R4]" in refusal(with_output(request, given), float_model(2))


@pytest.mark.parametrize(
    "dimensions", [(-2,), (HUGE,), (2.5,), (math.nan,), ("2",), (1,) * 65]
)
def test_given_dimensions_are_32_bit_numbers(dimensions: tuple[int, ...]) -> None:
    request, given = float_request(2), argument(dimensions=dimensions)
    assert "[R4]" in refusal(with_input(request, given), float_model())
    request = with_input(request, argument(dimensions=(2,)))
    assert "[R4]" in refusal(with_output(request, given), float_model())


def test_a_scalar_argument_has_no_dimensions() -> None:
    model = with_operand(float_model(), 0, type=OperandType.INT32)
    request = with_input(float_request(2), argument(location=DataLocation(0, 0, 4)))
    request = with_output(request, argument(dimensions=(2,)))
    validate_request(request, model)
    given = argument(location=DataLocation(0, 0, 4), dimensions=(1,))
    assert "[R4]" in refusal(with_input(request, given), model)


@pytest.mark.parametrize("declared", [(), (0,)])
@pytest.mark.parametrize("given", [(), (0,)])
def test_the_dimensions_of_an_input_must_all_be_known(
    declared: tuple[int, ...], given: tuple[int, ...]
) -> None:
    request = with_input(float_request(2), argument(dimensions=given))
    assert "[R5]" in refusal(request, float_model(*declared))


@pytest.mark.parametrize("declared", [(), (0,)])
@pytest.mark.parametrize("given", [(), (0,)])
def test_the_dimensions_of_an_output_may_stay_open_where_that_is_allowed(
    declared: tuple[int, ...], given: tuple[int, ...]
) -> None:
    request = with_input(float_request(2), argument(dimensions=(2,)))
    request = with_output(request, argument(dimensions=given))
    validate_request(request, float_model(*declared))
    message = refusal(request, float_model(*declared), allow_unspecified_output=False)
    assert message.startswith("output 0 (TENSOR_FLOAT32): ")
    assert "[R5]" in message


def test_given_dimensions_complete_those_of_the_model() -> None:
    given = argument(dimensions=(2,))
    request = with_output(with_input(float_request(2), given), given)
    for declared in ((), (0,)):
        model = float_model(*declared)
        validate_request(request, model, allow_unspecified_output=False)


@pytest.mark.parametrize(
    "bad",
    [
        BufferToken(0),
        BufferToken(-1),
        BufferToken(1 << 32),
        Memory("ashmen", 8, buffer=memoryview(bytes(8))),
        Memory("ashmem", 9, buffer=memoryview(bytes(8))),
        Memory("ashmem", -1, Handle((3,))),
        Memory("ashmem", math.inf, Handle((3,))),
        Memory("mmap_fd", 8),
    ],
)
def test_every_pool_is_checked_even_if_unused(bad: Memory | BufferToken) -> None:
    request = msgspec.structs.replace(float_request(2), pools=(pool(16), bad))
    message = refusal(request, float_model(2))
    assert message.startswith("pool 1: ")
    assert "[R6]" in message


@pytest.mark.parametrize("length", [0, 4, 7, 9, 12])
def test_an_input_has_exactly_the_bytes_of_its_dimensions(length: int) -> None:
    short = argument(location=DataLocation(0, 0, length))
    message = refusal(with_input(float_request(2), short), float_model(2))
    assert f"length is {length} bytes, expected 8 [R7]" in message


def test_an_input_of_too_many_elements_is_refused() -> None:
    given = argument(dimensions=(1 << 16, 1 << 16))
    message = refusal(with_input(float_request(2), given), float_model(0, 0))
    assert message.startswith("input 0 (TENSOR_FLOAT32): ")
    assert "[R7]" in message


@pytest.mark.parametrize("length", [0, 4, 12])
def test_the_length_of_an_output_is_left_to_the_execution(length: int) -> None:
    other = argument(location=DataLocation(0, 0, length))
    validate_request(with_output(float_request(2), other), float_model(2))


@pytest.mark.parametrize("length", [0, 4, 7])
def test_a_short_output_is_refused_where_no_shape_may_stay_open(length: int) -> None:
    request = with_output(
        float_request(2), argument(location=DataLocation(0, 0, length))
    )
    message = refusal(request, float_model(2), allow_unspecified_output=False)
    assert f"length is {length} bytes, expected 8 [R7]" in message


@pytest.mark.parametrize("length", [8, 12])
def test_a_long_output_is_accepted_where_no_shape_may_stay_open(length: int) -> None:
    request = with_output(
        float_request(2), argument(location=DataLocation(0, 0, length))
    )
    validate_request(request, float_model(2), allow_unspecified_output=False)


@pytest.mark.parametrize(
    "request_",
    [
        with_input(float_request(2), argument(location=None)),
        with_input(
            float_request(2), argument(dimensions=None, location=DataLocation())
        ),
        with_input(float_request(2), argument(dimensions=2)),
        msgspec.structs.replace(float_request(2), inputs=None),
        msgspec.structs.replace(float_request(2), outputs=(None,)),
        msgspec.structs.replace(float_request(2), pools=(b"",)),
        msgspec.structs.replace(float_request(2), pools=None),
    ],
)
def test_values_of_a_wrong_python_type_are_invalid_arguments_too(
    request_: Request,
) -> None:
    refusal(request_, float_model(2))


@pytest.mark.alone
def test_checking_a_plain_request_costs_microseconds() -> None:
    rules, request = RequestRules(float_model(2)), float_request(2)
    best = math.inf
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(100):
            rules.check(request)
        best = min(best, time.perf_counter_ns() - start)
    assert best / 100 < 25_000, "measured in ns; about 2 us on an idle machine"


class TestRepeatedArguments:
    """The same arguments with other pools are only checked for their pools."""

    def request(self, *pools: Memory) -> Request:
        return Request(self.INPUTS, self.OUTPUTS, pools)

    INPUTS = (
        RequestArgument(location=DataLocation(0, 0, 16)),
        RequestArgument(location=DataLocation(1, 0, 16)),
    )
    OUTPUTS = (RequestArgument(location=DataLocation(2, 0, 16)),)

    def test_other_pools_of_the_same_sizes_are_accepted(self) -> None:
        rules = RequestRules(addition(4).model)
        for _ in range(3):
            rules.check(self.request(*(from_buffer(bytes(16)) for _ in range(3))))

    @pytest.mark.parametrize(
        "pool",
        [
            from_buffer(bytes(15)),
            Memory("ashmem", 16, buffer=memoryview(bytes(15))),
            Memory("ashmem", 16),
            Memory("gralloc", 16, buffer=memoryview(bytes(16))),
            BufferToken(0),
        ],
    )
    def test_a_pool_that_does_not_fit_is_still_found(
        self, pool: Memory | BufferToken
    ) -> None:
        rules = RequestRules(addition(4).model)
        good = [from_buffer(bytes(16)) for _ in range(3)]
        rules.check(self.request(*good))
        with pytest.raises(InvalidArgumentError):
            rules.check(self.request(good[0], pool, good[2]))  # type: ignore[arg-type]

    def test_a_pool_less_is_found(self) -> None:
        rules = RequestRules(addition(4).model)
        good = [from_buffer(bytes(16)) for _ in range(3)]
        rules.check(self.request(*good))
        with pytest.raises(InvalidArgumentError):
            rules.check(self.request(*good[:2]))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_nothing_at_all_is_no_request_whatever_was_checked_before(before: int) -> None:
    rules = RequestRules(float_model(2))
    for _ in range(before):
        rules.check(float_request(2))
    with pytest.raises(InvalidArgumentError, match="malformed"):
        rules.check(None)  # type: ignore[arg-type]
