"""Reads ONNX files into HAL models; the `onnx` package reads and checks the files.

``protobuf`` leaves weights where the file has them, ``schema`` and ``tensors`` turn
the rest into records. ``importer`` drafts the model: ``folding`` evaluates what only
computes shapes, and a converter turns each other node into operations, by way of a
``node`` and its draft. ``open_axes`` treats axes without a length, ``functions``
operators that are defined by others. The vocabulary of drafts is all importers':
`asyncnn.runtime.drafting`, `asyncnn.runtime.composing` and `asyncnn.runtime.moves`.
"""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import Memory
from asyncnn.hal.validate import validating
from asyncnn.input_files import decoding
from asyncnn.interpreter_hooks import LARGE_OPERATIONS, building_large
from asyncnn.pacing import Steps
from asyncnn.runtime.model import InputShapes, NamedModel
from asyncnn.runtime.model_description import Outline
from asyncnn.runtime.onnx.importer import Import
from asyncnn.runtime.onnx.open_axes import (
    Constants,
    fixed_inputs,
    merge,
    named_axes,
    open_lengths,
)
from asyncnn.runtime.onnx.schema import Source, read_model, read_outline

__all__ = ("Constants", "importing_onnx", "outline_of_onnx")

T = TypeVar("T")


def importing_onnx(
    memory: Memory,
    folder: Path | None = None,
    input_shapes: InputShapes = None,
    constants: Constants | None = None,
    strict: bool = False,
) -> Steps[NamedModel]:
    """Import the ONNX file whose bytes are in ``memory``, in steps that may be left.

    :param folder: where files with weights may be, which are read as well.
    :param input_shapes: of inputs whose file leaves axes open: by name, or of all in
        order. Axes of length 0 stay open.
    :param constants: inputs that are always the same; the model has them no more.
    :param strict: refuse what is not in operations of the HAL alone, but would be left
        to the evaluator of ONNX.
    :raises InvalidArgumentError: if the bytes are damaged, or an axis has to be known.
    :raises UnsupportedOperatorError: if operators can have no form; it names them all.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    named = yield from _without_complaints(
        _importing(memory, folder, input_shapes, constants or {}, strict)
    )
    yield from validating(named.model)
    return named


def _importing(
    memory: Memory,
    folder: Path | None,
    input_shapes: InputShapes,
    constants: Constants,
    strict: bool,
) -> Steps[NamedModel]:
    with decoding("ONNX"):
        source = read_model(memory, folder)
        yield
        is_large = len(source.graph.node) > LARGE_OPERATIONS
        with building_large() if is_large else nullcontext():
            return (yield from _drafted(source, input_shapes, constants, strict))


def _drafted(
    source: Source, input_shapes: InputShapes, constants: Constants, strict: bool
) -> Steps[NamedModel]:
    fixed = fixed_inputs(source.inputs, constants)
    assumed = open_lengths(source, input_shapes, set(source.weights) | set(fixed))
    draft = partial(Import.drafting, source, fixed, strict)
    drafts: list[Import] = []
    try:
        for lengths in assumed.variants:
            found = yield from draft(lengths)
            drafts.append(found)
        if len(drafts) > 1:
            merge([(found.draft, *found.ends) for found in drafts])
    except AsyncnnError as error:
        if (yield from assumed.refused_alike(error, draft)):
            raise
        raise assumed.explained(error) from error
    yield
    named = yield from drafts[0].building()
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
    return named


def _without_complaints(steps: Steps[T]) -> Steps[T]:
    """Take steps in which NumPy does not report overflows and the like.

    Outside of them, and on other threads, it reports as ever.
    """
    while True:
        with np.errstate(all="ignore"):
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        yield


def outline_of_onnx(memory: Memory) -> Outline:
    """Return what a file says of its inputs and outputs, even if it isn't imported.

    :raises InvalidArgumentError: if the bytes are damaged.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    with decoding("ONNX"):
        return read_outline(memory)
