"""Conformance models pass the checks, and their shapes are inferred as declared."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES, has_unknown_dimensions
from asyncnn.hal.operations import check_operation, infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import (
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.tools.conformance.vectors import Case, find_specs
from tests.derived.coverage import cases_of

CONSTANTS = {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[Case]:
    """All cases that a driver has to accept."""
    return [
        case
        for path in find_specs(shared / "vts")
        if not path.parent.name.endswith("_cts_only")
        for case in cases_of(path)
        if not case.expect_failure
    ]


def subgraphs(case: Case) -> tuple[Subgraph, ...]:
    return case.model.main, *case.model.referenced


def needed_version(case: Case, version: HalVersion) -> HalVersion:
    return max(
        check_operation(operation, subgraph.operands, version, case.model.referenced)
        for subgraph in subgraphs(case)
        for operation in subgraph.operations
    )


def test_every_operation_is_legal_in_the_release_of_its_case(cases: list[Case]) -> None:
    for case in cases:
        release = HalVersion[case.folder]
        needed = needed_version(case, max(release, case.hal))
        # A promise below the release counts on the client dropping default arguments.
        assert case.hal <= needed or case.min_hal is None, case.name


def value_of(operand: Operand, model: Model) -> Array | None:
    if operand.lifetime not in CONSTANTS:
        return None
    source = model.operand_values
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        source = model.pools[operand.location.pool_index].buffer
    start = operand.location.offset
    data = bytes(source[start : start + operand.location.length])
    return np.frombuffer(data, DTYPES[operand.type]).reshape(operand.dimensions)


def declared_shape(operand: Operand) -> Shape | None:
    if operand.type not in SCALAR_TYPES and has_unknown_dimensions(operand):
        return None
    return operand.dimensions


class Inference:
    """What is known of one subgraph's operands before anything is computed."""

    def __init__(self, case: Case, subgraph: Subgraph) -> None:
        self.subgraph = subgraph
        self.values = [value_of(operand, case.model) for operand in subgraph.operands]
        self.shapes = [declared_shape(operand) for operand in subgraph.operands]
        self.expected = list(self.shapes)
        self.omitted = {
            index
            for index, operand in enumerate(subgraph.operands)
            if operand.lifetime == OperandLifeTime.NO_VALUE
        }
        if subgraph is case.model.main:
            self._add_request(case)

    def _add_request(self, case: Case) -> None:
        for index, value in zip(self.subgraph.input_indexes, case.inputs, strict=True):
            self.values[index] = value
            if value is None:
                self.omitted.add(index)
            else:
                self.shapes[index] = value.shape
        pairs = zip(self.subgraph.output_indexes, case.outputs, strict=True)
        for index, output in pairs:
            self.expected[index] = output.value.shape

    def bind(self, operation: Operation) -> BoundOperation:
        return BoundOperation(
            OperationType(operation.type),
            tuple(map(self._operand, operation.inputs)),
            tuple(map(self._operand, operation.outputs)),
        )

    def _operand(self, index: int) -> BoundOperand | None:
        if index in self.omitted:
            return None
        operand = self.subgraph.operands[index]
        return BoundOperand(
            OperandType(operand.type),
            self.shapes[index],
            operand.scale,
            operand.zero_point,
            operand.extra_params,
            self.values[index],
        )

    def differences(self) -> Iterator[tuple[str, Shape | None, Shape]]:
        """Infer all shapes; yield those that are not as expected."""
        for operation in self.subgraph.operations:
            try:
                inferred = infer_shapes(self.bind(operation))
            except ValueNeededError:
                continue
            for index, shape in zip(operation.outputs, inferred, strict=True):
                self.shapes[index] = shape
                expected = self.expected[index]
                if None not in (shape, expected) and shape != expected:
                    yield operation.type.name, shape, expected


def test_inferred_shapes_are_those_that_models_declare(cases: list[Case]) -> None:
    inferred = 0
    for case in cases:
        for subgraph in subgraphs(case):
            inference = Inference(case, subgraph)
            assert list(inference.differences()) == [], case.name
            inferred += sum(
                inference.shapes[index] is not None
                for operation in subgraph.operations
                for index in operation.outputs
            )
    assert inferred > 3000


def is_legal(case: Case, operation: Operation, operands: list[Operand]) -> bool:
    try:
        check_operation(operation, operands, HalVersion.AIDL_V4, case.model.referenced)
    except InvalidArgumentError:
        return False
    return True


def test_one_operand_more_is_refused(cases: list[Case]) -> None:
    """Inputs may be added only where an axis or flag at the end is optional."""
    optional = {
        OperationType.L2_NORMALIZATION,
        OperationType.LOCAL_RESPONSE_NORMALIZATION,
        OperationType.SOFTMAX,
    }
    for case in cases:
        for subgraph in subgraphs(case):
            operands = [*subgraph.operands, Operand(OperandType.INT32)]
            extra = len(subgraph.operands)
            for operation in subgraph.operations:
                longer = replace(operation, outputs=(*operation.outputs, extra))
                assert not is_legal(case, longer, operands), case.name
                if operation.type not in optional:
                    longer = replace(operation, inputs=(*operation.inputs, extra))
                    assert not is_legal(case, longer, operands), case.name
