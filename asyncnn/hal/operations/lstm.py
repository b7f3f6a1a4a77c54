"""Long short-term memory: a step or a sequence, in one or two directions, in integers.

A cell has four gates; `CellInputs` says at which inputs of the operation its weights,
biases and states stand, and checks their shapes. Shapes: input [batch, input size],
states [batch, output size] and [batch, cell size].

Source: 1.3/types.hal (LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM,
QUANTIZED_16BIT_LSTM, QUANTIZED_LSTM).
"""

import math

import msgspec

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.recurrent import (
    directed_layouts,
    merged,
    sequence_sizes,
    with_states,
)

GATES = ("input", "forget", "cell", "output")
"""The gates in the order of their arguments."""


def for_each_gate(text: str) -> str:
    """Return a text of arguments for each gate, whose name stands in for ``{}``."""
    return ", ".join(text.format(gate) for gate in GATES)


_CELL = (
    "{0}input_to_input_weights? {0}input_to_forget_weights {0}input_to_cell_weights "
    "{0}input_to_output_weights {0}recurrent_to_input_weights? "
    "{0}recurrent_to_forget_weights {0}recurrent_to_cell_weights "
    "{0}recurrent_to_output_weights: {matrix}, {0}cell_to_input_weights? "
    "{0}cell_to_forget_weights? {0}cell_to_output_weights?: {peephole}, "
    "{0}input_gate_bias? {0}forget_gate_bias {0}cell_gate_bias {0}output_gate_bias: "
    "{bias}, {0}projection_weights?: {matrix}, {0}projection_bias?: {bias}"
)


def cell_arguments(
    prefix: str = "", matrix: str = "T", peephole: str = "T", bias: str = "T"
) -> str:
    """Return the 17 arguments of a cell; the other three are types."""
    return _CELL.format(prefix, matrix=matrix, peephole=peephole, bias=bias)


class CellSizes(msgspec.Struct, frozen=True):
    """Lengths of a cell's memory and of its result."""

    units: int
    outputs: int


class CellInputs(msgspec.Struct, frozen=True):
    """Where the inputs of a cell begin: weights, states and layer normalisation."""

    weights: int
    states: int
    layer_norm: int

    def check(self, operation: BoundOperation, batches: int, size: int) -> CellSizes:
        """Return the sizes of a cell that takes ``size`` elements in each step.

        :raises OperationFailedError: if its tensors do not fit together.
        """
        self._check_presence(operation)
        units = operation.shape_of_rank(self.weights + 3, 2)[0]
        outputs = operation.shape_of_rank(self.weights + 7, 2)[1]
        if not operation.has(self.weights + 15):
            operation.require(
                outputs == units,
                f"{units} units give {outputs} outputs without a projection",
            )
        for index, shape in self._shapes(units, outputs, size).items():
            if operation.has(index):
                operation.check_shape(index, shape, f"input {index}")
        operation.check_shape(self.states, (batches, outputs), "the output state")
        operation.check_shape(self.states + 1, (batches, units), "the cell state")
        return CellSizes(units, outputs)

    def has_input_gate(self, operation: BoundOperation) -> bool:
        """Return whether the cell has an input gate of its own."""
        return operation.has(self.weights)

    def has_peepholes(self, operation: BoundOperation) -> bool:
        """Return whether the gates see the cell state."""
        return operation.has(self.weights + 10)

    def has_layer_norm(self, operation: BoundOperation) -> bool:
        """Return whether gates are normalised."""
        return operation.has(self.layer_norm + 3)

    def _shapes(self, units: int, outputs: int, size: int) -> dict[int, Shape]:
        lengths: list[Shape] = [
            *[(units, size)] * 4,
            *[(units, outputs)] * 4,
            *[(units,)] * 7,
            (outputs, units),
            (outputs,),
        ]
        shapes = dict(enumerate(lengths, self.weights))
        return shapes | dict.fromkeys(
            range(self.layer_norm, self.layer_norm + 4), (units,)
        )

    def _check_presence(self, operation: BoundOperation) -> None:
        gate = self.has_input_gate(operation)
        peepholes = self.has_peepholes(operation)
        norm = self.has_layer_norm(operation)
        weights, layer_norm = self.weights, self.layer_norm
        self._require_presence(operation, "input gate", gate, weights + 4, weights + 11)
        self._require_presence(operation, "peephole", peepholes, weights + 9)
        if gate or not peepholes:
            self._require_presence(operation, "peephole", peepholes, weights + 8)
        self._require_presence(
            operation, "layer norm", norm, layer_norm + 1, layer_norm + 2
        )
        self._require_presence(operation, "layer norm", norm and gate, layer_norm)
        operation.require(
            operation.has(weights + 15) or not operation.has(weights + 16),
            "the projection has a bias, but no weights",
        )

    @staticmethod
    def _require_presence(
        operation: BoundOperation, feature: str, present: bool, *indices: int
    ) -> None:
        for index in indices:
            word = "misses" if present else "has the superfluous"
            operation.require(
                operation.has(index) == present, f"the {feature} {word} input {index}"
            )


