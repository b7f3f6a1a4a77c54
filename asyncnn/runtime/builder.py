"""Builds models operand by operand.

>>> builder = ModelBuilder()
>>> x = builder.input("x", OperandType.TENSOR_FLOAT32, (1, 4))
>>> weights = builder.constant(np.eye(4, dtype=np.float32))
>>> bias = builder.constant(np.zeros(4, np.float32))
>>> y = builder.operation(
...     OperationType.FULLY_CONNECTED,
...     [x, weights, bias, builder.scalar(FusedActivationFunc.NONE)],
...     Operand(OperandType.TENSOR_FLOAT32, (1, 4)),
... )
>>> builder.output(y, "y")
>>> model = builder.build()
"""

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Model
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel


class ModelBuilder(GraphBuilder):
    """Collects operands and operations; `build` returns the model.

    Every method that adds an operand returns its index. Operations are added in
    execution order. Types may be of an `Extension`, which devices must have.
    The model is not validated here: preparing it does that.
    ``relaxed`` allows float16 precision for float32 arithmetic.
    """

    def __init__(self, *, relaxed: bool = False) -> None:
        super().__init__()
        self._relaxed = relaxed
        self._states: dict[int, tuple[str, Array | None]] = {}
        self._next_states: dict[int, int] = {}

    def state(
        self,
        name: str,
        type_: int,
        dimensions: Dimensions,
        *,
        scale: float = 0.0,
        zero_point: int = 0,
        initial: Array | None = None,
    ) -> int:
        """Add a tensor that keeps its value from one step to the next.

        The operand holds the value before the step; `next_state` says which operand
        holds that after it.

        :param type_: type of its elements, an `OperandType` or one of an extension.
        :param dimensions: lengths of its axes, none of which is open.
        :param initial: value before the first step, of this dtype and shape; None for
            real zeros, which are elements of ``zero_point``.

        What does not fit together is refused by `build`.
        """
        index = self.input(name, type_, dimensions, scale=scale, zero_point=zero_point)
        self._states[index] = (self._input_names.pop(index), initial)
        return index

    def next_state(self, state: int, index: int) -> None:
        """Let ``state`` hold, after a step, the value of operand ``index``.

        :raises InvalidArgumentError: if ``state`` is none or has a next value already,
            or the operand is an output already, or an input or constant.
        """
        if state not in self._states or state in self._next_states:
            raise InvalidArgumentError(
                f"operand {state} is not a state that lacks its next value"
            )
        self._make_output(index, self._states[state][0])
        self._next_states[state] = index

    def build(self) -> NamedModel:
        """Return the model as it stands.

        :raises InvalidArgumentError: if a name is used twice, or a state has an open
            axis, an initial value that does not fit it, or no next value of its type,
            shape and quantisation.
        """
        for index, (name, _) in self._states.items():
            if index not in self._next_states:
                raise InvalidArgumentError(f"state {name!r} has no next value")
        main = self._finished(
            self._states, (self._next_states[index] for index in self._states)
        )
        model = Model(
            main,
            tuple(body._finished() for body in self._bodies),
            operand_values=self._constants.values(),
            pools=self._constants.pools(),
            relax_computation_float32_to_float16=self._relaxed,
        )
        return NamedModel.of(
            model,
            tuple(self._input_names.values()),
            tuple(self._output_names.values()),
            tuple(self._states.values()),
        )
