"""Runs a quantised cell along a sequence in the reference kernels of LiteRT."""

import flatbuffers
import numpy as np

from tests.kernels.litert import interpreter, schema
from tests.kernels.recurrent.integer.quantized_cells import (
    CLIPS,
    DATA,
    HIDDEN,
    INTERMEDIATE,
    LAYER_NORM,
    STATE_SCALE,
    QuantizedCell,
)

_TYPES = {
    np.dtype(np.int8): schema.TensorType.INT8,
    np.dtype(np.int16): schema.TensorType.INT16,
    np.dtype(np.int32): schema.TensorType.INT32,
}


class _Graph:
    """A model with one subgraph, to which tensors are added."""

    def __init__(self) -> None:
        self.graph, self.model = schema.SubGraphT(), schema.ModelT()
        self.graph.tensors = []
        self.model.version, self.model.buffers = 3, [schema.BufferT()]
        self.model.subgraphs = [self.graph]

    def add(self, shape, dtype, scale, zero_point=0, *, data=None, variable=False):
        """Return the index of a new tensor; without data it is filled at run time."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self.graph.tensors)}", list(shape)
        tensor.type, tensor.buffer = _TYPES[np.dtype(dtype)], 0
        tensor.isVariable = variable
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = [scale]
        tensor.quantization.zeroPoint = [zero_point]
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def content(self, operator, source: int, target: int) -> bytes:
        """Return the model of one operator as bytes."""
        code = schema.OperatorCodeT()
        code.builtinCode = schema.BuiltinOperator.UNIDIRECTIONAL_SEQUENCE_LSTM
        code.deprecatedBuiltinCode, code.version = code.builtinCode, 3
        self.graph.inputs, self.graph.outputs = [source], [target]
        self.graph.operators, self.model.operatorCodes = [operator], [code]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _operator(cell: QuantizedCell, inputs, output, intermediates):
    operator = schema.OperatorT()
    operator.inputs, operator.outputs = inputs, [output]
    operator.intermediates = intermediates
    options = schema.UnidirectionalSequenceLSTMOptionsT()
    options.fusedActivationFunction = schema.ActivationFunctionType.TANH
    options.cellClip = cell.parts.cell_clip
    options.projClip = cell.parts.projection_clip
    options.timeMajor = True
    operator.builtinOptions = options
    operator.builtinOptionsType = (
        schema.BuiltinOptions.UnidirectionalSequenceLSTMOptions
    )
    return operator


def run_reference(cell: QuantizedCell, sequence: np.ndarray) -> np.ndarray:
    """Return the outputs [steps, batches, n] of a cell whose states begin with zero."""
    graph, constants = _Graph(), cell.constants
    steps, batches, _ = sequence.shape
    _, units, outputs = cell.sizes
    inputs = [-1] * (LAYER_NORM + 4)
    inputs[0] = graph.add(sequence.shape, np.int8, *DATA)
    for index in [*range(1, 18), *range(LAYER_NORM, CLIPS)]:
        if index in constants:
            array, scale = constants[index].array, constants[index].operand.scale
            inputs[index] = graph.add(array.shape, array.dtype, scale, data=array)
    inputs[18] = graph.add((batches, outputs), np.int8, *cell.output, variable=True)
    inputs[19] = graph.add((batches, units), np.int16, STATE_SCALE, variable=True)
    intermediates = [
        graph.add((0,), np.int16, constants[index])
        for index in range(INTERMEDIATE, HIDDEN)
    ]
    hidden = constants[HIDDEN + 1], constants[HIDDEN]
    intermediates.append(graph.add((0,), np.int8, *hidden))
    output = graph.add((steps, batches, outputs), np.int8, *cell.output)
    operator = _operator(cell, inputs, output, intermediates)
    engine = interpreter.Interpreter(
        model_content=graph.content(operator, inputs[0], output),
        num_threads=1,
        experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_REF,
    )
    engine.allocate_tensors()
    engine.set_tensor(engine.get_input_details()[0]["index"], sequence)
    engine.invoke()
    return engine.get_tensor(engine.get_output_details()[0]["index"])
