"""What a model file expects and holds, and which devices would run it.

`inspected` says of a loaded model what `asyncnn inspect` prints: its inputs, outputs
and states, what it computes, how large its constants are, and what each device of this
machine, but for the samples, supports of it. `outlined` says what there is to be said
of a file that cannot be loaded as it is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncnn.extensions import Extension
from asyncnn.extensions.regions import region_of
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, failure_of
from asyncnn.hal.types import Dimensions, HalVersion, Model, OperandLifeTime
from asyncnn.hal.versions import compliant_with
from asyncnn.offload import offload_steps
from asyncnn.runtime.axes import example_shapes
from asyncnn.runtime.explain import explain
from asyncnn.runtime.framework.device_registry import SAMPLE, registered_devices
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.model_description import ModelMetadata, TensorOutline
from asyncnn.runtime.model_file import load, outline_of
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.translation import divisible, engine_forms, takes, translating

if TYPE_CHECKING:
    from asyncnn.runtime.onnx import Constants

_CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


class TensorSummary(msgspec.Struct, frozen=True):
    """An input, output or state: real value = ``scale * (stored - zero_point)``.

    ``shape`` has 0 for an axis that each request chooses, and ``axes`` the names of
    axes that the file leaves open, ``?`` without one, empty for all others. ``dtype``
    is the array's to pass, empty if it is not known. ``scale`` is 0 if it is not
    quantised.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    scale: float = 0.0
    zero_point: int = 0
    axes: tuple[str, ...] = ()


class DeviceSupport(msgspec.Struct, frozen=True):
    """How many operations a device would run; ``problem`` if it cannot be asked.

    One that ``takes_region`` runs a region as it is, in its engine.
    """

    name: str
    supported: int
    problem: str = ""
    takes_region: bool = False


class Inspection(msgspec.Struct, frozen=True):
    """All that is to be known of a model before it is run.

    ``states`` are no inputs or outputs; ``pairs`` are inputs that a session keeps, each
    with the output that is its next value.
    ``operations`` counts the operations of all subgraphs by name, the most frequent
    first. ``hal_version`` is the oldest HAL that has all that the model uses, such
    as ``1.2``, or ``AIDL 3``, which is newer.
    ``weight_bytes`` is the size of its constants, those that share bytes counted once.
    ``open_inputs`` are those whose shapes the file leaves to the application, and
    ``example_shapes`` some that may do. ``metadata`` is what the author says.
    Of a file that is one ``region``, which names its extension, operations, version and
    weights are its translation's; if it has none, ``untranslated`` says why, and
    they are the region's own.

    If a file cannot be loaded as it is, ``problem`` says why; nothing is known then of
    what it computes. ``example_shapes`` are shapes of inputs with which it can, if that
    is all that it needs.
    """

    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    states: tuple[TensorSummary, ...]
    operations: dict[str, int]
    subgraphs: int
    hal_version: str
    weight_bytes: int
    devices: tuple[DeviceSupport, ...]
    open_inputs: tuple[str, ...] = ()
    example_shapes: dict[str, Dimensions] = {}
    metadata: ModelMetadata | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    region: str = ""
    untranslated: str = ""

    @property
    def operation_count(self) -> int:
        """Number of operations of all subgraphs."""
        return sum(self.operations.values())


async def inspected(
    named: NamedModel, *, extensions: Iterable[Extension] = ()
) -> Inspection:
    """Describe a model, and ask every device of this machine what it supports.

    :param extensions: what the devices have besides their own.
    :raises AsyncnnError: if it is a region that cannot be translated, for which there
        is no engine.
    """
    extensions = tuple(extensions)
    region, words = region_of(named.model), named.vocabulary
    form, refusal = named, None
    try:
        form = await offload_steps(translating(named))
    except AsyncnnError as error:
        refusal = error
    devices = [
        await _support(name, named, form, extensions)
        for name in registered_devices()
        if not name.startswith(SAMPLE)
    ]
    if refusal is not None and not any(each.takes_region for each in devices):
        raise refusal
    model = form.model
    counts = Counter(
        form.vocabulary.operation_type(operation.type)
        for subgraph in (model.main, *model.referenced)
        for operation in subgraph.operations
    )

    oldest = next(each for each in HalVersion if compliant_with(model, each))

    def summaries(infos: Iterable[TensorInfo]) -> tuple[TensorSummary, ...]:
        return tuple(
            TensorSummary(
                info.name,
                words.operand_type(info.type),
                _dtype(info),
                info.dimensions,
                info.scale,
                info.zero_point,
                info.axes,
            )
            for info in infos
        )

    return Inspection(
        inputs=summaries(named.inputs),
        outputs=summaries(named.outputs),
        states=summaries(state.info for state in named.states),
        operations=dict(counts.most_common()),
        subgraphs=1 + len(model.referenced),
        hal_version=oldest.title.replace("HAL ", ""),
        weight_bytes=_weight_bytes(model),
        devices=tuple(devices),
        open_inputs=named.open_inputs,
        example_shapes=example_shapes(named.open_shapes),
        metadata=named.metadata,
        pairs=named.pairs,
        region="" if region is None else region.extension,
        untranslated="" if refusal is None else str(refusal),
    )


