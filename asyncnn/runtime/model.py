"""A model together with the names of its inputs and outputs."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions import (
    Extension,
    ExtensionNames,
    Extensions,
    Vocabulary,
    joined,
    names_in,
    numbered,
)
from asyncnn.hal.operands import dtype_of
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

        :raises InvalidArgumentError: if the type is the bare number of an extension's;
            see `NamedModel.knowing`.
        """
        return dtype_of(self.type)


class NamedModel(msgspec.Struct, frozen=True):
    """A HAL model whose inputs and outputs have names, in the model's order.

    ``extension_names`` are what the extensions that it uses call their types.
    """

    model: Model
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    extension_names: tuple[ExtensionNames, ...] = ()

    @classmethod
    def of(
        cls, model: Model, input_names: Sequence[str], output_names: Sequence[str]
    ) -> Self:
        """Name the inputs and outputs of ``model``'s main subgraph.

        It may have types of extensions where the HAL has numbers for them, which the
        `model` then has.

        :raises InvalidArgumentError: if a name is missing, surplus or used twice.
        """
        main = model.main
        return cls(
            numbered(model),
            _describe("input", main.operands, main.input_indexes, input_names),
            _describe("output", main.operands, main.output_indexes, output_names),
            names_in(model),
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """Words for the types of the model."""
        return Vocabulary(self.model, self.extension_names)

    def knowing(self, extensions: Iterable[Extension]) -> Self:
        """Return the same model with inputs and outputs of known dtypes.

        Models that were loaded have but numbers for the types of extensions.

        :raises InvalidArgumentError: if these call a type otherwise than those that the
            model was made with.
        """
        known = self.of(
            Extensions(extensions).resolved(self.model),
            [info.name for info in self.inputs],
            [info.name for info in self.outputs],
        )
        names = joined(self.extension_names, known.extension_names)
        return replace(known, extension_names=names)


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


def position_of(kind: str, infos: Sequence[TensorInfo], which: str | int) -> int:
    """Return the position of the input or output that a name or a number means.

    :raises InvalidArgumentError: if there is none.
    """
    names = [info.name for info in infos]
    if which in names:
        return names.index(which)
    if isinstance(which, int) and 0 <= which < len(infos):
        return which
    raise InvalidArgumentError(
        f"there is no {kind} {which!r}", hint=f"known: {', '.join(names)}"
    )
