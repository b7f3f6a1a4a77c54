"""Whether requests of a model can be stacked along its first axis, and as which model.

Decided by the operations: known ones alone, and those that say axes must leave the
first alone. Of a file that LiteRT gets as it is, the operators are looked at. That
shapes agree shows as the model is compiled for a size, and that outputs do is measured
then: `asyncnn.devices.batching`.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn.engine import Program
from asyncnn.engine.plan import CONSTANT_LIFETIMES, constant_array, operation_type
from asyncnn.extensions.regions import LITERT, region_of
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import DataLocation, Model, OperandLifeTime, Operation
from asyncnn.input_files import decoding
from asyncnn.memory.pools import view
from asyncnn.pacing import completed
from asyncnn.tflite.scan import reading_checked
from asyncnn.tflite.tables import Operator, Tensor

MOST_MEMBER_BYTES = 1 << 16
"""Of all inputs and outputs: larger ones take longer to copy than a batch saves."""

_BY_ELEMENT = {
    *("ABS", "ADD", "CAST", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FLOOR"),
    *("GREATER", "GREATER_EQUAL", "HARD_SWISH", "LESS", "LESS_EQUAL", "LOG"),
    *("LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGISTIC", "MAXIMUM", "MINIMUM"),
    *("MUL", "NEG", "NOT_EQUAL", "POW", "PRELU", "QUANTIZE", "RELU", "RELU1", "RELU6"),
    *("RSQRT", "SIN", "SQRT", "SUB", "TANH"),
}
_BY_MEMBER = {
    *("AVERAGE_POOL_2D", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D"),
    *("DEPTH_TO_SPACE", "FULLY_CONNECTED", "GROUPED_CONV_2D"),
    *("INSTANCE_NORMALIZATION", "L2_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR"),
    *("RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH"),
}
_ALONG_1 = (
    *("ARGMAX", "ARGMIN", "EXPAND_DIMS", "L2_NORMALIZATION", "MEAN", "REDUCE_MAX"),
    *("REDUCE_MIN", "REDUCE_PROD", "REDUCE_SUM", "SPLIT", "SQUEEZE"),
)
_AXES = {
    **dict.fromkeys(_ALONG_1, 1),
    **dict.fromkeys(("CHANNEL_SHUFFLE", "LOG_SOFTMAX", "SOFTMAX"), 2),
    "CONCATENATION": -1,
    "LOCAL_RESPONSE_NORMALIZATION": 5,
}
"""Which input says axes; the last axis is meant where that is left out."""

_PADS = {"MIRROR_PAD", "PAD", "PAD_V2"}
_AMONG = {"BATCH_MATMUL": 2, "CONCATENATION": -1}
"""Which inputs come with the request; of others, the first one does."""

_FILE_AXES = {
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), 1),
    "EXPAND_DIMS": 1,
    "SPLIT": 0,
}
_FILE_PADS = {"MIRROR_PAD", "PAD", "PADV2"}
_LAST_AXIS = {"L2_NORMALIZATION", "LOG_SOFTMAX", "SOFTMAX"}

_IN_FILES = {
    *(*_BY_ELEMENT, *_BY_MEMBER, *_AXES, *_PADS, "RESHAPE", "TRANSPOSE"),
    *("GELU", "LEAKY_RELU", "PADV2", "RELU_N1_TO_1", "SQUARE", "SUM"),
}


def batched_model(program: Program, size: int) -> Model:
    """Return the model of ``program`` for ``size`` requests, stacked by first axes.

    :raises GeneralFailureError: if they cannot be; says why.
    """
    plan, model = program.fixed_plan, program.model
    if plan is None or model.referenced:
        raise GeneralFailureError("its shapes or its steps are not always the same")
    if sum(port.size_bytes for port in plan.ports) > MOST_MEMBER_BYTES:
        raise GeneralFailureError(f"its tensors take over {MOST_MEMBER_BYTES} bytes")
    region = region_of(program.source)
    if region is not None and region.extension != LITERT:
        raise GeneralFailureError("what is in a region of ONNX is not looked at")
    if region is not None:
        _check_file(bytes(view(region.graph)))
    return _Stacking(program, size).model(is_region=region is not None)


def _check_file(data: bytes) -> None:
    with decoding("TFLite"):
        graphs = completed(reading_checked(memoryview(data), is_final=True)).graphs
    if len(graphs) > 1:
        raise GeneralFailureError("it has control flow")
    for operator in graphs[0].operators:
        tensors = [graphs[0].tensors[index] for index in operator.inputs if index >= 0]
        if not _is_apt(operator, tensors):
            raise GeneralFailureError(f"{operator.name} may depend on the batch")


def _is_apt(operator: Operator, tensors: Sequence[Tensor]) -> bool:
    """Return whether an operator of a file leaves the first axis alone."""
    name = operator.name
    shapes = [tensor.shape for tensor in tensors if tensor.data is None]
    # Shapes of unlike ranks would be broadcast from one request to another.
    if name not in _IN_FILES or len({len(shape) for shape in shapes}) > 1:
        return False
    rank = len(shapes[0]) if shapes else 1
    if name in _FILE_AXES:
        axes = tensors[_FILE_AXES[name]].data
        of = max(rank + (name == "EXPAND_DIMS"), 1)
        return axes is not None and not np.any(axes % of == 0)
    if name == "CONCATENATION":
        return bool(operator.options("ConcatenationOptions").Axis() % max(rank, 1))
    if name == "TRANSPOSE" or name in _FILE_PADS:
        first = tensors[1].data
        return first is not None and not np.any(first[:1])
    if name == "RESHAPE":  # else lengths of other axes grow, not that of the first
        shape = tensors[1].data if len(tensors) > 1 else None
        return shape is not None and shape.ravel()[:1].tolist() == [-1]
    return rank > 1 or name not in _LAST_AXIS


class _Stacking:
    """The operands of a model as they are when ``size`` requests are stacked."""

    def __init__(self, program: Program, size: int) -> None:
        self._size = size
        self._source = program.source
        self._resolved = program.model
        self._operands = list(program.source.main.operands)
        self._values = bytearray(program.source.operand_values)
        self._stacked: set[int] = set()
        self._reshaped: set[int] = set()
        plan = program.fixed_plan
        assert plan is not None
        self._shapes = plan.shapes

    def model(self, *, is_region: bool) -> Model:
        main = self._source.main
        for index in main.input_indexes:
            self._stack(index)
        for operation in self._resolved.main.operations:
            given = [index for index in operation.inputs if index in self._stacked]
            if not given:
                continue
            if not is_region:
                self._check(operation)
            for index in operation.outputs:
                self._stack(index)
        if not self._stacked.issuperset(main.output_indexes):
            raise GeneralFailureError("an output does not depend on the request")
        whole = replace(main, operands=tuple(self._operands))
        return replace(self._source, main=whole, operand_values=bytes(self._values))

    def _stack(self, index: int) -> None:
        operand, shape = self._operands[index], self._shapes[index]
        if not shape:
            raise GeneralFailureError("a tensor has no axes")
        dimensions = (shape[0] * self._size, *shape[1:])
        self._operands[index] = replace(operand, dimensions=dimensions)
        self._stacked.add(index)

    def _check(self, operation: Operation) -> None:
        """Check that an operation keeps to members, and have it reshape all of them."""
        name, inputs = operation_type(operation.type).name, operation.inputs
        if name in _BY_ELEMENT:
            return
        among = {*inputs[: _AMONG.get(name, 1)]}
        is_apt = self._stacked.intersection(inputs) == among
        if name in _AXES:
            is_apt = is_apt and 0 not in self._axes(name, operation)
        elif name in _PADS:
            is_apt = is_apt and not any(self._numbers(inputs[1])[:2])
        elif name == "TRANSPOSE":
            is_apt = is_apt and len(inputs) > 1 and not self._numbers(inputs[1])[0]
        elif name == "RESHAPE":
            self._reshape(inputs[1])
        elif name not in _BY_MEMBER:
            is_apt = False
        if not is_apt:
            raise GeneralFailureError(f"{name} may depend on the batch")

    def _axes(self, name: str, operation: Operation) -> list[int]:
        rank, place = self._rank(operation.inputs[0]), _AXES[name]
        if place >= len(operation.inputs):
            return [0 if name == "SQUEEZE" else rank - 1]
        # An axis that is added counts as well.
        rank += name == "EXPAND_DIMS"
        return [axis % rank for axis in self._numbers(operation.inputs[place])]

    def _rank(self, index: int) -> int:
        """Return the axes of a tensor, which the plan has where the model has none."""
        shape = self._shapes[index]
        return 1 if shape is None else len(shape)

    def _numbers(self, index: int) -> list[int]:
        """Return the value of a constant operand."""
        operand = self._resolved.main.operands[index]
        if operand.lifetime not in CONSTANT_LIFETIMES:
            raise GeneralFailureError("an axis or a shape is not constant")
        return [int(each) for each in constant_array(self._resolved, operand).flat]

    def _reshape(self, index: int) -> None:
        """Have a constant shape hold all members, which lie one by one."""
        shape = self._numbers(index)
        if index in self._reshaped:
            return
        self._reshaped.add(index)
        if shape[0] > 0:
            shape[0] *= self._size
        self._values += bytes(-len(self._values) % 4)
        data = np.array(shape, np.int32).tobytes()
        place = DataLocation(offset=len(self._values), length=len(data))
        self._values += data
        self._operands[index] = replace(
            self._operands[index],
            lifetime=OperandLifeTime.CONSTANT_COPY,
            location=place,
        )
