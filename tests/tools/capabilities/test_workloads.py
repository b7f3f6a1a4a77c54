"""The model and the NumPy program of a workload do the same."""

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.capabilities.calibration import workloads
from asyncnn.tools.capabilities.network import Workload

ALL = workloads()
CONTROL_FLOW = (ReferenceWorkload.IF, ReferenceWorkload.WHILE)

each_workload = pytest.mark.parametrize(
    "workload", ALL, ids=[workload.name for workload in ALL]
)


def test_there_is_one_for_each_figure_in_their_order() -> None:
    assert [workload.name for workload in ALL] == list(ReferenceWorkload)


@each_workload
async def test_the_device_computes_what_the_plain_program_does(
    workload: Workload,
) -> None:
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(workload.model)
        results = await prepared.run(workload.inputs)
    for info, expected in zip(
        workload.model.outputs, workload.plain(*workload.inputs), strict=True
    ):
        actual = results[info.name]
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        is_float = actual.dtype.kind == "f"
        np.testing.assert_allclose(
            actual.astype(np.float64),
            expected.astype(np.float64),
            rtol=1e-3 if is_float else 0,
            atol=1e-4 if is_float else 2,  # steps, after six layers at most
        )


@each_workload
def test_the_outcome_depends_on_the_inputs(workload: Workload) -> None:
    outputs = workload.plain(*workload.inputs)
    assert any(len(np.unique(output)) > 3 for output in outputs)


@each_workload
def test_every_operation_counts_for_the_figure_that_it_is_measured_for(
    workload: Workload,
) -> None:
    main = workload.model.model.main
    if workload.name in CONTROL_FLOW:
        operations = {OperationType(operation.type) for operation in main.operations}
        assert operations == {OperationType[workload.name]}
    else:
        first = {
            main.operands[operation.inputs[0]].type for operation in main.operations
        }
        assert first == {OperandType[workload.name.replace("RELAXED", "TENSOR")]}


def test_only_one_is_relaxed() -> None:
    assert [
        workload.name
        for workload in ALL
        if workload.model.model.relax_computation_float32_to_float16
    ] == [ReferenceWorkload.RELAXED_FLOAT32]