def check_clips(operation: BoundOperation, *indices: int) -> None:
    """Check the bounds of cell and projection; 0 stands for none.

    :raises OperationFailedError: if a known one is negative.
    """
    for index in indices:
        operation.require_if_known(index, lambda clip: clip >= 0, "a clip is negative")


STEP_CELL = CellInputs(weights=1, states=18, layer_norm=23)
"""The cell of LSTM."""

SEQUENCE_CELL = CellInputs(weights=1, states=18, layer_norm=24)
"""The cell of UNIDIRECTIONAL_SEQUENCE_LSTM."""

FORWARD_CELL = CellInputs(weights=1, states=35, layer_norm=53)
"""The first cell of BIDIRECTIONAL_SEQUENCE_LSTM."""

BACKWARD_CELL = CellInputs(weights=18, states=37, layer_norm=57)
"""The second cell of BIDIRECTIONAL_SEQUENCE_LSTM."""

_AUXILIARY_INPUT = 39
_AUXILIARY_WEIGHTS = 40


def _step_shapes(operation: BoundOperation) -> tuple[Shape, ...]:
    batches, size = operation.shape_of_rank(0, 2)
    check_clips(operation, 21, 22)
    sizes = STEP_CELL.check(operation, batches, size)
    gates = 4 if STEP_CELL.has_input_gate(operation) else 3
    result = batches, sizes.outputs
    return (batches, sizes.units * gates), result, (batches, sizes.units), result


def _sequence_shapes(operation: BoundOperation) -> tuple[Shape, ...]:
    outer, batches, size = sequence_sizes(operation, operation.boolean(23))
    check_clips(operation, 21, 22)
    sizes = SEQUENCE_CELL.check(operation, batches, size)
    states = (batches, sizes.outputs), (batches, sizes.units)
    return ((*outer, sizes.outputs), *states)[: len(operation.outputs)]


def _bidirectional_shapes(operation: BoundOperation) -> tuple[Shape, ...]:
    outer, batches, size = sequence_sizes(operation, operation.boolean(52))
    check_clips(operation, 49, 50)
    backward_size = _check_auxiliary(operation, outer, size)
    forward = FORWARD_CELL.check(operation, batches, size)
    backward = BACKWARD_CELL.check(operation, batches, backward_size)
    results = merged(
        operation, operation.boolean(51), outer, forward.outputs, backward.outputs
    )
    states = tuple(
        (batches, length)
        for cell in (forward, backward)
        for length in (cell.outputs, cell.units)
    )
    return with_states(operation, results, states)


