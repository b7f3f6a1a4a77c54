"""The file that is written: its borders, constants, versions and barriers."""

import tracemalloc

import numpy as np
import pytest
import tflite
from msgspec.structs import replace

from asyncnn.devices.litert import graph_file, write_graph
from asyncnn.devices.litert.claims import RULES, written
from asyncnn.devices.litert.writer import MAX_FILE_BYTES, write_file
from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.delegation import Segment
from asyncnn.engine.plan import Plan, Step
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    Operand,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.runtime.builder import ModelBuilder
from tests.devices.litert.cases import usual_case
from tests.devices.litert.running import (
    Loaded,
    run_segment,
    segment_of,
    segment_of_one,
    whole,
)
from tests.kernels.operations import F16, F32, Q8, Q8S, bind, constant, result, tensor

ADD, MUL, RELU = OperationType.ADD, OperationType.MUL, OperationType.RELU
DEPTHWISE = OperationType.DEPTHWISE_CONV_2D
NAMES = {number: name for name, number in vars(tflite.BuiltinOperator).items()}
SHAPE = (1, 6, 5, 4)


def parsed(data: bytes) -> tflite.SubGraph:
    model = tflite.Model.GetRootAs(data, 0)
    assert model.SubgraphsLength() == 1
    return model.Subgraphs(0)


def names_of(data: bytes) -> list[str]:
    """Return the operators in order."""
    model = tflite.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    codes = [
        model.OperatorCodes(graph.Operators(i).OpcodeIndex())
        for i in range(graph.OperatorsLength())
    ]
    return [NAMES[code.BuiltinCode()] for code in codes]


def chain(*types: OperationType) -> Segment:
    """Return a segment in which each operation but the first reads the one before, and
    ADD and MUL read the first input too.
    """
    steps = []
    x = tensor(F32, np.zeros(SHAPE))
    for position, type_ in enumerate(types):
        binary = type_ in (ADD, MUL)
        operation = bind(type_, [x, x, 0] if binary else [x], [result(F32, SHAPE)])
        inputs = (position, 0, 99) if binary else (position,)
        steps.append(Step(position, operation, inputs, (position + 1,), None))
    return segment_of(steps, [len(types)])


def test_it_is_a_tflite_file_of_schema_3() -> None:
    data = write_graph(chain(RELU))
    assert data[4:8] == b"TFL3"
    assert tflite.Model.GetRootAs(data, 0).Version() == 3


def test_inputs_and_outputs_are_in_the_order_of_the_segment() -> None:
    segment = chain(RELU, ADD, MUL)
    segment = Segment(segment.steps, (0,), (3, 1, 2))
    x = np.linspace(-1, 1, 120, dtype=np.float32).reshape(SHAPE)
    results = run_segment(segment, {0: x})
    rectified = np.maximum(x, 0)
    summed = rectified + x
    for array, want in zip(results, (summed * x, rectified, summed), strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-6)


@pytest.mark.parametrize("type_", [F16, F32, Q8, Q8S])
def test_the_border_has_the_dtypes_of_the_hal(type_: OperandType) -> None:
    case = usual_case(OperationType.AVERAGE_POOL_2D, type_)
    loaded = Loaded(write_graph(segment_of_one(case.operation)))
    for details in (
        loaded.interpreter.get_input_details()[0],
        loaded.interpreter.get_output_details()[0],
    ):
        assert details["dtype"] == case.operation.outputs[0].dtype
        if type_ in (Q8, Q8S):
            quantization = case.operation.outputs[0]
            assert details["quantization"] == pytest.approx(
                (quantization.scale, quantization.zero_point)
            )


def test_scales_per_channel_are_written_with_their_axis() -> None:
    case = usual_case(DEPTHWISE, Q8S)
    kernel = case.operation.input(1)
    scales = tuple(float(np.float32(0.001 * (i + 1))) for i in range(16))
    per_channel = replace(
        kernel,
        type=OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        scale=0.0,
        channel_quant=SymmPerChannelQuantParams(scales, 3),
    )
    inputs = (case.operation.inputs[0], per_channel, *case.operation.inputs[2:])
    data = write_graph(segment_of_one(replace(case.operation, inputs=inputs)))
    graph = parsed(data)
    written = [graph.Tensors(i).Quantization() for i in range(graph.TensorsLength())]
    many = [q for q in written if q is not None and q.ScaleLength() == 16]
    assert [q.QuantizedDimension() for q in many] == [3, 0]  # the filter, the bias
    np.testing.assert_array_equal(many[0].ScaleAsNumpy(), np.float32(scales))
    np.testing.assert_array_equal(
        many[1].ScaleAsNumpy(), np.float32(scales) * np.float32(0.05)
    )


