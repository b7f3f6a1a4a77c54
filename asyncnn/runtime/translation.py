"""Regions of whole files, translated into the HAL's own operations.

Devices that have no engine for files of a kind prepare the translation, and tools look
into it.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn.extensions.regions import ONNX, Region, region_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.pacing import Steps
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.tflite import importing_tflite


def translating(named: NamedModel) -> Steps[NamedModel]:
    """Translate a model, in steps; one that is no region is returned as it is.

    :raises UnsupportedOperatorError: if operators have no HAL form; it names them all.
    :raises AsyncnnError: as loading the file.
    """
    region = region_of(named.model)
    if region is None:
        return named
    if region.extension == ONNX:
        translated = yield from _onnx(region)
    else:
        shapes = [each for each in region.inputs if not isinstance(each, np.ndarray)]
        translated = yield from importing_tflite(region.graph, input_shapes=shapes)
    translated = replace(
        translated,
        inputs=_renamed(translated.inputs, named.inputs),
        outputs=_renamed(translated.outputs, named.outputs),
    )
    return translated.with_pairs(dict(named.pairs))


def _onnx(region: Region) -> Steps[NamedModel]:
    # Who has no ONNX files does without the importer.
    from asyncnn.runtime.onnx import importing_onnx, outline_of_onnx

    shapes: dict[str, Dimensions] = {}
    constants: dict[str, Array] = {}
    outline = outline_of_onnx(region.graph)
    for tensor, given in zip(outline.inputs, region.inputs, strict=True):
        if isinstance(given, np.ndarray):
            constants[tensor.name] = given if tensor.lengths else given.reshape(())
        else:  # a tensor without axes has one here
            shapes[tensor.name] = given if tensor.lengths else ()
    return (
        yield from importing_onnx(
            region.graph, input_shapes=shapes, constants=constants
        )
    )


def _renamed(
    infos: Sequence[TensorInfo], named: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    pairs = zip(infos, named, strict=True)
    return tuple(replace(info, name=other.name) for info, other in pairs)
