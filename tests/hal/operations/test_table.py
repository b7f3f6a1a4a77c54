import pytest

from asyncnn.hal.operations import SIGNATURES, allowed_types
from asyncnn.hal.operations.signature import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Q16A,
    OperationSignature,
)
from asyncnn.hal.operations.table import FAMILIES
from asyncnn.hal.types import HalVersion, OperandType, OperationType

ALL = pytest.mark.parametrize(
    "signature", SIGNATURES.values(), ids=lambda signature: signature.type.name
)


def test_every_operation_but_the_oem_one_has_a_signature() -> None:
    assert set(SIGNATURES) == set(OperationType) - {OperationType.OEM_OPERATION}


def test_no_operation_is_declared_twice() -> None:
    assert sum(len(family.SIGNATURES) for family in FAMILIES) == len(SIGNATURES)


@ALL
def test_every_type_variable_is_bound_in_every_row(
    signature: OperationSignature,
) -> None:
    used = {
        argument.type
        for layout in signature.layouts
        for argument in layout.inputs + layout.outputs
        if isinstance(argument.type, str)
    }
    assert all(used == set(row.types) for row in signature.rows)


@ALL
def test_no_two_rows_are_alike(signature: OperationSignature) -> None:
    combinations = [tuple(row.types.values()) for row in signature.rows]
    assert len(set(combinations)) == len(combinations)


@ALL
def test_arguments_of_a_layout_have_different_names(
    signature: OperationSignature,
) -> None:
    for layout in signature.layouts:
        for declared in (layout.inputs, layout.outputs):
            names = [argument.name for argument in declared]
            assert len(set(names)) == len(names)


@ALL
def test_a_fixed_quantization_stands_at_the_same_place_in_every_layout(
    signature: OperationSignature,
) -> None:
    def fixed(layout):
        return [
            [(i, a) for i, a in enumerate(declared) if a.quantization]
            for declared in (layout.inputs, layout.outputs)
        ]

    first, *others = signature.layouts
    assert all(fixed(other) == fixed(first) for other in others)


@ALL
def test_an_operation_is_as_old_as_its_number_says(
    signature: OperationSignature,
) -> None:
    first_of_release = {
        0: HalVersion.V1_0,
        29: HalVersion.V1_1,
        38: HalVersion.V1_2,
        95: HalVersion.V1_3,
        102: HalVersion.AIDL_V2,
        104: HalVersion.AIDL_V3,
    }
    newest = max(code for code in first_of_release if code <= signature.type)
    assert signature.since is first_of_release[newest]


@ALL
def test_signed_8_bit_tensors_are_not_older_than_1_3(
    signature: OperationSignature,
) -> None:
    for row in signature.rows:
        if Q8S in row.types.values():
            assert row.since >= HalVersion.V1_3


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (
            OperationType.ADD,
            {
                F32: HalVersion.V1_0,
                Q8: HalVersion.V1_0,
                F16: HalVersion.V1_2,
                Q8S: HalVersion.V1_3,
                I32: HalVersion.V1_3,
            },
        ),
        (
            OperationType.CONV_2D,
            {
                F32: HalVersion.V1_0,
                F16: HalVersion.V1_2,
                Q8: HalVersion.V1_0,
                Q8S: HalVersion.V1_3,
            },
        ),
        (
            OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
            {F16: HalVersion.V1_2, F32: HalVersion.V1_2, Q16A: HalVersion.V1_2},
        ),
        (OperationType.IF, {OperandType.SUBGRAPH: HalVersion.V1_3}),
        (OperationType.OEM_OPERATION, {}),
    ],
)
def test_allowed_types_are_the_main_types_with_their_oldest_version(
    type_: OperationType, expected: dict[OperandType, HalVersion]
) -> None:
    assert allowed_types(type_) == expected