def _check_auxiliary(operation: BoundOperation, outer: Shape, size: int) -> int:
    """Return how many elements the backward cell takes from its main input.

    With an auxiliary input but no weights for it, that is the auxiliary input.
    """
    gates = range(4 if FORWARD_CELL.has_input_gate(operation) else 3)
    weighted = operation.has(_AUXILIARY_WEIGHTS + 1)
    for start in (_AUXILIARY_WEIGHTS, _AUXILIARY_WEIGHTS + 4):
        present = [operation.has(start + 3 - gate) for gate in gates]
        operation.require(
            present == [weighted] * len(gates), "auxiliary weights are incomplete"
        )
    operation.require(
        operation.has(_AUXILIARY_INPUT) or not weighted,
        "there are auxiliary weights without an auxiliary input",
    )
    if not operation.has(_AUXILIARY_INPUT):
        return size
    auxiliary_size = operation.shape_of_rank(_AUXILIARY_INPUT, 3)[2]
    operation.check_shape(_AUXILIARY_INPUT, (*outer, auxiliary_size), "auxiliary_input")
    if not weighted:
        return auxiliary_size
    _check_auxiliary_weights(operation, auxiliary_size)
    return size


def _check_auxiliary_weights(operation: BoundOperation, size: int) -> None:
    for cell, start in (
        (FORWARD_CELL, _AUXILIARY_WEIGHTS),
        (BACKWARD_CELL, _AUXILIARY_WEIGHTS + 4),
    ):
        units = operation.shape_of_rank(cell.weights + 3, 2)[0]
        for index in range(start, start + 4):
            if operation.has(index):
                operation.check_shape(index, (units, size), f"input {index}")


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
            f"the scale of input {index} is not the scale of input 1 divided by 128",
        )


def _quantized_shapes(operation: BoundOperation) -> tuple[Shape, Shape, Shape]:
    batches, size = operation.shape_of_rank(0, 2)
    check_clips(operation, 24, 25)
    sizes = QUANTIZED_CELL.check(operation, batches, size)
    result = batches, sizes.outputs
    return result, (batches, sizes.units), result


_STEP = (
    f"input, {cell_arguments()}, output_state_in cell_state_in, activation: INT32, "
    "cell_clip projection_clip: S"
)
_SEQUENCE = f"{_STEP}, time_major: BOOL, " + for_each_gate("{}_layer_norm_weights?")
_BIDIRECTIONAL = ", ".join(
    (
        "input",
        cell_arguments("forward_"),
        cell_arguments("backward_"),
        "forward_output_state_in forward_cell_state_in",
        "backward_output_state_in backward_cell_state_in auxiliary_input?",
        for_each_gate("forward_auxiliary_to_{}_weights?"),
        for_each_gate("backward_auxiliary_to_{}_weights?"),
        "activation: INT32, cell_clip projection_clip: S",
        "merge_outputs time_major: BOOL",
        for_each_gate("forward_{}_layer_norm_weights?"),
        for_each_gate("backward_{}_layer_norm_weights?"),
    )
)

SIGNATURES = (
    declare(
        "LSTM T/S 1.0: F32/FLOAT32; 1.2: F16/FLOAT16",
        f"{_STEP} | {for_each_gate('{}_layer_norm_weights? @1.2')} "
        "-> scratch output_state_out cell_state_out output",
        _step_shapes,
    ),
    declare(
        "UNIDIRECTIONAL_SEQUENCE_LSTM T/S 1.2: F32/FLOAT32 F16/FLOAT16",
        (
            f"1.2: {_SEQUENCE}",
            f"1.3: {_SEQUENCE} -> output output_state_out cell_state_out",
        ),
        _sequence_shapes,
    ),
    declare(
        "BIDIRECTIONAL_SEQUENCE_LSTM T/S 1.2: F32/FLOAT32 F16/FLOAT16",
        directed_layouts(
            _BIDIRECTIONAL,
            "forward_output_state_out forward_cell_state_out "
            "backward_output_state_out backward_cell_state_out",
        ),
        _bidirectional_shapes,
    ),
    declare(
        "QUANTIZED_16BIT_LSTM 1.2: Q8",
        f"input = lstm_result, {for_each_gate('input_to_{}_weights')}, "
        f"{for_each_gate('recurrent_to_{}_weights')}, "
        "input_gate_bias forget_gate_bias cell_bias output_gate_bias: I32, "
        "cell_state_in: Q16S = lstm_memory, output_in = lstm_result "
        "-> cell_state_out: Q16S = lstm_memory, output = lstm_result",
        _sixteen_bit_shapes,
    ),
    declare(
        "QUANTIZED_LSTM 1.3: Q8S",
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
