"""Random cells for QUANTIZED_LSTM with any of their optional parts."""

from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import BoundOperand
from asyncnn.hal.types import OperandType, OperationType
from tests.kernels.operations import (
    I32,
    Q8S,
    Q8SYM,
    Argument,
    Given,
    compute_all,
    constant,
    result,
    tensor,
)
from tests.kernels.recurrent.float_cells import (
    GATES,
    INPUT,
    PLAIN,
    SMALL,
    Cell,
    Parts,
    Sizes,
)

Q16S = OperandType.TENSOR_QUANT16_SYMM
STATE_SCALE = 2.0**-11
DATA = 0.05, -7

LAYER_NORM, CLIPS, INTERMEDIATE, HIDDEN = 20, 24, 26, 30


class QuantizedCell(NamedTuple):
    """Everything but data and states: constant inputs by index, and scales."""

    constants: dict[int, Given]
    parts: Parts
    sizes: Sizes
    output: tuple[float, int]

    def given(self, x, output, memory) -> list[Given]:
        """Return all inputs of one step."""
        inputs = [self.constants.get(index) for index in range(32)]
        inputs[0] = tensor(Q8S, x, *DATA)
        inputs[18] = tensor(Q8S, output, *self.output)
        inputs[19] = tensor(Q16S, memory, STATE_SCALE)
        return inputs

    def described(self, batches: int) -> list[BoundOperand]:
        """Return what describes the outputs."""
        output = result(Q8S, (batches, self.sizes.outputs), *self.output)
        memory = result(Q16S, (batches, self.sizes.units), STATE_SCALE)
        return [output, memory, output]

    def step(self, x, output, memory) -> list[np.ndarray]:
        """Return output state, cell state and output after one step."""
        inputs = self.given(x, output, memory)
        described = self.described(len(x))
        return compute_all(OperationType.QUANTIZED_LSTM, inputs, described)

    def initial_states(self, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an output and a cell state that stand for zero."""
        _, units, outputs = self.sizes
        output = np.full((batches, outputs), self.output[1], np.int8)
        return output, np.zeros((batches, units), np.int16)

    def as_float(self) -> Cell:
        """Return the cell that the quantised values stand for."""

        def real(index):
            given = self.constants.get(index)
            return given and given.array * float(given.operand.scale)

        weights = tuple(real(index) for index in range(1, 18))
        norm = tuple(real(LAYER_NORM + gate) for gate in GATES)
        return Cell(weights, norm, self.parts, self.sizes)


def random_cell(
    parts: Parts = PLAIN,
    sizes: Sizes = SMALL,
    seed: int = 0,
    *,
    output_zero_point: int = 0,
    hidden_zero_point: int = 0,
) -> QuantizedCell:
    """Return a cell; the hidden zero point counts with a projection only."""
    generator = np.random.default_rng(seed)
    inputs, units, outputs = sizes
    if not parts.projection:
        outputs = units
    output = (0.02 if parts.projection else 1 / 110), output_zero_point
    hidden = (1 / 127, hidden_zero_point) if parts.projection else output

    def matrix(rows: int, columns: int) -> Argument:
        scale = np.float32(generator.uniform(0.5, 1) / (60 * columns**0.5))
        return constant(Q8SYM, generator.integers(-127, 128, (rows, columns)), scale)

    def vector(scale: float, length: int, spread: float = 0.5) -> Argument:
        return constant(I32, generator.normal(0, spread, length) / scale, scale)

    constants: dict[int, Given] = {}
    for gate in GATES:
        if gate == INPUT and parts.coupled:
            continue
        constants[1 + gate] = matrix(units, inputs)
        constants[5 + gate] = matrix(units, outputs)
        bias_scale = constants[1 + gate].operand.scale * DATA[0]
        if parts.norm:
            codes = generator.integers(9000, 32767, units)
            norm = constant(Q16S, codes, 2e-5 * (gate + 1))
            constants[LAYER_NORM + gate] = norm
            bias_scale = norm.operand.scale * 2**-10
        constants[12 + gate] = vector(bias_scale, units)
    if parts.peephole:
        for index in (9, 10, 11)[parts.coupled :]:
            codes = generator.integers(-32767, 32768, units)
            constants[index] = constant(Q16S, codes, 2e-5)
    if parts.projection:
        constants[16] = matrix(outputs, units)
    if parts.projection and parts.projection_bias:
        scale = constants[16].operand.scale * hidden[0]
        constants[17] = vector(scale, outputs, spread=0.1)
    constants |= {CLIPS: parts.cell_clip, CLIPS + 1: parts.projection_clip}
    intermediate = 2.0**-9 if parts.norm else 2.0**-12
    constants |= dict.fromkeys(range(INTERMEDIATE, HIDDEN), intermediate)
    constants |= {HIDDEN: hidden[1], HIDDEN + 1: float(np.float32(hidden[0]))}
    return QuantizedCell(constants, parts, Sizes(inputs, units, outputs), output)


def random_codes(*shape: int, seed: int = 0) -> np.ndarray:
    """Return 8-bit codes over their whole range."""
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
