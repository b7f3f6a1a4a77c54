"""Products of matrices: MatMul, Gemm and what Einsum says of them."""

import math

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import I32, Value
from asyncnn.runtime.moves import transpose
from asyncnn.runtime.onnx.convolution import filter_of
from asyncnn.runtime.onnx.node import Converter, OnnxNode


def product(draft: Composer, first: Value, second: Value) -> Value:
    """Return the product of two stacks of matrices, as NumPy's ``matmul``."""
    if not first.rank or not second.rank:
        raise InvalidArgumentError("a product of scalars")
    one = draft.reshape(first, (1, *first.shape)) if first.rank == 1 else first
    two = draft.reshape(second, (*second.shape, 1)) if second.rank == 1 else second
    lines, inner = one.shape[-2:]
    if inner != two.shape[-2]:
        raise InvalidArgumentError(
            f"{list(first.shape)} and {list(second.shape)} do not multiply"
        )
    try:
        outer = np.broadcast_shapes(one.shape[:-2], two.shape[:-2])
    except ValueError:
        raise InvalidArgumentError("the stacks do not broadcast") from None
    columns = two.shape[-1]
    shape = (
        *outer,
        *([lines] if first.rank > 1 else []),
        *([columns] if second.rank > 1 else []),
    )
    if two.rank == 2:
        rows = draft.reshape(one, (math.prod(one.shape[:-1]), inner))
        if two.is_constant and rows.type != I32:
            weights = filter_of(draft, two, (1, 0), 0)
            return draft.reshape(draft.connected(rows, weights), shape)
        flat = draft.emit(Op.BATCH_MATMUL, [rows, two, False, False])
        return draft.reshape(flat, shape)
    count = math.prod(outer)
    stacks = [
        draft.reshape(
            draft.expand(value, (*outer, *value.shape[-2:])), (count, *value.shape[-2:])
        )
        for value in (one, two)
    ]
    result = draft.emit(Op.BATCH_MATMUL, [*stacks, False, False])
    return draft.reshape(result, shape)


def _mat_mul(node: OnnxNode) -> Value:
    return product(node.draft, node.input(0), node.input(1))


def _gemm(node: OnnxNode) -> Value:
    first, second, draft = node.input(0), node.input(1), node.draft
    if first.rank != 2 or second.rank != 2:
        raise InvalidArgumentError("Gemm of what are no matrices")
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if node.attribute("transA", 0):
        first = transpose(draft, first, (1, 0))
    is_transposed = bool(node.attribute("transB", 0))
    depth = second.shape[1 if is_transposed else 0]
    units = second.shape[0 if is_transposed else 1]
    if first.shape[1] != depth:
        raise InvalidArgumentError(f"{list(first.shape)} by {list(second.shape)}")
    rest = node.input(2) if node.has(2) and beta else None
    weights = second if is_transposed else filter_of(draft, second, (1, 0), 0)
    bias = None
    is_plain = rest is not None and rest.is_constant and alpha == beta == 1.0
    if rest is not None and is_plain and rest.shape in ((units,), (1, units)):
        bias, rest = draft.reshape(rest, (units,)), None
    if first.type == I32:
        weights = transpose(draft, weights, (1, 0))
        result = draft.emit(Op.BATCH_MATMUL, [first, weights, False, False])
    else:
        result = draft.connected(first, weights, bias)
    if alpha != 1.0:
        result = draft.mul(result, alpha)
    if rest is not None:
        result = draft.add(result, rest if beta == 1.0 else draft.mul(rest, beta))
    return result


CONVERTERS: dict[str, Converter] = {
    "MatMul": _mat_mul,
    "Gemm": _gemm,
}
