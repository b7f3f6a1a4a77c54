"""A model with the names of its inputs and outputs, and where its constants lie.

`ConstantStore` places the constants of a model that is built or imported: small ones
in the model, large ones in pools. `map_model_file` and `located` are what readers of
model files share: the file mapped, and errors that name it.
"""

import mmap
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.hal.operands import AnyOperandType, dtype_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
)
from asyncnn.hal.validate.rules import operand_type_name
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.memory.pools import from_buffer, map_file, view
from asyncnn.runtime.model_description import ModelMetadata, Signature


class ModelFileMissingError(GeneralFailureError, FileNotFoundError):
    """There is no model file at a path."""


def map_model_file(path: str | os.PathLike[str]) -> Memory:
    """Map the whole file at ``path`` for reading; an interrupt ends the waiting.

    :raises InvalidArgumentError: if it is empty or not a regular file.
    :raises ModelFileMissingError: if there is none.
    :raises GeneralFailureError: if it cannot be opened or mapped.
    """
    try:
        memory = call_abandonable(f"opening {os.fspath(path)}", in_one(map_file, path))
    except GeneralFailureError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ModelFileMissingError(error.message) from error.__cause__
        raise
    if not memory.size:
        raise InvalidArgumentError(f"{os.fspath(path)}: the file is empty")
    return memory


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
    if not isinstance(shapes, Mapping):
        if all(isinstance(shape, int) for shape in shapes):
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
        if name not in names:
            raise InvalidArgumentError(
                f"there is no input {name!r}", hint=f"known: {inputs}"
            )
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
def telling_open_inputs(names: Sequence[str]) -> Iterator[None]:
    """Add to errors that the file leaves shapes of these inputs to the application."""
    try:
        yield
    except (InvalidArgumentError, GeneralFailureError) as error:
        if not names or error.hint or type(error).__init__ is not AsyncnnError.__init__:
            raise
        raise type(error)(error.message, hint=hint_of_open_inputs(names)) from error


def hint_of_open_inputs(names: Sequence[str]) -> str:
    """Return what to do about inputs whose shapes the file leaves open."""
    shapes = ", ".join(f"{name!r}: (...)" for name in names)
    return (
        f"the file leaves shapes to the application: load it with "
        f"input_shapes={{{shapes}}}, or --input-shape {names[0]}=N,N,..."
    )


MAX_COPIED_BYTES = 128
"""Largest constant that is copied into the model, as in the NNAPI."""

ALIGNMENT = 64
"""Alignment in bytes of constants in the model's own pool."""

_VALUE_ALIGNMENT = 4


