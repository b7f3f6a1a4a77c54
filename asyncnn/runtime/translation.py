"""Regions of whole files, translated into the HAL's own operations.

Devices that have no engine for files of a kind prepare the translation: `form_for` says
which of both forms of a model a device prepares.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from msgspec.structs import replace

from asyncnn.extensions.regions import (
    ENGINES,
    LITERT,
    ONNX,
    Region,
    region_extension_of,
    region_of,
)
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import EngineShare
from asyncnn.hal.types import Capabilities, Dimensions, Model
from asyncnn.offload import offload_steps
from asyncnn.pacing import Steps
from asyncnn.runtime.model import NamedModel, TensorInfo, located
from asyncnn.runtime.unsupported import UnsupportedOperatorError

if TYPE_CHECKING:
    from asyncnn.runtime.framework.partition import DevicePlan


@runtime_checkable
class IPlanning(Protocol):
    """A device that divides models among others."""

    async def plan(self, model: Model, preference: int) -> "DevicePlan":
        """Return how a model would be divided.

        :raises AsyncnnError: if no device supports some operation.
        """

    async def engine_shares_of(
        self, model: Model, plan: "DevicePlan"
    ) -> list[tuple[Capabilities, EngineShare]]:
        """Return which engines of its devices compute what, and these' capabilities.

        :raises AsyncnnError: if the model cannot be prepared.
        """


def has_extensions_of(device: IDevice, model: Model) -> bool:
    """Return whether ``device`` has all extensions that ``model`` uses."""
    _, extensions = device.get_supported_extensions()
    known = {extension.name for extension in extensions}
    return all(entry.name in known for entry in model.extension_name_to_prefix)


async def takes(device: IDevice, model: Model) -> bool:
    """Return whether ``device`` has the engine of a region, and that would run it."""
    if not has_extensions_of(device, model):
        return False
    _, supported = await device.get_supported_operations_1_3(model)
    return bool(supported) and all(supported)


async def form_for(device: IDevice, named: NamedModel) -> NamedModel:
    """Return a model in the form that ``device`` prepares: a region, or translated.

    :raises AsyncnnError: as translating does.
    """
    named = await divisible(device, named)
    for form in engine_forms(named):
        if await takes(device, form.model):
            return form
    return await translate(named) if region_extension_of(named.model) else named


async def divisible(device: IDevice, named: NamedModel) -> NamedModel:
    """Translate a TFLite file for a framework, if it can be.

    One of its devices takes over from another only with operations that both have.

    :raises AsyncnnError: as translating does, but for operators without a HAL form.
    """
    is_litert = region_extension_of(named.model) == LITERT
    if is_litert and issubclass(type(device), IPlanning):
        with suppress(UnsupportedOperatorError):
            return await translate(named)
    return named


async def translate(named: NamedModel, *, is_refused: bool = False) -> NamedModel:
    """Translate a region on a thread; its engine may have refused it.

    :raises AsyncnnError: as translating does.
    """
    try:
        return await offload_steps(translating(named))
    except UnsupportedOperatorError as error:
        region = region_of(named.model)
        if region is None or error.hint or is_refused:
            raise
        engine, device = ENGINES[region.extension]
        hint = f"{engine} may run it: try the device {device}"
        raise UnsupportedOperatorError(
            error.message, hint=hint, operators=error.operators
        ) from error


def engine_forms(named: NamedModel) -> Iterator[NamedModel]:
    """Yield what its engine may be given for a region, in order; nothing for others.

    Shapes of outputs in a file are hints: where they are wrong, the engine refuses
    them, and gives them itself if they are open.
    """
    if not region_extension_of(named.model):
        return
    yield named
    main = named.model.main
    made = set(main.output_indexes)
    operands = tuple(
        replace(operand, dimensions=()) if index in made else operand
        for index, operand in enumerate(main.operands)
    )
    opened = replace(
        named,
        model=replace(named.model, main=replace(main, operands=operands)),
        outputs=tuple(replace(info, dimensions=(), axes=()) for info in named.outputs),
    )
    if opened != named:
        yield opened


def translating(named: NamedModel) -> Steps[NamedModel]:
    """Translate a model, in steps; one that is no region is returned as it is.

    :raises UnsupportedOperatorError: if operators have no HAL form; it names them all.
    :raises AsyncnnError: as loading the file.
    """
    region = region_of(named.model)
    if region is None:
        return named
    translated = yield from _translating(region)
    if region.extension == LITERT:
        translated = replace(translated, open_shapes=named.open_shapes)
    translated = replace(
        translated,
        inputs=_renamed(translated.inputs, named.inputs),
        outputs=_renamed(translated.outputs, named.outputs),
    )
    return translated.with_pairs(dict(named.pairs))


def translates(model: Model) -> Steps[bool]:
    """Return whether a region of LiteRT translates, with outputs as it declares them.

    Then each operator, and each shape, was checked by the rules of the HAL. One of ONNX
    is not tried: native code that infers its shapes may end the process as well.
    """
    try:
        region = region_of(model)
        if region is None or region.extension != LITERT:
            return False
        translated = yield from _translating(region)
    except (AsyncnnError, RecursionError):
        return False
    declared = [model.main.operands[index] for index in model.main.output_indexes]
    if translated.model.extension_name_to_prefix:
        return False
    return len(declared) == len(translated.outputs) and all(
        _agree(operand.dimensions, info.dimensions)
        for operand, info in zip(declared, translated.outputs, strict=True)
    )


def _agree(declared: Dimensions, inferred: Dimensions) -> bool:
    """Return whether both can be of one shape; more than four axes are merged."""
    if len(declared) == len(inferred):
        pairs = zip(declared, inferred, strict=True)
        return all(a == b or not (a and b) for a, b in pairs)
    return 0 in (*declared, *inferred) or math.prod(declared) == math.prod(inferred)


def _translating(region: Region) -> Steps[NamedModel]:
    with located("translated"):
        if region.extension == ONNX:
            return (yield from _onnx(region))
        from asyncnn.runtime.tflite import importing_tflite

        given = [each for each in region.inputs if not isinstance(each, np.ndarray)]
        return (yield from importing_tflite(region.graph, input_shapes=given))


def _onnx(region: Region) -> Steps[NamedModel]:
    # Who has no ONNX files does without the importer.
    from asyncnn.runtime.onnx import importing_onnx, outline_of_onnx

    shapes: dict[str, Dimensions] = {}
    constants: dict[str, Array] = {}
    outline = outline_of_onnx(region.graph)
    for tensor, given in zip(outline.inputs, region.inputs, strict=True):
        if isinstance(given, np.ndarray):
            constants[tensor.name] = given
        elif given:
            shapes[tensor.name] = given
    importing = importing_onnx(region.graph, input_shapes=shapes, constants=constants)
    return (yield from importing)


def _renamed(
    infos: Sequence[TensorInfo], named: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    pairs = zip(infos, named, strict=True)
    return tuple(replace(info, name=other.name) for info, other in pairs)
