"""Long short-term memory in integers.

Source: 1.3/types.hal (QUANTIZED_16BIT_LSTM, QUANTIZED_LSTM).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.lstm import (
    GATES,
    CellInputs,
    cell_arguments,
    check_clips,
    gate_arguments,
)
from asyncnn.hal.operations.shapes import require, require_shape, shape_of_rank
from asyncnn.hal.operations.signature import (
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    Q8SYM,
    Q16S,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    arguments,
    rows,
)
from asyncnn.hal.types import OperationType

QUANTIZED_CELL = CellInputs(weights=1, states=18, layer_norm=20)
"""The cell of QUANTIZED_LSTM."""

_RESULT = {Q8: (1 / 128, 128)}
_MEMORY = {Q16S: (2.0**-11, 0)}


def _sixteen_bit_shapes(operation: BoundOperation) -> tuple[Shape, Shape]:
    batches, size = shape_of_rank(operation, 0, 2)
    outputs = shape_of_rank(operation, 14, 2)[1]
    for index in range(1, 9):
        columns = size if index < 5 else outputs
        require_shape(operation, index, (outputs, columns), f"input {index}")
    for index in range(9, 13):
        require_shape(operation, index, (outputs,), f"input {index}")
    require_shape(operation, 13, (batches, outputs), "cell_state_in")
    require_shape(operation, 14, (batches, outputs), "output_in")
    _check_sixteen_bit_scales(operation)
    return (batches, outputs), (batches, outputs)


def _check_sixteen_bit_scales(operation: BoundOperation) -> None:
    first = operation.input(1)
    for index in range(2, 9):
        weights = operation.input(index)
        require(
            operation,
            (weights.scale, weights.zero_point) == (first.scale, first.zero_point),
            f"input {index} is quantised unlike input 1",
        )
    for index in range(9, 13):
        require(
            operation,
            math.isclose(operation.input(index).scale, first.scale / 128, rel_tol=1e-6),
            f"the scale of input {index} is not that of input 1 divided by 128",
        )


def _quantized_shapes(operation: BoundOperation) -> tuple[Shape, Shape, Shape]:
    batches, size = shape_of_rank(operation, 0, 2)
    check_clips(operation, 24, 25)
    sizes = QUANTIZED_CELL.check(operation, batches, size)
    result = batches, sizes.outputs
    return result, (batches, sizes.units), result


SIGNATURES = (
    OperationSignature(
        OperationType.QUANTIZED_16BIT_LSTM,
        rows=rows(V1_2, Q8),
        layouts=(
            Layout(
                (
                    Argument("input", quantization=_RESULT),
                    *arguments(
                        "T",
                        *(
                            f"{source}_to_{gate}_weights"
                            for source in ("input", "recurrent")
                            for gate in GATES
                        ),
                    ),
                    *arguments(
                        I32,
                        "input_gate_bias",
                        "forget_gate_bias",
                        "cell_bias",
                        "output_gate_bias",
                    ),
                    Argument("cell_state_in", Q16S, quantization=_MEMORY),
                    Argument("output_in", quantization=_RESULT),
                ),
                (
                    Argument("cell_state_out", Q16S, quantization=_MEMORY),
                    Argument("output", quantization=_RESULT),
                ),
            ),
        ),
        shape=_sixteen_bit_shapes,
    ),
    OperationSignature(
        OperationType.QUANTIZED_LSTM,
        rows=rows(V1_3, Q8S),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    *cell_arguments(matrix=Q8SYM, peephole=Q16S, bias=I32),
                    Argument("output_state_in"),
                    Argument("cell_state_in", Q16S),
                    *gate_arguments("{}_layer_norm_weights", Q16S, optional=True),
                    *arguments(FLOAT32, "cell_clip", "projection_clip"),
                    *arguments(
                        FLOAT32,
                        *(f"{gate}_intermediate_scale" for gate in GATES),
                    ),
                    Argument("hidden_state_zero_point", INT32),
                    Argument("hidden_state_scale", FLOAT32),
                ),
                (
                    Argument("output_state_out"),
                    Argument("cell_state_out", Q16S),
                    Argument("output"),
                ),
            ),
        ),
        shape=_quantized_shapes,
    ),
)
