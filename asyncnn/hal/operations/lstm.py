"""Long short-term memory, one step or along a sequence, in one or two directions.

A cell has four gates; `CellInputs` tells at which inputs of the operation its weights,
biases and states stand, and checks their shapes. Shapes: input [batch, input size],
states [batch, output size] and [batch, cell size].

Source: 1.3/types.hal (LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM).
"""

import msgspec

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.recurrent import (
    MERGED,
    SEPARATE,
    merged,
    sequence_sizes,
    with_states,
)
from asyncnn.hal.operations.shapes import (
    require,
    require_if_known,
    require_shape,
    shape_of_rank,
)
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    INT32,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    arguments,
    row,
)
from asyncnn.hal.types import HalVersion, OperandType, OperationType

GATES = ("input", "forget", "cell", "output")
"""The gates in the order of their arguments."""


def gate_arguments(
    pattern: str,
    type_: OperandType | str,
    optional: bool = False,
    since: HalVersion = V1_0,
) -> tuple[Argument, ...]:
    """Return an argument for each gate; at least that of the input gate is optional."""
    return tuple(
        Argument(pattern.format(gate), type_, (), optional or gate == "input", since)
        for gate in GATES
    )


def cell_arguments(
    prefix: str = "",
    matrix: OperandType | str = "T",
    peephole: OperandType | str = "T",
    bias: OperandType | str = "T",
) -> tuple[Argument, ...]:
    """Return the 17 arguments of a cell, from weights to projection bias."""
    peepholes = (f"{prefix}cell_to_{gate}_weights" for gate in GATES if gate != "cell")
    return (
        *gate_arguments(f"{prefix}input_to_{{}}_weights", matrix),
        *gate_arguments(f"{prefix}recurrent_to_{{}}_weights", matrix),
        *arguments(peephole, *peepholes, optional=True),
        *gate_arguments(f"{prefix}{{}}_gate_bias", bias),
        *arguments(matrix, f"{prefix}projection_weights", optional=True),
        *arguments(bias, f"{prefix}projection_bias", optional=True),
    )


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
        units = shape_of_rank(operation, self.weights + 3, 2)[0]
        outputs = shape_of_rank(operation, self.weights + 7, 2)[1]
        if not operation.has(self.weights + 15):
            require(
                operation,
                outputs == units,
                f"{units} units give {outputs} outputs without a projection",
            )
        for index, shape in self._shapes(units, outputs, size).items():
            if operation.has(index):
                require_shape(operation, index, shape, f"input {index}")
        require_shape(operation, self.states, (batches, outputs), "the output state")
        require_shape(operation, self.states + 1, (batches, units), "the cell state")
        return CellSizes(units, outputs)

    def has_input_gate(self, operation: BoundOperation) -> bool:
        """Tell whether the cell has an input gate of its own."""
        return operation.has(self.weights)

    def has_peepholes(self, operation: BoundOperation) -> bool:
        """Tell whether the gates see the cell state."""
        return operation.has(self.weights + 10)

    def has_layer_norm(self, operation: BoundOperation) -> bool:
        """Tell whether gates are normalised."""
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
        require(
            operation,
            operation.has(weights + 15) or not operation.has(weights + 16),
            "the projection has a bias, but no weights",
        )

    @staticmethod
    def _require_presence(
        operation: BoundOperation, feature: str, present: bool, *indices: int
    ) -> None:
        for index in indices:
            word = "misses" if present else "has the superfluous"
            require(
                operation,
                operation.has(index) == present,
                f"the {feature} {word} input {index}",
            )


def check_clips(operation: BoundOperation, *indices: int) -> None:
    """Check the bounds of cell and projection; 0 stands for none.

    :raises OperationFailedError: if a known one is negative.
    """
    for index in indices:
        require_if_known(operation, index, lambda clip: clip >= 0, "a clip is negative")


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
    batches, size = shape_of_rank(operation, 0, 2)
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
        require(
            operation,
            present == [weighted] * len(gates),
            "auxiliary weights are incomplete",
        )
    require(
        operation,
        operation.has(_AUXILIARY_INPUT) or not weighted,
        "there are auxiliary weights without an auxiliary input",
    )
    if not operation.has(_AUXILIARY_INPUT):
        return size
    auxiliary_size = shape_of_rank(operation, _AUXILIARY_INPUT, 3)[2]
    require_shape(
        operation, _AUXILIARY_INPUT, (*outer, auxiliary_size), "auxiliary_input"
    )
    if not weighted:
        return auxiliary_size
    _check_auxiliary_weights(operation, auxiliary_size)
    return size


