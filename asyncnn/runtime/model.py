"""A model with the names of its inputs and outputs.

`read_model_file` and `located` are what readers of model files share: the file copied,
and errors that name it.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.extensions import (
    Extension,
    ExtensionNames,
    Extensions,
    Vocabulary,
    joined,
    names_in,
    numbered,
)
from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    WrongTypeError,
    require_known,
)
from asyncnn.hal.operands import AnyOperandType, dtype_of, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Memory, Model, Operand, OperandType
from asyncnn.hal.validate.rules import operand_type_name
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.memory.shared import FileReader
from asyncnn.runtime.axes import OpenShapes
from asyncnn.runtime.model_description import ModelMetadata, Signature


class ModelFileMissingError(GeneralFailureError, FileNotFoundError):
    """There is no model file at a path."""


def open_model_file(path: str | os.PathLike[str]) -> FileReader:
    """Open the file at ``path``; an interrupt ends the waiting.

    :raises InvalidArgumentError: if it is empty or not a regular file.
    :raises ModelFileMissingError: if there is none.
    :raises GeneralFailureError: if it cannot be opened.
    """
    try:
        opening = in_one(FileReader, path)
        file = call_abandonable(f"opening {os.fspath(path)}", opening)
    except GeneralFailureError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ModelFileMissingError(error.message) from error.__cause__
        raise
    if not len(file):
        raise InvalidArgumentError(f"{os.fspath(path)}: the file is empty")
    return file


def read_model_file(path: str | os.PathLike[str]) -> Memory:
    """Copy the whole file at ``path``; an interrupt ends the waiting.

    :raises AsyncnnError: as `open_model_file`.
    :raises GeneralFailureError: if it cannot be read, or is changed meanwhile.
    """
    copying = in_one(lambda: open_model_file(path).copy())
    return call_abandonable(f"reading {os.fspath(path)}", copying)


InputShapes: TypeAlias = Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None
"""Shapes of inputs by name, or of all in order; None leaves them to the file."""


def shapes_by_name(names: Sequence[str], shapes: InputShapes) -> dict[str, Dimensions]:
    """Return the shapes that are given for inputs of these names.

    :raises InvalidArgumentError: if there is no such input, one is no shape, or there
        are not as many as inputs.
    """
    inputs = ", ".join(names)
    if shapes is None:
        return {}
    given: object = shapes
    if isinstance(given, str | bytes):
        hint = f"give {{name: (...)}}; inputs: {inputs}"
        raise WrongTypeError(f"{given!r} is text, not shapes", hint=hint)
    if not isinstance(shapes, Mapping):
        if shapes and all(isinstance(shape, int) for shape in shapes):
            raise InvalidArgumentError(
                f"{shapes} is one shape, not the shapes of all inputs",
                hint=f"give [(...), ...] or {{name: (...)}}; inputs: {inputs}",
            )
        if len(shapes) != len(names):
            raise InvalidArgumentError(
                f"{len(shapes)} shapes are given for {len(names)} inputs",
                hint=f"give all, or some by name; inputs: {inputs}",
            )
        shapes = dict(zip(names, shapes, strict=True))
    found: dict[str, Dimensions] = {}
    for name, shape in shapes.items():
        require_known("input", name, names)
        try:
            found[name] = tuple(operator.index(length) for length in shape)
        except TypeError:
            raise InvalidArgumentError(
                f"{shape!r} is no shape of input {name!r}", hint="give a tuple of ints"
            ) from None
    return found


@contextmanager
def located(where: str | os.PathLike[str]) -> Iterator[None]:
    """Put ``where`` in front of the message of every asyncnn error.

    What a file says of itself may be part of it: all becomes one printable line.
    """
    try:
        yield
    except AsyncnnError as error:
        raise error.at(os.fspath(where)) from error


@contextmanager
def hinting(hint: Callable[[], str]) -> Iterator[None]:
    """Add a hint, unless it is empty, to errors of models that have none."""
    try:
        yield
    except (InvalidArgumentError, GeneralFailureError) as error:
        if error.hint or type(error).__init__ is not AsyncnnError.__init__:
            raise
        found = hint()
        if not found:
            raise
        raise type(error)(error.message, hint=found) from error


_HAL_TYPES = {int(type_): type_ for type_ in OperandType}


def distinct(names: Iterable[str], numbers: Iterable[int]) -> list[str]:
    """Return names, one that was there already with its number behind it."""
    found: dict[str, None] = {}
    for name, number in zip(names, numbers, strict=False):
        while name in found:
            name += f"_{number}"
        found[name] = None
    return list(found)


class TensorInfo(msgspec.Struct, frozen=True):
    """What a caller has to know of an input or output.

    ``dimensions`` is the shape as the HAL has it, with 0 for an axis that each request
    chooses; `shape` has None there. Real value = ``scale * (stored - zero_point)``
    where ``scale`` is not 0. ``type`` is an `OperandType`, whatever kind of file it is
    from, or what an extension has; it is a bare number if nothing is known of that.

    ``axes`` are the names of axes that the file leaves open, ``?`` for one without a
    name, empty for inputs of fixed lengths; it is empty if all are that.
    """

    name: str
    type: AnyOperandType | int
    dimensions: Dimensions
    scale: float = 0.0
    zero_point: int = 0
    axes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, operand: Operand) -> Self:
        """Describe ``operand`` under ``name``."""
        return cls(
            name,
            _HAL_TYPES.get(operand.type, operand.type),
            operand.dimensions,
            operand.scale,
            operand.zero_point,
        )

    def __str__(self) -> str:
        axes = ", ".join(self.lengths)
        return f"{self.name}: {operand_type_name(self.type)} [{axes}]"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape that arrays have; None for an axis that each request chooses.

        It is empty for a scalar, and if even the number of axes is left open.
        """
        return tuple(length or None for length in self.dimensions)

    def is_like(self, other: "TensorInfo") -> bool:
        """Whether both have one type, shape and quantisation, whatever their names."""
        return replace(self, name="", axes=()) == replace(other, name="", axes=())

    def opened(self, lengths: Sequence[int | str]) -> Self:
        """Return the same, with the names that axes have among ``lengths``."""
        axes = tuple(each if isinstance(each, str) else "" for each in lengths)
        if not any(axes) or len(axes) != len(self.dimensions):
            return self
        return replace(self, axes=axes)

    @property
    def lengths(self) -> tuple[str, ...]:
        """The length of each axis, or the name of one that each request chooses."""
        names = self.axes or ("?",) * len(self.dimensions)
        pairs = zip(self.dimensions, names, strict=True)
        return tuple(str(length) if length else name for length, name in pairs)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the stored elements.

        :raises InvalidArgumentError: if the type is the bare number of an extension's;
            see `NamedModel.knowing`.
        """
        return dtype_of(self.type)


def has_fixed_shape(info: TensorInfo) -> bool:
    """Return whether the model fixes the shape."""
    if is_scalar(info.type):
        return True
    return bool(info.dimensions) and 0 not in info.dimensions


def bytes_of(info: TensorInfo) -> int:
    """Return the bytes of an array whose shape the model fixes."""
    return math.prod(info.dimensions) * info.dtype.itemsize


class StateTensor(msgspec.Struct, frozen=True, eq=False):
    """A tensor that a model keeps from one step to the next.

    ``initial`` is what it holds before the first step, of the dtype and shape in
    ``info``; None stands for real zeros, which are elements of the zero point.
    """

    info: TensorInfo
    initial: Array | None = None

    def first_value(self) -> Array:
        """Return a new array of what the state holds before the first step.

        It has a length of 1 on axes that the model leaves open.
        """
        if self.initial is not None:
            return self.initial.copy()
        shape = tuple(length or 1 for length in self.info.dimensions)
        return np.full(shape, self.info.zero_point, self.info.dtype)


class NamedModel(msgspec.Struct, frozen=True):
    """A HAL model whose inputs and outputs have names, in the model's order.

    ``extension_names`` are what the extensions that it uses call their types.

    The HAL knows no state: what a model keeps from one step to the next is an input and
    an output of its main subgraph. State K is the input after ``inputs`` and the output
    after ``outputs`` at position K; both have the same type, shape and quantisation.
    ``pairs`` are state, too, that runs are given and return: names of ``inputs``, each
    with the name among ``outputs`` that it is in the next step of a session.

    ``signatures`` are the ones in its file that name these inputs and outputs;
    ``metadata`` is what the file's author says of them, if anything. ``open_shapes``
    are the shapes of inputs whose lengths the file leaves to the application and that
    were not given: an example's, mostly 1. ``operand_names`` are what
    the file calls the operands of the main subgraph, by index, empty where it has no
    such tensor; there may be fewer than operands.
    """

    model: Model
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    extension_names: tuple[ExtensionNames, ...] = ()
    states: tuple[StateTensor, ...] = ()
    signatures: tuple[Signature, ...] = ()
    metadata: ModelMetadata | None = None
    open_shapes: OpenShapes = {}
    operand_names: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        model: Model,
        input_names: Sequence[str],
        output_names: Sequence[str],
        states: Sequence[tuple[str, Array | None]] = (),
    ) -> Self:
        """Name the inputs and outputs of ``model``'s main subgraph.

        It may have types of extensions where the HAL has numbers for them, which the
        `model` then has.

        :param states: name and initial value of what its last inputs and outputs keep.
        :raises InvalidArgumentError: if a name is missing, surplus or used twice, or a
            state's output is not what its input takes, or its initial value is not.
        """
        main = model.main
        kept = [name for name, _ in states]
        inputs = _describe(
            "input", main.operands, main.input_indexes, [*input_names, *kept]
        )
        outputs = _describe(
            "output", main.operands, main.output_indexes, [*output_names, *kept]
        )
        return cls(
            numbered(model),
            inputs[: len(input_names)],
            outputs[: len(output_names)],
            names_in(model),
            tuple(
                _state(before, after, initial)
                for before, after, (_, initial) in zip(
                    inputs[len(input_names) :],
                    outputs[len(output_names) :],
                    states,
                    strict=True,
                )
            ),
        )

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        return f"<NamedModel {inputs} -> {outputs}>"

    @property
    def vocabulary(self) -> Vocabulary:
        """Words for the types of the model."""
        return Vocabulary(self.model, self.extension_names)

    @property
    def open_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that have ``open_shapes``."""
        return tuple(self.open_shapes)

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        """All that a session keeps: the inputs of ``pairs``, and ``states``."""
        inputs = {info.name: info for info in self.inputs}
        return (*(StateTensor(inputs[one]) for one, _ in self.pairs), *self.states)

    def with_open_states(self) -> Self:
        """Return the same model, whose states are inputs and outputs after the others.

        Either has the state's name, and they are among the pairs.
        """
        infos = tuple(state.info for state in self.states)
        return msgspec.structs.replace(
            self,
            inputs=(*self.inputs, *infos),
            outputs=(*self.outputs, *infos),
            states=(),
            signatures=(),
            pairs=(*self.pairs, *((info.name, info.name) for info in infos)),
        )

    def with_pairs(self, pairs: Mapping[str, str]) -> Self:
        """Return the same model with other ``pairs``: inputs, each with its output.

        :raises WrongTypeError: if it is no mapping.
        :raises InvalidArgumentError: if there is no such input or output, one is given
            twice, or an output is not what its input takes.
        """
        given: object = pairs
        if not isinstance(given, Mapping):
            words = f"states are named by a mapping, not a {type(given).__name__}"
            raise WrongTypeError(words, hint="give {input: output}: states={'h': 'hn'}")
        found = []
        for before, after in pairs.items():
            taken = self.inputs[position_of("input", self.inputs, before)]
            given = self.outputs[position_of("output", self.outputs, after)]
            if not taken.is_like(given) or not taken.dimensions:
                raise InvalidArgumentError(
                    f"state {before} is {taken} before a step and {given} after it"
                )
            found.append((taken.name, given.name))
        if min(len({pair[side] for pair in found}) for side in (0, 1)) < len(found):
            raise InvalidArgumentError(f"two states are one input or output: {found}")
        return replace(self, pairs=tuple(found))

    def knowing(self, extensions: Iterable[Extension]) -> Self:
        """Return the same model with inputs and outputs of known dtypes.

        Models that were loaded have but numbers for the types of extensions.

        :raises InvalidArgumentError: if these call a type otherwise than those that the
            model was made with.
        """
        given = list(extensions)
        names = {extension.name for extension in given}
        given += [each for each in DECLARED.values() if each.name not in names]
        known = self.of(
            Extensions(given).resolved(self.model),
            [info.name for info in self.inputs],
            [info.name for info in self.outputs],
            [(state.info.name, state.initial) for state in self.states],
        )
        return replace(
            self,
            model=known.model,
            inputs=_like(known.inputs, self.inputs),
            outputs=_like(known.outputs, self.outputs),
            extension_names=joined(self.extension_names, known.extension_names),
            states=known.states,
        )


def _like(
    infos: Sequence[TensorInfo], named: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    pairs = zip(infos, named, strict=True)
    return tuple(replace(info, axes=other.axes) for info, other in pairs)


def _describe(
    kind: str, operands: Sequence[Operand], indexes: Sequence[int], names: Sequence[str]
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


def _state(before: TensorInfo, after: TensorInfo, initial: Array | None) -> StateTensor:
    if before != after:
        raise InvalidArgumentError(
            f"state {before.name} is {before} before a step and {after} after it"
        )
    if not all(before.dimensions):
        raise InvalidArgumentError(f"the shape of state {before.name} is not fixed")
    if initial is not None and (
        initial.dtype != before.dtype or initial.shape != before.dimensions
    ):
        raise InvalidArgumentError(
            f"the initial value of state {before.name} is {initial.dtype} "
            f"{list(initial.shape)}, not {before.dtype} {list(before.dimensions)}"
        )
    return StateTensor(before, initial)


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


def names_by_index(names: Mapping[int, str]) -> tuple[str, ...]:
    """Return `NamedModel.operand_names` of the names that are known."""
    return tuple(names.get(index, "") for index in range(max(names, default=-1) + 1))