class TestConstants:
    def test_one_that_several_operations_read_is_written_once(self) -> None:
        weights = np.arange(4096, dtype=np.float32)
        once, twice = (
            write_graph(added([constant(F32, weights)] * count)) for count in (1, 2)
        )
        assert len(twice) - len(once) < weights.nbytes / 8

    def test_what_is_converted_is_written_once_too(self) -> None:
        weights = np.arange(8192, dtype=np.float16)
        once, twice = (
            write_graph(added([constant(F16, weights)] * count, F16))
            for count in (1, 2)
        )
        assert len(twice) - len(once) < weights.nbytes / 8

    def test_they_begin_at_multiples_of_16_bytes(self) -> None:
        values = [np.arange(n, dtype=np.float32) for n in (67, 71, 101)]
        case = usual_case(OperationType.CONV_2D, Q8S)
        segments = [segment_of_one(case.operation)]
        segments += [added([constant(F32, value)]) for value in values]
        for segment in segments:
            data = write_graph(segment)
            model = tflite.Model.GetRootAs(data, 0)
            for index in range(model.BuffersLength()):
                buffer = model.Buffers(index)
                if buffer.DataLength():
                    start = buffer._tab.Vector(buffer._tab.Offset(4))
                    assert start % 16 == 0

    def test_each_is_copied_once(self) -> None:
        weights = np.zeros(1 << 22, np.float32)
        segment = added([constant(F32, weights)])
        tracemalloc.start()
        try:
            data = write_graph(segment)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert weights.nbytes < len(data) <= peak < weights.nbytes * 1.1

    def test_more_than_a_file_can_hold_is_refused(self) -> None:
        size = MAX_FILE_BYTES // 4 // 2
        broad = [
            constant(F32, np.broadcast_to(np.float32(value), (size,)))
            for value in range(3)
        ]
        with pytest.raises(GeneralFailureError, match="bytes of constants do not fit"):
            write_graph(added(broad))


def added(constants: list, type_: OperandType = F32) -> Segment:
    """Return a segment that adds constants to its input, one after the other."""
    shape = constants[0].operand.shape
    x = tensor(type_, np.broadcast_to(np.zeros(1, constants[0].array.dtype), shape))
    steps = [
        Step(
            i,
            bind(ADD, [x, other, 0], [result(type_, shape)]),
            (i, 100 + i, 99),
            (i + 1,),
            None,
        )
        for i, other in enumerate(constants)
    ]
    return segment_of(steps, [len(steps)])


