"""The cell that all LSTM operations share: its arguments and how they fit together.

A cell has ``units`` memory elements and ``outputs`` results, which differ only where a
projection maps one to the other. Tensors of a feature come together or not at all: the
input gate (without it the forget gate does its work: CIFG), peepholes, projection and
layer normalisation.

Source: 1.3/types.hal (LSTM, QUANTIZED_LSTM).
"""

import msgspec

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    require,
    require_if_known,
    require_shape,
    shape_of_rank,
)
from asyncnn.hal.operations.signature import V1_0, Argument, arguments
from asyncnn.hal.types import HalVersion, OperandType

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
