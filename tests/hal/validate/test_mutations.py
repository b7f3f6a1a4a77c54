"""Mutants of conformance models are refused, the models themselves are not."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn.conformance.vectors import Case, find_specs, load_cases
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.hal.validate import validate_model
from tests.conftest import SHARED
from tests.hal.validate.mutations import MUTATIONS, Mutation, mutants
from tests.hal.validate.samples import COPY, INPUT, OUTPUT, q8_model

VECTORS = SHARED / "vts"
SPECS = [
    path for path in find_specs(VECTORS) if not path.parent.name.endswith("_cts_only")
]
FIRST_CASES = [
    valid[0]
    for path in SPECS
    if (valid := [case for case in load_cases(path) if not case.expect_failure])
]
SAMPLE_SIZE = 150
"""Mutants tried of one model and version; the seed is the name of the case."""


def spec_id(path: Path) -> str:
    return str(path.relative_to(VECTORS)).removesuffix(".json.gz")


def versions(case: Case) -> set[HalVersion]:
    """The release that the case was written for, and 1.3 if that is newer."""
    return {case.release, max(case.release, HalVersion.V1_3)}


def accepted(model: Model, version: HalVersion) -> bool:
    try:
        validate_model(model, version)
    except InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize("path", SPECS, ids=spec_id)
def test_every_model_that_must_work_passes(path: Path) -> None:
    for case in load_cases(path):
        if not case.expect_failure:
            for version in {*versions(case), HalVersion.AIDL_V4}:
                validate_model(case.model, version)


@pytest.mark.parametrize("case", FIRST_CASES, ids=lambda case: case.name)
def test_every_mutant_is_refused(case: Case) -> None:
    rng = random.Random(case.name)
    survivors = []
    for version in versions(case):
        every = list(mutants(case.model, version))
        for label, mutant in rng.sample(every, min(SAMPLE_SIZE, len(every))):
            if accepted(mutant, version):
                survivors.append(f"{version.name}: {label}")
    assert survivors == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("version", list(HalVersion)[:4])
def test_every_kind_of_mutant_of_a_small_model_is_refused(
    mutation: Mutation, version: HalVersion
) -> None:
    tried = list(mutation(q8_model(), version))
    assert tried
    assert [label for label, mutant in tried if accepted(mutant, version)] == []


def test_operations_that_feed_each_other_are_refused() -> None:
    f32 = OperandType.TENSOR_FLOAT32
    activation = Operand(OperandType.INT32, (), 3, lifetime=COPY)
    subgraph = Subgraph(
        operands=(
            Operand(f32, (1,), 2, lifetime=INPUT),
            Operand(f32, (1,), 1, lifetime=INPUT),
            Operand(f32, (1,), 2),
            Operand(f32, (1,), 1),
            Operand(f32, (1,), 0, lifetime=OUTPUT),
            replace(activation, location=DataLocation(length=4)),
        ),
        operations=(
            Operation(OperationType.ADD, (0, 2, 5), (3,)),
            Operation(OperationType.ADD, (1, 3, 5), (2,)),
            Operation(OperationType.ADD, (2, 0, 5), (4,)),
        ),
        input_indexes=(0, 1),
        output_indexes=(4,),
    )
    with pytest.raises(InvalidArgumentError, match=r"\[M12\]"):
        validate_model(Model(subgraph, operand_values=bytes(4)), HalVersion.V1_3)


def test_the_vectors_are_where_the_collection_looks_for_them(shared: Path) -> None:
    assert find_specs(shared / "vts")
