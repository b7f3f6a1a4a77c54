"""Long short-term memory in integers.

Source: 1.3/types.hal (QUANTIZED_16BIT_LSTM, QUANTIZED_LSTM).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.lstm import (
    CellInputs,
    cell_arguments,
    check_clips,
    for_each_gate,
)

QUANTIZED_CELL = CellInputs(weights=1, states=18, layer_norm=20)
"""The cell of QUANTIZED_LSTM."""


def _sixteen_bit_shapes(operation: BoundOperation) -> tuple[Shape, Shape]:
    batches, size = operation.shape_of_rank(0, 2)
    outputs = operation.shape_of_rank(14, 2)[1]
    for index in range(1, 9):
        columns = size if index < 5 else outputs
        operation.check_shape(index, (outputs, columns), f"input {index}")
    for index in range(9, 13):
        operation.check_shape(index, (outputs,), f"input {index}")
    operation.check_shape(13, (batches, outputs), "cell_state_in")
    operation.check_shape(14, (batches, outputs), "output_in")
    _check_sixteen_bit_scales(operation)
    return (batches, outputs), (batches, outputs)


def _check_sixteen_bit_scales(operation: BoundOperation) -> None:
    first = operation.input(1)
    for index in range(2, 9):
        weights = operation.input(index)
        operation.require(
            (weights.scale, weights.zero_point) == (first.scale, first.zero_point),
            f"input {index} is quantised unlike input 1",
        )
    for index in range(9, 13):
        operation.require(
            math.isclose(operation.input(index).scale, first.scale / 128, rel_tol=1e-6),
            f"the scale of input {index} is not that of input 1 divided by 128",
        )


def _quantized_shapes(operation: BoundOperation) -> tuple[Shape, Shape, Shape]:
    batches, size = operation.shape_of_rank(0, 2)
    check_clips(operation, 24, 25)
    sizes = QUANTIZED_CELL.check(operation, batches, size)
    result = batches, sizes.outputs
    return result, (batches, sizes.units), result


_WEIGHTS = (
    for_each_gate("input_to_{}_weights"),
    for_each_gate("recurrent_to_{}_weights"),
)

SIGNATURES = (
    declare(
        "QUANTIZED_16BIT_LSTM",
        "1.2: Q8",
        f"input = lstm_result, {for_each_gate('input_to_{}_weights')}, "
        f"{for_each_gate('recurrent_to_{}_weights')}, "
        "input_gate_bias forget_gate_bias cell_bias output_gate_bias: I32, "
        "cell_state_in: Q16S = lstm_memory, output_in = lstm_result "
        "-> cell_state_out: Q16S = lstm_memory, output = lstm_result",
        _sixteen_bit_shapes,
    ),
    declare(
        "QUANTIZED_LSTM",
        "1.3: Q8S",
        f"input, {cell_arguments(matrix='Q8SYM', peephole='Q16S', bias='I32')}, "
        "output_state_in, cell_state_in: Q16S, "
        f"{for_each_gate('{}_layer_norm_weights?: Q16S')}, "
        "cell_clip projection_clip: FLOAT32, "
        f"{for_each_gate('{}_intermediate_scale: FLOAT32')}, "
        "hidden_state_zero_point: INT32, hidden_state_scale: FLOAT32 "
        "-> output_state_out, cell_state_out: Q16S, output",
        _quantized_shapes,
    ),
)