class TestBarriers:
    def test_what_crosses_one_is_copied_by_a_bitcast(self) -> None:
        segment = chain(RELU, ADD, MUL)
        assert names_of(write_graph(segment, [1])) == [
            "RELU",
            "BITCAST",  # of the input, which ADD reads too
            "BITCAST",
            "ADD",
            "MUL",
        ]

    def test_what_no_later_step_reads_does_not_cross(self) -> None:
        segment = chain(RELU, RELU, RELU)
        assert names_of(write_graph(segment, [1, 2])) == [
            "RELU",
            "BITCAST",
            "RELU",
            "BITCAST",
            "RELU",
        ]
        both = Segment(segment.steps, segment.inputs, (1, 3))
        assert names_of(write_graph(both, [2])).count("BITCAST") == 1

    @pytest.mark.parametrize("barriers", [(), (1,), (1, 2, 3), (2, 3)])
    def test_they_divide_what_xnnpack_runs_as_one_node(self, barriers) -> None:
        loaded = Loaded(write_graph(chain(RELU, ADD, MUL, RELU), barriers))
        nodes = loaded.interpreter._get_ops_details()
        delegates = [node for node in nodes if node["op_name"] == "DELEGATE"]
        assert len(delegates) == len(barriers) + 1

    def test_results_are_the_same(self) -> None:
        segment = chain(RELU, ADD, MUL, RELU)
        x = {0: np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
        (one,), (other,) = run_segment(segment, x), run_segment(segment, x, [1, 2, 3])
        np.testing.assert_array_equal(one, other)


def test_an_operation_that_is_not_claimed_cannot_be_written() -> None:
    operation = bind(
        OperationType.TOPK_V2,
        [tensor(F32, np.zeros((2, 3))), 2],
        [result(F32, (2, 2)), result(OperandType.TENSOR_INT32, (2, 2))],
    )
    with pytest.raises(GeneralFailureError, match="TOPK_V2 is not claimed"):
        write_graph(segment_of_one(operation))


def test_operand_read_in_two_forms_is_converted_once() -> None:
    """A filter off centre is computed on unsigned codes, its neighbour on signed."""
    builder = ModelBuilder()
    x = builder.input("x", Q8, (1, 5, 5, 4), scale=0.05, zero_point=120)
    image = Operand(Q8, (1, 5, 5, 4), scale=0.4, zero_point=100)
    codes = np.arange(0, 64, 1, np.uint8).reshape(1, 1, 1, 64)[..., :4] * 80
    kernel = builder.constant(
        np.resize(codes, (4, 1, 1, 4)).astype(np.uint8), Q8, scale=0.01, zero_point=7
    )
    bias = builder.constant(
        np.zeros(4, np.int32),
        OperandType.TENSOR_INT32,
        scale=float(np.float32(0.05) * np.float32(0.01)),
    )
    one, none = builder.scalar(1), builder.scalar(0)
    y = builder.operation(
        OperationType.CONV_2D, [x, kernel, bias, one, one, one, none], image
    )
    pooled = Operand(Q8, (1, 5, 5, 4), scale=0.05, zero_point=120)
    z = builder.operation(
        OperationType.MAX_POOL_2D, [x, one, one, one, one, one, none], pooled
    )
    builder.output(y, "y")
    builder.output(z, "z")
    program = Program(builder.build().model)
    plan = program.plan(program.declared_shapes)
    assert names_of(write_graph(whole(plan))) == [
        "CONV_2D",
        "DEQUANTIZE",
        "QUANTIZE",
        "MAX_POOL_2D",
        "DEQUANTIZE",
        "QUANTIZE",
    ]
    _runs_like_the_kernels(program, plan)


def _runs_like_the_kernels(program: Program, plan: Plan) -> None:
    x: Array = np.random.default_rng(3).integers(0, 256, (1, 5, 5, 4)).astype(np.uint8)
    execution = PlanExecution(program, plan, [x], [None] * len(plan.outputs))
    assert execution.advance()
    segment = whole(plan)
    results = dict(
        zip(segment.outputs, run_segment(segment, {segment.inputs[0]: x}), strict=True)
    )
    for port, want in zip(plan.outputs, execution.outputs, strict=True):
        got = results[port.index].astype(int)
        assert np.abs(got - want).max() <= 1


@pytest.mark.parametrize("type_", [F16, F32, Q8, Q8S])
def test_operations_written_before_give_the_same_file(
    type_: OperandType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a page ends behind a constant that is converted is left to chance.
    monkeypatch.setattr(graph_file, "has_tail", lambda *_: True)
    for operation_type in RULES:
        if type_ not in RULES[operation_type].types:
            continue
        operation = usual_case(operation_type, type_, computed=False).operation
        segment = segment_of_one(operation)
        made = {operation: written(operation)}
        assert write_file(segment, (), made).joined() == write_graph(segment)


def test_one_after_another_form_is_written_anew() -> None:
    """Behind the first, unsigned codes are there as signed ones."""
    x = tensor(Q8, np.zeros(SHAPE), 0.5, 3)
    y = result(Q8, SHAPE, 0.5, 3)
    steps = [
        Step(k, bind(OperationType.TANH, [x], [y]), (k,), (k + 1,), None)
        for k in range(2)
    ]
    segment = segment_of(steps, [2])
    made = {step.operation: written(step.operation) for step in steps}
    file = write_file(segment, (), made).joined()
    assert file == write_graph(segment)
    assert names_of(file).count("TANH") == 2
