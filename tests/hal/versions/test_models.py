import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    BufferToken,
    ErrorStatus,
    HalVersion,
    Handle,
    Memory,
    Model,
    OperationType,
    Request,
)
from asyncnn.hal.validate import validate_model
from asyncnn.hal.versions import (
    compliant_with,
    convert_to,
    noncompliant_operations,
    v1_0,
    v1_1,
    v1_2,
)
from tests.hal.validate.samples import (
    extension_model,
    float_model,
    nested_model,
    q8_model,
    with_operation,
)

V1_0, V1_1, V1_2, V1_3 = list(HalVersion)[:4]
SHAPES = {V1_0: v1_0.Model, V1_1: v1_1.Model, V1_2: v1_2.Model, V1_3: Model}


@pytest.mark.parametrize(
    ("model", "since"),
    [
        (q8_model(), V1_0),
        (float_model(2, 0), V1_0),
        (float_model(), V1_2),
        (extension_model(), V1_2),
        (nested_model(), V1_3),
    ],
    ids=["quantised", "open axis", "open rank", "extension", "control flow"],
)
@pytest.mark.parametrize("version", SHAPES)
class TestAModel:
    def test_complies_from_the_version_that_has_all_it_uses(
        self, model: Model, since: HalVersion, version: HalVersion
    ) -> None:
        assert compliant_with(model, version) is (version >= since)

    def test_goes_there_and_back_without_loss_where_it_complies(
        self, model: Model, since: HalVersion, version: HalVersion
    ) -> None:
        converted = convert_to(model, version)
        assert type(converted) is SHAPES[version]
        if version >= since:
            assert convert_to(converted, V1_3) == model
            back = convert_to(converted, V1_3)
            assert isinstance(back, Model)
            validate_model(back, version)


def test_permission_to_compute_with_less_precision_is_no_obstacle_for_1_0() -> None:
    exact = q8_model()
    relaxed = replace(exact, relax_computation_float32_to_float16=True)
    assert compliant_with(relaxed, V1_0)
    assert convert_to(convert_to(relaxed, V1_1), V1_3) == relaxed
    assert convert_to(convert_to(relaxed, V1_0), V1_3) == exact


def test_pools_of_a_newer_kind_do_not_comply() -> None:
    blob = Memory("hardware_buffer_blob", 16, Handle((0,)))
    assert compliant_with(replace(q8_model(), pools=(blob,)), V1_2)
    assert not compliant_with(replace(q8_model(), pools=(blob,)), V1_1)


def test_operations_that_a_version_lacks_are_told_by_index() -> None:
    model = q8_model()
    assert noncompliant_operations(model, V1_0) == frozenset()
    newer = with_operation(model, 0, type=OperationType.MAXIMUM)
    assert noncompliant_operations(newer, V1_1) == {0}


def test_an_operand_of_a_newer_type_makes_its_operations_newer() -> None:
    assert noncompliant_operations(nested_model(), V1_2) >= {0}
    assert 0 in noncompliant_operations(extension_model(), V1_1)


MEMORY = Memory("ashmem", 64, Handle((0,)))
BLOB = Memory("hardware_buffer_blob", 64, Handle((0,)))


@pytest.mark.parametrize(
    ("pool", "since"), [(MEMORY, V1_0), (BLOB, V1_2), (BufferToken(7), V1_3)]
)
@pytest.mark.parametrize("version", SHAPES)
def test_the_pools_of_a_request_decide_which_versions_can_carry_it(
    pool: Memory | BufferToken, since: HalVersion, version: HalVersion
) -> None:
    request = Request((), (), (pool,))
    assert compliant_with(request, version) is (version >= since)
    if version >= since:
        assert convert_to(convert_to(request, version), V1_3) == request


def test_a_buffer_of_the_device_has_no_stand_in() -> None:
    with pytest.raises(InvalidArgumentError, match=r"HAL 1\.2"):
        convert_to(Request((), (), (BufferToken(7),)), V1_2)


@pytest.mark.parametrize("status", ErrorStatus)
@pytest.mark.parametrize("version", SHAPES)
def test_statuses_of_1_3_are_general_failures_before_it(
    status: ErrorStatus, version: HalVersion
) -> None:
    is_known = version >= V1_3 or status <= ErrorStatus.INVALID_ARGUMENT
    expected = status if is_known else ErrorStatus.GENERAL_FAILURE
    assert convert_to(status, version) is expected
    assert compliant_with(status, version) is is_known