def _check_auxiliary_weights(operation: BoundOperation, size: int) -> None:
    for cell, start in (
        (FORWARD_CELL, _AUXILIARY_WEIGHTS),
        (BACKWARD_CELL, _AUXILIARY_WEIGHTS + 4),
    ):
        units = shape_of_rank(operation, cell.weights + 3, 2)[0]
        for index in range(start, start + 4):
            if operation.has(index):
                require_shape(operation, index, (units, size), f"input {index}")


def _layer_norm(prefix: str = "", since: HalVersion = V1_0) -> tuple[Argument, ...]:
    return gate_arguments(f"{prefix}{{}}_layer_norm_weights", "T", True, since)


_STATES = arguments("T", "output_state_in", "cell_state_in")
_CLIPS = arguments("S", "cell_clip", "projection_clip")
_ACTIVATION = Argument("activation", INT32)
_BIDIRECTIONAL_INPUTS = (
    Argument("input"),
    *cell_arguments("forward_"),
    *cell_arguments("backward_"),
    *arguments("T", "forward_output_state_in", "forward_cell_state_in"),
    *arguments("T", "backward_output_state_in", "backward_cell_state_in"),
    Argument("auxiliary_input", optional=True),
    *gate_arguments("forward_auxiliary_to_{}_weights", "T", optional=True),
    *gate_arguments("backward_auxiliary_to_{}_weights", "T", optional=True),
    _ACTIVATION,
    *_CLIPS,
    *arguments(BOOL, "merge_outputs", "time_major"),
    *_layer_norm("forward_"),
    *_layer_norm("backward_"),
)
_BIDIRECTIONAL_STATES = (
    *arguments("T", "forward_output_state_out", "forward_cell_state_out"),
    *arguments("T", "backward_output_state_out", "backward_cell_state_out"),
)


SIGNATURES = (
    OperationSignature(
        OperationType.LSTM,
        rows=(row(V1_0, T=F32, S=FLOAT32), row(V1_2, T=F16, S=FLOAT16)),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    *cell_arguments(),
                    *_STATES,
                    _ACTIVATION,
                    *_CLIPS,
                    *_layer_norm(since=V1_2),
                ),
                arguments(
                    "T", "scratch", "output_state_out", "cell_state_out", "output"
                ),
                counts=(23, 27),
            ),
        ),
        shape=_step_shapes,
    ),
    OperationSignature(
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        rows=(row(V1_2, T=F32, S=FLOAT32), row(V1_2, T=F16, S=FLOAT16)),
        layouts=tuple(
            Layout(
                (
                    Argument("input"),
                    *cell_arguments(),
                    *_STATES,
                    _ACTIVATION,
                    *_CLIPS,
                    Argument("time_major", BOOL),
                    *_layer_norm(),
                ),
                outputs,
                since=since,
            )
            for since, outputs in (
                (V1_2, arguments("T", "output")),
                (V1_3, arguments("T", "output", "output_state_out", "cell_state_out")),
            )
        ),
        shape=_sequence_shapes,
    ),
    OperationSignature(
        OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
        rows=(row(V1_2, T=F32, S=FLOAT32), row(V1_2, T=F16, S=FLOAT16)),
        layouts=tuple(
            Layout(_BIDIRECTIONAL_INPUTS, outputs, since=since)
            for since, outputs in (
                (V1_2, MERGED),
                (V1_2, SEPARATE),
                (V1_3, MERGED + _BIDIRECTIONAL_STATES),
                (V1_3, SEPARATE + _BIDIRECTIONAL_STATES),
            )
        ),
        shape=_bidirectional_shapes,
    ),
)
