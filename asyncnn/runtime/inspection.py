"""What a model file expects and holds, and which devices would run it.

`inspected` says of a loaded model what `asyncnn inspect` prints: its inputs, outputs
and states, what it computes, how large its constants are, and what each device of this
machine, but for the samples, supports of it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError, failure_of
from asyncnn.hal.types import HalVersion, Model, OperandLifeTime
from asyncnn.hal.versions import compliant_with
from asyncnn.runtime.explain import explain
from asyncnn.runtime.framework.device_registry import SAMPLE, registered_devices
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.opening_devices import open_device

_CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


class TensorSummary(msgspec.Struct, frozen=True):
    """An input, output or state: real value = ``scale * (stored - zero_point)``.

    ``shape`` has 0 for an axis that each request chooses; ``dtype`` is that of the
    array to pass, empty if it is not known. ``scale`` is 0 if it is not quantised.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    scale: float = 0.0
    zero_point: int = 0


class DeviceSupport(msgspec.Struct, frozen=True):
    """How many operations a device would run; ``problem`` if it cannot be asked."""

    name: str
    supported: int
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """All that is to be known of a model before it is run.

    ``operations`` counts the operations of all subgraphs by name, the most frequent
    first. ``hal_version`` is the oldest HAL that has all that the model uses, such
    as ``1.2``, or ``AIDL 3``, which is newer.
    ``weight_bytes`` is the size of its constants, those that share bytes counted once.
    ``open_inputs`` are those whose shapes the file leaves to the application.
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

    @property
    def operation_count(self) -> int:
        """Number of operations of all subgraphs."""
        return sum(self.operations.values())


async def inspected(
    named: NamedModel, *, extensions: Iterable[Extension] = ()
) -> Inspection:
    """Describe a model, and ask every device of this machine what it supports.

    :param extensions: what the devices have besides their own.
    """
    extensions = tuple(extensions)
    model, words = named.model, named.vocabulary
    counts = Counter(
        words.operation_type(operation.type)
        for subgraph in (model.main, *model.referenced)
        for operation in subgraph.operations
    )

    def summaries(infos: Iterable[TensorInfo]) -> tuple[TensorSummary, ...]:
        return tuple(
            TensorSummary(
                info.name,
                words.operand_type(info.type),
                _dtype(info),
                info.dimensions,
                info.scale,
                info.zero_point,
            )
            for info in infos
        )

    return Inspection(
        inputs=summaries(named.inputs),
        outputs=summaries(named.outputs),
        states=summaries(state.info for state in named.states),
        operations=dict(counts.most_common()),
        subgraphs=1 + len(model.referenced),
        hal_version=_oldest_version(model).title.replace("HAL ", ""),
        weight_bytes=_weight_bytes(model),
        devices=tuple(
            [
                await _support(name, named, extensions)
                for name in registered_devices()
                if not name.startswith(SAMPLE)
            ]
        ),
        open_inputs=named.open_inputs,
    )


def _dtype(info: TensorInfo) -> str:
    try:
        return info.dtype.name
    except InvalidArgumentError:  # of an extension that nothing is known of
        return ""


def _oldest_version(model: Model) -> HalVersion:
    return next(version for version in HalVersion if compliant_with(model, version))


def _weight_bytes(model: Model) -> int:
    """Return how many bytes constants take, those that several share counted once."""
    places = {
        (operand.lifetime, location.pool_index, location.offset, location.length)
        for subgraph in (model.main, *model.referenced)
        for operand in subgraph.operands
        if operand.lifetime in _CONSTANT
        for location in (operand.location,)
    }
    return sum(length for *_, length in places)


async def _support(
    name: str, named: NamedModel, extensions: Sequence[Extension]
) -> DeviceSupport:
    try:
        async with open_device(name, extensions=extensions) as device:
            explanation = await explain(device, named, extensions=extensions)
            if named.open_inputs and explanation.is_supported:
                # Shapes of an example may not fit what is computed of them.
                await device.prepare(named)
    except Exception as error:  # a device of another distribution raises anything
        return DeviceSupport(name, 0, str(failure_of(error)))
    supported = sum(report.is_supported for report in explanation.operations)
    return DeviceSupport(name, supported, explanation.problem)