_LENGTHS_TO_TRY = (640, 224)
"""Lengths that many detectors and classifiers of images have."""


def outlined(
    path: Path,
    error: AsyncnnError,
    *,
    input_shapes: Mapping[str, Dimensions],
    constants: "Constants",
    extensions: Iterable[Extension],
) -> Inspection:
    """Describe a file that cannot be loaded, and look for shapes with which it can.

    :param error: what loading it with these arguments has raised.
    :raises AsyncnnError: that, if the file does not describe its inputs and outputs.
    """
    try:
        outline = outline_of(path)
    except AsyncnnError:
        outline = None
    if outline is None:
        raise error
    shapes = {
        each.name: input_shapes.get(each.name, each.lengths)
        for each in outline.inputs
        if each.name not in constants
    }
    opened = {k: v for k, v in shapes.items() if any(isinstance(n, str) for n in v)}
    found: dict[str, Dimensions] = {}
    for length in _LENGTHS_TO_TRY if opened else ():
        candidate = {**input_shapes, **example_shapes(opened, length)}
        with suppress(AsyncnnError):
            load(
                path,
                input_shapes=candidate,
                constants=constants,
                extensions=extensions,
                strict=True,
            )
            found = candidate
            break
    return Inspection(
        inputs=tuple(map(_summary, outline.inputs)),
        outputs=tuple(map(_summary, outline.outputs)),
        states=(),
        operations={},
        subgraphs=0,
        hal_version="",
        weight_bytes=0,
        devices=(),
        open_inputs=tuple(opened),
        example_shapes=found,
        metadata=outline.metadata,
        problem=error.message,
    )


def _summary(outline: TensorOutline) -> TensorSummary:
    lengths = outline.lengths
    axes = tuple(each if isinstance(each, str) else "" for each in lengths)
    return TensorSummary(
        outline.name,
        "",
        outline.dtype,
        tuple(0 if isinstance(each, str) else each for each in lengths),
        axes=axes if any(axes) else (),
    )


def _dtype(info: TensorInfo) -> str:
    try:
        return info.dtype.name
    except InvalidArgumentError:  # of an extension that nothing is known of
        return ""


def _weight_bytes(model: Model) -> int:
    places = {
        (operand.lifetime, location.pool_index, location.offset, location.length)
        for subgraph in (model.main, *model.referenced)
        for operand in subgraph.operands
        if operand.lifetime in _CONSTANT
        for location in (operand.location,)
    }
    return sum(length for *_, length in places)


async def _support(
    name: str,
    named: NamedModel,
    translation: NamedModel,
    extensions: Sequence[Extension],
) -> DeviceSupport:
    taken: list[NamedModel] = []
    try:
        async with open_device(name, extensions=extensions) as device:
            forms = engine_forms(await divisible(device.hal, named))
            taken = [each for each in forms if await takes(device.hal, each.model)]
            form = taken[0] if taken else translation
            explanation = await explain(device, form, extensions=extensions)
            if named.open_inputs and explanation.is_supported:
                # Shapes of an example may not fit what is computed of them.
                await device.prepare(form)
    except Exception as error:  # a device of another distribution raises anything
        return DeviceSupport(name, 0, str(failure_of(error)))
    supported = sum(report.is_supported for report in explanation.operations)
    return DeviceSupport(name, supported, explanation.problem, bool(taken))
