"""A model together with the names of its inputs and outputs."""

from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import Dimensions, Model, Operand


class TensorInfo(msgspec.Struct, frozen=True):
    """What a caller has to know of an input or output.

    ``dimensions`` has 0 for an axis that each request chooses. Real value =
    ``scale * (stored - zero_point)`` where ``scale`` is not 0.
    """

    name: str
    type: int
    dimensions: Dimensions
    scale: float = 0.0
    zero_point: int = 0

    @classmethod
    def of(cls, name: str, operand: Operand) -> Self:
        """Describe ``operand`` under ``name``."""
        return cls(
            name,
            operand.type,
            operand.dimensions,
            operand.scale,
            operand.zero_point,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the stored elements.

        :raises KeyError: if the type is an extension's, which has none.
        """
        return DTYPES[self.type]


class NamedModel(msgspec.Struct, frozen=True):
    """A HAL model whose inputs and outputs have names, in the model's order."""

    model: Model
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @classmethod
    def of(
        cls, model: Model, input_names: Sequence[str], output_names: Sequence[str]
    ) -> Self:
        """Name the inputs and outputs of ``model``'s main subgraph.

        :raises InvalidArgumentError: if a name is missing, surplus or used twice.
        """
        main = model.main
        return cls(
            model,
            _describe("input", main.operands, main.input_indexes, input_names),
            _describe("output", main.operands, main.output_indexes, output_names),
        )


def _describe(
    kind: str,
    operands: Sequence[Operand],
    indexes: Sequence[int],
    names: Sequence[str],
) -> tuple[TensorInfo, ...]:
    if len(names) != len(indexes):
        raise InvalidArgumentError(
            f"{len(names)} {kind} names for a model with {len(indexes)} {kind}s"
        )
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"{kind} names are not unique: {list(names)}")
    if not all(0 <= index < len(operands) for index in indexes):
        raise InvalidArgumentError(f"an {kind} index is not an operand of the model")
    return tuple(
        TensorInfo.of(name, operands[index])
        for name, index in zip(names, indexes, strict=True)
    )
