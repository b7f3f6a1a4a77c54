"""The model of benchmarks that time everything but computing."""

from asyncnn.hal.types import (
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
    Request,
)
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import RequestBuilder

LENGTH = 4
"""Floats in each vector."""


def tiny_addition() -> NamedModel:
    """Return the model that adds two vectors of four floats."""
    builder = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = builder.input("x", kind, (LENGTH,))
    y = builder.input("y", kind, (LENGTH,))
    none = builder.scalar(FusedActivationFunc.NONE)
    total = builder.operation(OperationType.ADD, [x, y, none], Operand(kind, (LENGTH,)))
    builder.output(total, "sum")
    return builder.build()


def addition_request(prepared: PreparedModel) -> Request:
    """Return a request for that model whose arrays are shared."""
    x, y, total = (shared_array(LENGTH) for _ in range(3))
    return RequestBuilder(prepared.inputs, prepared.outputs)([x, y], [total])
