"""How operands of the HAL lie in tensors of TFLite, and what converts between them.

Unsigned codes are kept as signed ones, ``x ^ 0x80`` with a zero point 128 lower, for
XNNPACK computes those best; float16 is kept as float32. An operator that has to see
the stored values, and the border of the graph, gets the HAL's own form. Each form is
made when it is first wanted, and exact except float16's, which is rounded.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from asyncnn.devices.litert.tflite_graph import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    Convert,
    WrittenGraph,
    WrittenTensor,
    options,
)
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array, BoundOperand
from asyncnn.hal.types import OperandType


class NotWrittenError(GeneralFailureError):
    """An operation, or a way of using it, is not written in TFLite."""


STORED = {
    OperandType.TENSOR_FLOAT32: FLOAT32,
    OperandType.TENSOR_FLOAT16: FLOAT16,
    OperandType.TENSOR_INT32: INT32,
    OperandType.TENSOR_BOOL8: BOOL,
    OperandType.TENSOR_QUANT8_ASYMM: UINT8,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: INT8,
    OperandType.TENSOR_QUANT8_SYMM: INT8,
}
"""TFLite types in which the HAL's tensors are stored at the border."""

_COMPUTED = {FLOAT16: FLOAT32, UINT8: INT8}
"""Types that are computed as another one."""

_SIGN_BIT = 0x80
_SHIFT = 128


def computed_type(operand: BoundOperand) -> str:
    """Return the TFLite type in which ``operand`` is computed.

    :raises NotWrittenError: if it has none.
    """
    stored = stored_type(operand)
    return _COMPUTED.get(stored, stored)


def stored_type(operand: BoundOperand) -> str:
    """Return the TFLite type in which the HAL stores ``operand``.

    :raises NotWrittenError: if it has none.
    """
    try:
        return STORED[operand.type]  # type: ignore[index]  # extensions have none
    except KeyError:
        raise NotWrittenError(f"{operand.type.name} has no form in TFLite") from None


def quantization_in(operand: BoundOperand, type_: str) -> tuple[float, int]:
    """Return scale and zero point of ``operand`` where it is stored as ``type_``."""
    if type_ not in (INT8, UINT8):
        return 0.0, 0
    stored = stored_type(operand)
    moved = 0 if stored == type_ else -_SHIFT if type_ == INT8 else _SHIFT
    return float(np.float32(operand.scale)), operand.zero_point + moved


def flip_sign(codes: Array) -> Array:
    """Return unsigned codes as signed ones, or the reverse."""
    other = np.int8 if codes.dtype == np.uint8 else np.uint8
    flipped: Array = (codes.view(np.uint8) ^ np.uint8(_SIGN_BIT)).view(other)
    return flipped


class OperandTensors:
    """The tensors of operands by index, one for each form that was wanted so far."""

    def __init__(self, graph: WrittenGraph) -> None:
        self._graph = graph
        self._forms: dict[int, dict[str, WrittenTensor]] = {}
        self._outputs: dict[int, WrittenTensor] = {}

    def add_input(self, index: int, operand: BoundOperand) -> WrittenTensor:
        """Add an operand that the graph is given; return its tensor."""
        tensor = self.create(operand, stored_type(operand))
        self._forms[index] = {tensor.type: tensor}
        return tensor

    def create(self, operand: BoundOperand, type_: str) -> WrittenTensor:
        """Add a tensor for ``operand`` that belongs to no index yet."""
        shape = operand.require_shape()
        return self._graph.tensor(type_, shape, *quantization_in(operand, type_))

    def put(self, index: int, tensor: WrittenTensor) -> None:
        """Say that an operator computes operand ``index`` as ``tensor``."""
        self._forms[index] = {tensor.type: tensor}

    def take(self, index: int, operand: BoundOperand, type_: str) -> WrittenTensor:
        """Return operand ``index`` as ``type_``; constants need no index."""
        if operand.value is not None:
            return self._constant(operand, operand.value, type_)
        forms = self._forms[index]
        if type_ not in forms:
            (source, *_) = forms.values()
            forms[type_] = self._converted(source, operand, type_)
        return forms[type_]

    def forms(self, index: int) -> frozenset[str]:
        """Return the types in which an operand that is not constant is there."""
        return frozenset(self._forms[index])

    def only_form(self, index: int) -> WrittenTensor | None:
        """Return the tensor of an operand that has just one."""
        forms = self._forms[index]
        if len(forms) != 1:
            return None
        (tensor,) = forms.values()
        return tensor

    def known(self) -> Iterable[int]:
        """Return the operands that are inputs or have been computed."""
        return tuple(self._forms)

    def pass_barrier(self, indexes: Iterable[int]) -> None:
        """Copy these operands by an operator that XNNPACK does not take."""
        for index in indexes:
            (source, *_) = self._forms[index].values()
            copy = self._graph.like(source)
            self._graph.operator("BITCAST", [source], [copy])
            self._forms[index] = {copy.type: copy}

    def keep_outputs(
        self,
        indexes: Sequence[int],
        wanted: Sequence[int],
        operands: Sequence[BoundOperand],
    ) -> None:
        """Store what of ``indexes`` is an output of the graph as the HAL does."""
        for index, operand in zip(indexes, operands, strict=True):
            if index in wanted:
                self._outputs[index] = self.take(index, operand, stored_type(operand))

    def output(self, index: int) -> WrittenTensor:
        """Return the tensor of an output of the graph."""
        return self._outputs[index]

    def _constant(
        self, operand: BoundOperand, value: Array, type_: str
    ) -> WrittenTensor:
        stored = stored_type(operand)
        convert: Convert | None = None
        if {stored, type_} == {INT8, UINT8}:
            convert = flip_sign
        quantization = quantization_in(operand, type_)
        return self._graph.constant(type_, value, quantization, convert)

    def _converted(
        self, source: WrittenTensor, operand: BoundOperand, type_: str
    ) -> WrittenTensor:
        """Add what brings ``source`` to another form.

        Codes pass floats, exactly: XNNPACK has both operators, but not the one between
        signed and unsigned codes.
        """
        if {source.type, type_} != {INT8, UINT8}:
            target = self.create(operand, type_)
            self._graph.operator("CAST", [source], [target], options("CastOptions"))
            return target
        real = self._graph.tensor(FLOAT32, source.shape)
        self._graph.operator("DEQUANTIZE", [source], [real])
        target = self.create(operand, type_)
        self._graph.operator("QUANTIZE", [real], [target])
        return target
