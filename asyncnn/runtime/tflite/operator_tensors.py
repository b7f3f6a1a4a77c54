"""What a TFLite file says about one operator."""

from typing import Any

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.operands import describe
from asyncnn.runtime.tflite.schema import Graph, Operator, Tensor


class OperatorTensors:
    """An operator with the tensors and options that it refers to."""

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.operator = operator
        self._graph = graph

    def has(self, index: int) -> bool:
        """Tell whether input ``index`` is there and not left out."""
        inputs = self.operator.inputs
        return index < len(inputs) and inputs[index] >= 0

    def tensor(self, index: int) -> Tensor:
        """Return the tensor of input ``index``.

        :raises InvalidArgumentError: if the input is left out.
        """
        if not self.has(index):
            raise InvalidArgumentError(f"input {index} is missing")
        return self._graph.tensors[self.operator.inputs[index]]

    def intermediate(self, index: int) -> Tensor:
        """Return the tensor that describes intermediate result ``index``.

        :raises InvalidArgumentError: if there is none.
        """
        intermediates = self.operator.intermediates
        if index >= len(intermediates) or intermediates[index] < 0:
            raise InvalidArgumentError(f"intermediate tensor {index} is missing")
        return self._graph.tensors[intermediates[index]]

    def result(self, index: int = 0) -> Tensor:
        """Return the tensor of output ``index``.

        :raises InvalidArgumentError: if there is no such output.
        """
        outputs = self.operator.outputs
        if index >= len(outputs) or outputs[index] < 0:
            raise InvalidArgumentError(f"output {index} is missing")
        return self._graph.tensors[outputs[index]]

    def target(self, index: int = 0) -> Operand:
        """Return what the file promises output ``index`` to be."""
        return describe(self.result(index))

    @property
    def type(self) -> OperandType:
        """Operand type of input 0."""
        return OperandType(describe(self.tensor(0)).type)

    def options(self, kind: str) -> Any:
        """Return the options, a table of class ``kind`` of the schema."""
        return self.operator.options(kind)

    def values(self, index: int) -> Array:
        """Return the data of input ``index``, which has to be a constant.

        :raises UnsupportedOperatorError: if it is computed.
        """
        tensor = self.tensor(index)
        if tensor.data is None:
            raise UnsupportedOperatorError(f"{tensor.label} is not a constant")
        return tensor.data

    def value(self, index: int) -> Any:
        """Return the only element of constant input ``index``.

        :raises InvalidArgumentError: if it has several.
        """
        return self.values(index).reshape(()).item()

    def axis(self, axis: int, rank: int) -> int:
        """Return ``axis`` counted from the front.

        :raises InvalidArgumentError: if it is outside of ``rank``.
        """
        if not -rank <= axis < rank:
            raise InvalidArgumentError(f"axis {axis} is outside of rank {rank}")
        return axis % rank

    def rank(self, index: int = 0) -> int:
        """Return the rank of input ``index`` as an operand: at least 1."""
        return max(1, len(self.tensor(index).shape))
