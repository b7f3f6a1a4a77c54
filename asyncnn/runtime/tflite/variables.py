"""Variables of a file as states of the HAL model: read, assigned, and kept.

Within a graph under construction a variable is the operand of its latest value. What a
run assigns and the next one reads becomes an input and an output of the model; what
nothing assigns is a constant.
"""

from collections.abc import Iterable, Set

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.building import own
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.tflite.subgraphs import Variable
from asyncnn.runtime.tflite.tensors import (
    add_constant,
    constant_like,
    describe,
    elements,
    filled,
    same_values,
)
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Tensor


class FirstValues:
    """What the variables of a file hold before the first run.

    Variable tensors hold zeros. Others get their values by `put`, from what CALL_ONCE
    runs.
    """

    def __init__(self, graphs: Iterable[Graph], allowance: Allowance) -> None:
        self.allowance = allowance
        self._tensors = {
            Variable.of(graph, tensor): tensor
            for graph in graphs
            for tensor in graph.tensors
            if tensor.is_variable
        }

    def put(self, variable: Variable, tensor: Tensor) -> None:
        """Let ``variable`` hold the data of a constant ``tensor``."""
        self._tensors[variable] = tensor

    def tensor(self, variable: Variable) -> Tensor:
        """Return what describes ``variable``; without data it holds zeros.

        :raises InvalidArgumentError: if it has no value.
        """
        try:
            return self._tensors[variable]
        except KeyError:
            raise InvalidArgumentError(
                f"variable {variable.name!r} is read before it has a value"
            ) from None

    def array(self, variable: Variable) -> Array | None:
        """Return the elements of ``variable``; None stands for real zeros."""
        tensor = self.tensor(variable)
        operand = describe(tensor)
        if tensor.data is not None:
            return elements(tensor).reshape(operand.dimensions)
        self.allowance.take_elements(operand.dimensions)
        if operand.type == OperandType.TENSOR_QUANT8_ASYMM and operand.zero_point:
            # LiteRT fills signed bytes with the zero point, but all others with 0.
            return np.zeros(operand.dimensions, DTYPES[operand.type])
        return None


class Variables:
    """The current values of variables in one graph under construction.

    ``assigned`` are those that a run of the model assigns somewhere. ``values`` are
    operands of the graph, which a body is given for all of those that it uses.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        first: FirstValues,
        assigned: Set[Variable],
        values: Iterable[tuple[Variable, int]] = (),
    ) -> None:
        self.first = first
        self.assigned = assigned
        self._builder = builder
        self._values = dict(values)

    def holds(self, variable: Variable) -> bool:
        """Return whether ``variable`` has been read or assigned in this graph."""
        return variable in self._values

    def read(self, variable: Variable) -> int:
        """Return the operand of what ``variable`` holds now.

        :raises InvalidArgumentError: if it has no value.
        """
        if variable not in self._values:
            self._values[variable] = self._first(variable)
        return self._values[variable]

    def assign(self, variable: Variable, operand: int) -> None:
        """Let ``variable`` hold the value of ``operand``.

        :raises UnsupportedOperatorError: if what it holds is of another type, shape or
            quantisation.
        """
        if variable in self._values:
            before, after = map(
                self._builder.operand, (self._values[variable], operand)
            )
            if before.dimensions != after.dimensions or not same_values(before, after):
                raise UnsupportedOperatorError(
                    f"variable {variable.name!r} holds {_text(before)} but is "
                    f"assigned {_text(after)}"
                )
        self.replace(variable, operand)

    def replace(self, variable: Variable, operand: int) -> None:
        """Let ``variable`` hold the value of ``operand``, whatever its form."""
        self._values[variable] = operand

    def _first(self, variable: Variable) -> int:
        assert variable not in self.assigned
        tensor = self.first.tensor(variable)
        operand = describe(tensor)
        if tensor.data is not None:
            return add_constant(self._builder, tensor, operand)
        zeros = self.first.array(variable)
        if zeros is None:
            return filled(self._builder, operand, operand.zero_point)
        return constant_like(self._builder, zeros, operand)


class States(Variables):
    """The variables of the main graph: what is assigned is a state of the model.

    ``taken`` are names that no state may have.
    """

    def __init__(
        self,
        builder: ModelBuilder,
        first: FirstValues,
        assigned: Set[Variable],
        taken: Iterable[str],
    ) -> None:
        super().__init__(builder, first, assigned)
        self._model = builder
        self._states: dict[Variable, int] = {}
        self._taken = set(taken)

    def _first(self, variable: Variable) -> int:
        if variable not in self.assigned:
            return super()._first(variable)
        operand = describe(self.first.tensor(variable))
        if operand.extra_params is not None:
            raise UnsupportedOperatorError(
                f"variable {variable.name!r} is quantised per channel"
            )
        self._states[variable] = self._model.state(
            self._unique(variable.name or "state"),
            operand.type,
            operand.dimensions,
            scale=operand.scale,
            zero_point=operand.zero_point,
            initial=self.first.array(variable),
        )
        return self._states[variable]

    def finish(self) -> None:
        """Make what each state holds now the value that the next run begins with."""
        for variable, state in self._states.items():
            self._model.next_state(state, own(self._model, self.read(variable)))

    def _unique(self, name: str) -> str:
        unique, count = name, 1
        while unique in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._taken.add(unique)
        return unique


def _text(operand: Operand) -> str:
    text = f"{OperandType(operand.type).name} {list(operand.dimensions)}"
    if operand.scale:
        text += f" of scale {operand.scale:g} and zero point {operand.zero_point}"
    return text
