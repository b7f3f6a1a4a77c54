import math
from typing import Any

import msgspec
import pytest

from asyncnn.hal.types import (
    DataLocation,
    ExtensionNameAndPrefix,
    HalVersion,
    Handle,
    Memory,
    Model,
    Operand,
    OperandType,
    Operation,
    OperationType,
)
from asyncnn.hal.validate import validate_model
from asyncnn.tools.conformance.mutations.mutant import (
    with_main,
    with_operand,
    with_operation,
)
from tests.hal.validate.samples import (
    INPUT,
    OUTPUT,
    TEMPORARY,
    extension_model,
    float_model,
    nested_model,
    pool,
    q8_model,
    refusal,
)

V1_0, V1_1, V1_2, V1_3 = (
    HalVersion.V1_0,
    HalVersion.V1_1,
    HalVersion.V1_2,
    HalVersion.V1_3,
)
HUGE = 1 << 70


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
@pytest.mark.parametrize("version", HalVersion)
def test_a_model_passes_from_the_version_that_has_all_it_uses(
    model: Model, since: HalVersion, version: HalVersion
) -> None:
    if version < since:
        assert version.title in refusal(model, version)
    else:
        validate_model(model, version)


@pytest.mark.parametrize("field", ["operands", "operations"])
def test_a_subgraph_cannot_be_empty(field: str) -> None:
    assert "[M1]" in refusal(with_main(q8_model(), **{field: ()}))


@pytest.mark.parametrize("type_", [-1, 106, 9999, 10001, 0xFFFFFFFF, HUGE])
def test_an_unknown_operation_is_refused(type_: int) -> None:
    message = refusal(with_operation(q8_model(), 1, type=type_))
    assert message.startswith("main subgraph: operation 1 (")
    assert "[M8]" in message


@pytest.mark.parametrize("index", [-1, 7, 1 << 32, HUGE])
@pytest.mark.parametrize(
    ("field", "others"),
    [("inputs", (1, 2)), ("outputs", ())],
    ids=["inputs", "outputs"],
)
def test_an_operation_names_operands_that_exist(
    index: int, field: str, others: tuple[int, ...]
) -> None:
    message = refusal(with_operation(q8_model(), 0, **{field: (index, *others)}))
    assert "operation 0 (ADD): " in message
    assert "[M8]" in message


def test_an_operation_must_match_its_signature() -> None:
    message = refusal(with_operation(q8_model(), 0, inputs=(0, 1)))
    assert "main subgraph: operation 0: ADD" in message
    assert "[M9]" in message


def test_oem_operations_are_not_looked_into() -> None:
    model = with_operation(float_model(2), 0, type=OperationType.OEM_OPERATION)
    validate_model(model, V1_0)


@pytest.mark.parametrize("index", [0, 1, 4])
def test_an_operation_writes_no_input_and_no_constant(index: int) -> None:
    message = refusal(with_operation(q8_model(), 0, outputs=(index,)))
    assert f"operation 0 (ADD): output 0 is operand {index}" in message
    assert "[M10]" in message


def test_an_operand_is_written_once() -> None:
    message = refusal(with_operation(q8_model(), 1, outputs=(3,)))
    assert "operation 1 writes operand 3 again [M10]" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"input_indexes": ()},
        {"input_indexes": (0, 0)},
        {"input_indexes": (0, 1)},
        {"input_indexes": (0, 6)},
        {"input_indexes": (0, -1)},
        {"input_indexes": (0, 7)},
        {"input_indexes": (0, HUGE)},
        {"output_indexes": ()},
        {"output_indexes": (6, 6)},
        {"output_indexes": (6, 3)},
        {"output_indexes": (0, 6)},
    ],
)
def test_inputs_and_outputs_are_listed_exactly_once(changes: Any) -> None:
    message = refusal(with_main(q8_model(), **changes))
    assert message.startswith("main subgraph: ")
    assert "[M11]" in message


def test_an_operand_is_not_read_before_it_is_written() -> None:
    first, second, third = q8_model().main.operations
    message = refusal(with_main(q8_model(), operations=(second, first, third)))
    assert "operation 0 reads operand 3 before it is written [M12]" in message


def test_every_temporary_is_written() -> None:
    model = q8_model()
    operands = (*model.main.operands, model.main.operands[3])
    model = with_operand(with_main(model, operands=operands), 7, number_of_consumers=0)
    assert "operand 7 is never written [M12]" in refusal(model)


@pytest.mark.parametrize("index", range(7))
@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("version", [V1_0, max(HalVersion)])
def test_consumers_are_counted(
    index: int, difference: int, version: HalVersion
) -> None:
    model = q8_model()
    count = model.main.operands[index].number_of_consumers + difference
    model = with_operand(model, index, number_of_consumers=count)
    message = refusal(model, version)
    assert f"operand {index} is read {count - difference} times" in message
    assert "[M13]" in message


@pytest.mark.parametrize(
    ("changed", "version"),
    [
        (Memory("", 8, buffer=memoryview(bytes(8))), V1_3),
        (Memory("ashmen", 8, buffer=memoryview(bytes(8))), V1_3),
        (Memory("hardware_buffer_blob", 8, Handle((3,))), V1_1),
        (Memory("ashmem", 8), V1_3),
        (Memory("ashmem", -8, Handle((3,))), V1_3),
        (Memory("ashmem", math.nan, Handle((3,))), V1_3),
        (Memory("ashmem", 9, buffer=memoryview(bytes(8))), V1_3),
    ],
)
def test_a_pool_is_of_a_known_kind_and_has_its_bytes(
    changed: Memory, version: HalVersion
) -> None:
    model = msgspec.structs.replace(q8_model(), pools=(pool(8), changed))
    message = refusal(model, version)
    assert message.startswith("pool 1: ")
    assert "[M14]" in message


