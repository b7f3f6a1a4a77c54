"""Runs one operation in the reference kernels of LiteRT, on signed 8-bit tensors."""

from collections.abc import Sequence

import flatbuffers
import numpy as np
import pytest

from asyncnn.hal.operations.bound import Array, BoundOperand
from tests.kernels.operations import Argument

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

_VERSIONS = {"HARD_SWISH": 1, "PRELU": 1}


def _tensor(name: str, operand: BoundOperand) -> object:
    description = schema.TensorT()
    description.name = name
    description.shape = list(operand.shape)
    description.type = schema.TensorType.INT8
    description.buffer = 0
    description.quantization = schema.QuantizationParametersT()
    description.quantization.scale = [operand.scale]
    description.quantization.zeroPoint = [operand.zero_point]
    return description


def _buffer(data: bytes | None) -> object:
    buffer = schema.BufferT()
    if data is not None:
        buffer.data = np.frombuffer(data, np.uint8)
    return buffer


def _model(name: str, inputs: Sequence[Argument], output: BoundOperand, options):
    graph, model, operator, code = (
        cls()
        for cls in (
            schema.SubGraphT,
            schema.ModelT,
            schema.OperatorT,
            schema.OperatorCodeT,
        )
    )
    operands = [argument.operand for argument in inputs] + [output]
    graph.tensors = [_tensor(f"t{i}", operand) for i, operand in enumerate(operands)]
    model.version = 3
    model.buffers = [_buffer(None)]
    for index, argument in enumerate(inputs):
        if argument.operand.value is not None:
            model.buffers.append(_buffer(argument.array.tobytes()))
            graph.tensors[index].buffer = len(model.buffers) - 1
    graph.inputs = [i for i, given in enumerate(inputs) if given.operand.value is None]
    graph.outputs = [len(inputs)]
    operator.inputs, operator.outputs = list(range(len(inputs))), graph.outputs
    if options is not None:
        kind = type(options).__name__.removesuffix("T")
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        operator.builtinOptions = options
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = _VERSIONS.get(name, 2)
    graph.operators, model.subgraphs, model.operatorCodes = [operator], [graph], [code]
    return model


def options(kind: str, **values: object) -> object:
    """Return the builtin options called ``kind`` with these fields set."""
    instance = getattr(schema, f"{kind}OptionsT")()
    for field, value in values.items():
        setattr(instance, field, value)
    return instance


def run_reference(
    name: str,
    inputs: Sequence[Argument],
    output: BoundOperand,
    options: object | None = None,
) -> Array:
    """Return what the reference kernel computes; constants stay constants there."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_model(name, inputs, output, options).Pack(builder), b"TFL3")
    resolver = interpreter.OpResolverType.BUILTIN_REF
    engine = interpreter.Interpreter(
        model_content=bytes(builder.Output()),
        num_threads=1,
        experimental_op_resolver_type=resolver,
    )
    engine.allocate_tensors()
    runtime = [given.array for given in inputs if given.operand.value is None]
    for details, array in zip(engine.get_input_details(), runtime, strict=True):
        engine.set_tensor(details["index"], array)
    engine.invoke()
    return engine.get_tensor(engine.get_output_details()[0]["index"])
