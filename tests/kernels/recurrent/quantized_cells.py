"""Random cells for QUANTIZED_LSTM, with any of its optional parts."""

from typing import NamedTuple

import numpy as np

from asyncnn.hal.types import OperandType
from tests.kernels.operations import I32, Q8SYM, Argument, constant

Q16S = OperandType.TENSOR_QUANT16_SYMM


class Options(NamedTuple):
    """Which optional parts a cell has."""

    coupled: bool = False
    peephole: bool = False
    norm: bool = False
    projection: bool = False
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    hidden_zero_point: int = 0
    output_zero_point: int = 0


class QuantizedCell(NamedTuple):
    """Constant inputs of the operation by index, and what describes the others."""

    constants: dict[int, Argument | float | int]
    options: Options
    sizes: tuple[int, int, int]
    data: tuple[float, int]
    output: tuple[float, int]
    state_scale: float


def random_cell(options: Options, sizes=(7, 12, 5), seed: int = 0) -> QuantizedCell:
    """Return a cell of so many inputs, units and outputs (units without projection)."""
    generator = np.random.default_rng(seed)
    inputs, units, outputs = sizes if options.projection else (*sizes[:2], sizes[1])
    data = 0.05, -7
    output_scale = 0.06 if options.projection else 1 / 110
    output = output_scale, options.output_zero_point
    state_scale = 2.0**-11

    def weights(rows, columns):
        scale = float(np.float32(generator.uniform(0.008, 0.02)))
        return constant(Q8SYM, generator.integers(-127, 128, (rows, columns)), scale)

    def bias(scale, length=units):
        return constant(I32, generator.normal(0, 0.5, length) / scale, scale)

    gates = range(1 if options.coupled else 0, 4)
    constants: dict[int, Argument | float | int] = {}
    for gate in gates:
        constants[1 + gate] = weights(units, inputs)
        constants[5 + gate] = weights(units, outputs)
        bias_scale = constants[1 + gate].operand.scale * data[0]
        if options.norm:
            constants[20 + gate] = constant(
                Q16S, generator.integers(9000, 32767, units), 2.1e-5 * (gate + 1)
            )
            bias_scale = constants[20 + gate].operand.scale * 2**-10
        constants[12 + gate] = bias(bias_scale)
    if options.peephole:
        for place in (9, 10, 11)[1 if options.coupled else 0 :]:
            values = generator.integers(-32767, 32768, units)
            constants[place] = constant(Q16S, values, 2e-5)
    if options.projection:
        constants[16] = weights(outputs, units)
        constants[17] = bias(constants[16].operand.scale / 127, outputs)
    constants |= {24: options.cell_clip, 25: options.projection_clip}
    scale = 2.0**-9 if options.norm else 2.0**-12
    constants |= dict.fromkeys(range(26, 30), scale)
    hidden = (1 / 127, options.hidden_zero_point) if options.projection else output
    constants |= {30: hidden[1], 31: float(np.float32(hidden[0]))}
    sizes = inputs, units, outputs
    return QuantizedCell(constants, options, sizes, data, output, state_scale)
