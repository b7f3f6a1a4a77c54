"""Reads ONNX files into HAL models; the `onnx` package reads and checks the files.

``protobuf`` leaves weights where the file has them, ``schema`` and ``tensors`` turn
the rest into records. ``importer`` drafts the model: ``folding`` evaluates what only
computes shapes, and a converter turns each other node into operations, by way of a
``node`` and its draft: ``emitter`` collects operations, ``composing`` has the
vocabulary. ``open_axes`` treats axes without a length, ``functions`` operators that are
defined by others.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.model import (
    InputShapes,
    NamedModel,
    decoding,
    located,
    read_model_file,
)
from asyncnn.runtime.model_description import Outline
from asyncnn.runtime.onnx.importer import Import
from asyncnn.runtime.onnx.open_axes import merge, named_axes, open_lengths
from asyncnn.runtime.onnx.schema import Axes, Source, read_model, read_outline

__all__ = ("Constants", "import_onnx", "load_onnx", "outline_of_onnx")

Constants: TypeAlias = Mapping[str, ArrayLike]
"""Values of inputs, by name, that are always the same."""


def load_onnx(
    path: str | os.PathLike[str],
    *,
    input_shapes: InputShapes = None,
    constants: Constants | None = None,
) -> NamedModel:
    """Import the ONNX file at ``path``; see `import_onnx`.

    :raises GeneralFailureError: if the file cannot be read.
    """
    memory = read_model_file(path)
    with located(path):
        return import_onnx(
            memory,
            folder=Path(path).parent,
            input_shapes=input_shapes,
            constants=constants,
        )


def import_onnx(
    memory: Memory,
    *,
    folder: Path | None = None,
    input_shapes: InputShapes = None,
    constants: Constants | None = None,
) -> NamedModel:
    """Import the ONNX file whose bytes are those of ``memory``.

    :param folder: where files with weights may be, which are read as well.
    :param input_shapes: of inputs whose file leaves axes open: by name, or of all in
        order. Axes of length 0 stay open.
    :param constants: inputs that are always the same; the model has them no more.
    :raises InvalidArgumentError: if the bytes are damaged, or an axis has to be known.
    :raises UnsupportedOperatorError: if operators have no HAL form; it names them all.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    with decoding("ONNX"), np.errstate(all="ignore"):
        source = read_model(memory, folder)
        fixed = _fixed(source, constants or {})
        assumed = open_lengths(source, input_shapes, set(source.weights) | set(fixed))
        draft = partial(Import, source, fixed)
        try:
            drafts = [draft(lengths) for lengths in assumed.variants]
            if len(drafts) > 1:
                merge([(found.draft, *found.ends) for found in drafts])
        except AsyncnnError as error:
            if assumed.is_any_refused_alike(error, draft):
                raise
            raise assumed.explained(error) from error
        named = drafts[0].build()
        source.reader.check_unchanged()
        for each in drafts:
            each.draft.release()
        named = replace(named, metadata=source.metadata)
        if len(drafts) > 1:
            (inputs, outputs), (others, results) = (found.ends for found in drafts)
            named = replace(
                named,
                inputs=named_axes(named.inputs, inputs, others, assumed.names),
                outputs=named_axes(named.outputs, outputs, results, assumed.names),
            )
    validate_model(named.model)
    return named


def outline_of_onnx(memory: Memory) -> Outline:
    """Return what a file says of its inputs and outputs, even if it isn't imported.

    :raises InvalidArgumentError: if the bytes are damaged.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    with decoding("ONNX"):
        return read_outline(memory)


def _fixed(source: Source, constants: Constants) -> dict[str, Array]:
    known = {axes.name: axes for axes in source.inputs}
    fixed: dict[str, Array] = {}
    for name, value in constants.items():
        if name not in known:
            raise InvalidArgumentError(
                f"there is no input {name!r}", hint=f"known: {', '.join(known)}"
            )
        fixed[name] = _constant(known[name], value)
    return fixed


def _constant(axes: Axes, value: ArrayLike) -> Array:
    """Return what an input is fixed to, of its dtype and shape.

    :raises InvalidArgumentError: if it has another shape, or is no such number.
    """
    try:
        array = np.asarray(value, axes.dtype)
    except (OverflowError, TypeError, ValueError):
        raise InvalidArgumentError(
            f"{value!r} is no constant for input {axes.name!r} of {axes.dtype}"
        ) from None
    if array.size == 1 and len(axes.lengths) == 1:
        array = array.reshape(1)
    fits = array.ndim == len(axes.lengths) and all(
        isinstance(length, str) or length == given
        for length, given in zip(axes.lengths, array.shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"a constant of shape {list(array.shape)} does not fit input "
            f"{axes.name!r} of shape {list(axes.lengths)}"
        )
    return array