@pytest.mark.parametrize("name", ["mmap_fd", "hardware_buffer_blob"])
def test_a_pool_may_come_as_a_handle(name: str) -> None:
    pools = (Memory(name, 8, Handle((3,), (1, 0, 0))),)
    validate_model(msgspec.structs.replace(q8_model(), pools=pools), V1_2)


@pytest.mark.parametrize(
    "names",
    [
        [("example", 3)],
        [("", 3)],
        [("com.Example", 3)],
        [("com.exämple", 3)],
        [("com.example\n", 3)],
        [("com.example", -1)],
        [("com.example", 0x10000)],
        [("com.example", 3), ("com.example", 4)],
        [("com.example", 3), ("com.other", 3)],
    ],
)
def test_extensions_have_proper_unique_names_and_prefixes(
    names: list[tuple[str, int]],
) -> None:
    extensions = tuple(ExtensionNameAndPrefix(*pair) for pair in names)
    model = msgspec.structs.replace(q8_model(), extension_name_to_prefix=extensions)
    assert "[M15]" in refusal(model)


@pytest.mark.parametrize("branch", [1, 2], ids=["in a ring of two", "in itself"])
def test_subgraphs_do_not_contain_themselves(branch: int) -> None:
    assert "contain a cycle [M16]" in refusal(nested_model(branch))


def test_a_deep_nest_of_subgraphs_is_no_trouble() -> None:
    nest = nested_model()
    inner = nest.referenced[0]
    reference = inner.operands[1]
    deep = []
    for depth in range(1, 3000):
        location = DataLocation(0, depth, 0)
        branch = msgspec.structs.replace(reference, location=location)
        operands = (inner.operands[0], branch, branch, *inner.operands[3:])
        deep.append(msgspec.structs.replace(inner, operands=operands))
    deep.append(nest.referenced[1])
    validate_model(msgspec.structs.replace(nest, referenced=tuple(deep)), V1_3)


def test_an_error_in_a_referenced_subgraph_says_so() -> None:
    nest = nested_model()
    broken = with_operand(Model(nest.referenced[1]), 1, scale=2.0).main
    model = msgspec.structs.replace(nest, referenced=(nest.referenced[0], broken))
    assert refusal(model) == (
        "referenced subgraph 1: operand 1 (TENSOR_FLOAT32): "
        "scale must be zero, is 2.0 [M4]"
    )


def test_a_subgraph_that_nothing_refers_to_is_checked_as_well() -> None:
    main = float_model(2)
    validate_model(msgspec.structs.replace(main, referenced=(main.main,)), V1_3)
    broken = with_operand(main, 1, scale=2.0).main
    message = refusal(msgspec.structs.replace(main, referenced=(broken,)), V1_3)
    assert message.startswith("referenced subgraph 0: operand 1 (TENSOR_FLOAT32): ")


@pytest.mark.parametrize(
    "model",
    [
        with_operand(q8_model(), 3, dimensions=None),
        with_operand(q8_model(), 3, type="TENSOR_FLOAT32"),
        with_operand(q8_model(), 3, type=[1]),
        with_operand(q8_model(), 3, scale="1"),
        with_operand(q8_model(), 3, location=None),
        with_operation(q8_model(), 0, inputs=None),
        with_operation(q8_model(), 0, inputs=("0", 1, 2)),
        with_main(q8_model(), operands=(None,)),
        msgspec.structs.replace(q8_model(), operand_values=None),
        msgspec.structs.replace(q8_model(), main=None),
        msgspec.structs.replace(q8_model(), pools=(b"",)),
    ],
)
def test_values_of_a_wrong_python_type_are_invalid_arguments_too(model: Model) -> None:
    refusal(model)


@pytest.mark.parametrize("field", ["type", "zero_point", "lifetime"])
def test_a_number_too_long_to_print_is_refused_like_any_other(field: str) -> None:
    refusal(with_operand(q8_model(), 3, **{field: 10**5000}))


def test_a_name_that_is_very_long_is_not_repeated_in_full() -> None:
    extensions = (ExtensionNameAndPrefix("x" * 1_000_000, 1),)
    model = msgspec.structs.replace(q8_model(), extension_name_to_prefix=extensions)
    assert len(refusal(model)) < 200


def test_a_model_of_many_operations_is_checked_in_linear_time() -> None:
    count = 20_000
    f32 = OperandType.TENSOR_FLOAT32
    operands = (
        Operand(f32, (1,), 1, lifetime=INPUT),
        *(Operand(f32, (1,), 1, lifetime=TEMPORARY) for _ in range(count - 1)),
        Operand(f32, (1,), 0, lifetime=OUTPUT),
    )
    operations = tuple(
        Operation(OperationType.FLOOR, (index,), (index + 1,)) for index in range(count)
    )
    validate_model(
        with_main(
            float_model(1),
            operands=operands,
            operations=operations,
            output_indexes=(count,),
        )
    )