class ConstantStore:
    """Places constants in the operand values or in pools.

    A small constant goes into the operand values. A large one that views a pool given
    to `add_pool` is referred to in place; others are gathered in one pool of the
    model's own, or become a pool each.
    """

    def __init__(self) -> None:
        self._values = bytearray()
        self._pools: list[Memory | None] = []
        self._known: list[tuple[int, Memory]] = []
        self._gathered: list[tuple[int, Array]] = []
        self._gathered_pool = -1
        self._gathered_bytes = 0

    def add_pool(self, memory: Memory) -> None:
        """Let constants refer to ``memory``; it joins the model once one does.

        :raises GeneralFailureError: if the pool cannot be mapped.
        """
        self._known.append((_address(np.frombuffer(view(memory), np.uint8)), memory))

    def place(
        self, array: Array, *, copy: bool
    ) -> tuple[OperandLifeTime, DataLocation]:
        """Return the lifetime and location of ``array``, which is contiguous."""
        if array.nbytes <= MAX_COPIED_BYTES:
            return OperandLifeTime.CONSTANT_COPY, self.copied(array.tobytes())
        return OperandLifeTime.CONSTANT_REFERENCE, self._refer(array, copy=copy)

    def values(self) -> bytes:
        """Return the operand values."""
        return bytes(self._values)

    def pools(self) -> tuple[Memory, ...]:
        """Return the pools that locations refer to."""
        return tuple(
            self._gather() if memory is None else memory for memory in self._pools
        )

    def copied(self, data: bytes) -> DataLocation:
        """Add ``data`` to the operand values, and return where they lie."""
        self._values.extend(bytes(-len(self._values) % _VALUE_ALIGNMENT))
        location = DataLocation(0, len(self._values), len(data))
        self._values.extend(data)
        return location

    def _refer(self, array: Array, *, copy: bool) -> DataLocation:
        address = _address(array)
        for start, memory in self._known:
            if start <= address and address + array.nbytes <= start + memory.size:
                pool = self._index_of(memory)
                return DataLocation(pool, address - start, array.nbytes)
        if copy:
            return self._add_to_gathered(array)
        return DataLocation(self._index_of(from_buffer(array)), 0, array.nbytes)

    def _index_of(self, memory: Memory) -> int:
        if memory not in self._pools:
            self._pools.append(memory)
        return self._pools.index(memory)

    def _add_to_gathered(self, array: Array) -> DataLocation:
        if self._gathered_pool < 0:
            self._gathered_pool = len(self._pools)
            self._pools.append(None)
        offset = self._gathered_bytes + -self._gathered_bytes % ALIGNMENT
        self._gathered.append((offset, array.copy()))
        self._gathered_bytes = offset + array.nbytes
        return DataLocation(self._gathered_pool, offset, array.nbytes)

    def _gather(self) -> Memory:
        pages = mmap.mmap(-1, self._gathered_bytes)
        pool = np.frombuffer(pages, np.uint8)
        for offset, array in self._gathered:
            pool[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return from_buffer(memoryview(pages).toreadonly())


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


_HAL_TYPES = {int(type_): type_ for type_ in OperandType}


class TensorInfo(msgspec.Struct, frozen=True):
    """What a caller has to know of an input or output.

    ``dimensions`` has 0 for an axis that each request chooses. Real value =
    ``scale * (stored - zero_point)`` where ``scale`` is not 0. ``type`` is an
    `OperandType`, whatever kind of file it is from, or what an extension has; it is a
    bare number if nothing is known of that.
    """

    name: str
    type: AnyOperandType | int
    dimensions: Dimensions
    scale: float = 0.0
    zero_point: int = 0

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
        axes = ", ".join(str(axis) if axis else "?" for axis in self.dimensions)
        return f"{self.name}: {operand_type_name(self.type)} [{axes}]"

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the stored elements.

        :raises InvalidArgumentError: if the type is the bare number of an extension's;
            see `NamedModel.knowing`.
        """
        return dtype_of(self.type)


class StateTensor(msgspec.Struct, frozen=True, eq=False):
    """A tensor that a model keeps from one step to the next.

    ``initial`` is what it holds before the first step, of the dtype and shape in
    ``info``; None stands for real zeros, which are elements of the zero point.
    """

    info: TensorInfo
    initial: Array | None = None

    def first_value(self) -> Array:
        """Return a new array of what the state holds before the first step."""
        if self.initial is not None:
            return self.initial.copy()
        return np.full(self.info.dimensions, self.info.zero_point, self.info.dtype)


class NamedModel(msgspec.Struct, frozen=True):
    """A HAL model whose inputs and outputs have names, in the model's order.

    ``extension_names`` are what the extensions that it uses call their types.

    The HAL knows no state: what a model keeps from one step to the next is an input and
    an output of its main subgraph. State K is the input after ``inputs`` and the output
    after ``outputs`` at position K; both have the same type, shape and quantisation.

    ``signatures`` are those of its file that name these inputs and outputs;
    ``metadata`` is what the file's author says of them, if anything. ``open_inputs``
    have lengths that the file leaves to the application, and that were not given: they
    have those of an example, mostly 1. ``operand_names`` are what the file calls the
    operands of the main subgraph, by index, empty where it has no such tensor; there
    may be fewer than operands.
    """

    model: Model
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    extension_names: tuple[ExtensionNames, ...] = ()
    states: tuple[StateTensor, ...] = ()
    signatures: tuple[Signature, ...] = ()
    metadata: ModelMetadata | None = None
    open_inputs: tuple[str, ...] = ()
    operand_names: tuple[str, ...] = ()

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

    def with_open_states(self) -> Self:
        """Return the same model, whose states are inputs and outputs after the others.

        Either has the state's name.
        """
        infos = tuple(state.info for state in self.states)
        return msgspec.structs.replace(
            self,
            inputs=(*self.inputs, *infos),
            outputs=(*self.outputs, *infos),
            states=(),
            signatures=(),
        )

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
            [(state.info.name, state.initial) for state in self.states],
        )
        names = joined(self.extension_names, known.extension_names)
        return replace(
            known,
            extension_names=names,
            signatures=self.signatures,
            metadata=self.metadata,
            open_inputs=self.open_inputs,
            operand_names=self.operand_names,
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
