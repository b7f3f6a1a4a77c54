"""Finds the first operation whose result differs from a recorded tensor.

A check file may hold ``pre_softmax_K`` beside ``output_K``: what goes into the SOFTMAX
that ends the model. Any ``pre_OPERATION_K`` is understood likewise, an extension's too.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.cli.checking import Tolerance, compare
from asyncnn.cli.samples import Sample
from asyncnn.extensions import Extension
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandLifeTime, Operation
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel


async def first_difference(
    device: Device,
    model: NamedModel,
    inputs: Sequence[Sample],
    recorded: dict[str, Array],
    tolerance: Tolerance,
    extensions: Sequence[Extension] = (),
) -> str:
    """Return a line that names where results begin to differ; empty if unknown."""
    operations, words = model.model.main.operations, model.vocabulary
    for position, operation in enumerate(operations):
        name = words.operation_type(operation.type)
        key = f"pre_{name.lower().rpartition('/')[2]}"
        if f"{key}_0" not in recorded:
            continue
        tapped = _ending_at(model, position, operation.inputs[0]).knowing(extensions)
        prepared = await device.prepare(tapped)
        for number, sample in enumerate(inputs):
            if f"{key}_{number}" not in recorded:
                continue
            (actual,) = (await prepared.run(sample)).values()
            expected = recorded[f"{key}_{number}"].reshape(actual.shape)
            result = compare(f"sample {number}", actual, expected, tolerance)
            if not result.passed:
                return f"differs before operation {position} ({name}): {result}"
        return f"first differing operation: {position} ({name})"
    return ""


def _ending_at(model: NamedModel, position: int, operand: int) -> NamedModel:
    """Return the model up to operation ``position``, with ``operand`` its output."""
    main = model.model.main
    kept = main.operations[:position]
    operands = tuple(
        replace(
            described,
            lifetime=_lifetime(index == operand, described.lifetime),
            number_of_consumers=_consumers(kept, index),
        )
        for index, described in enumerate(main.operands)
    )
    written = {index for operation in kept for index in operation.outputs}
    unwritten = {OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT}
    cut = replace(
        main,
        operands=tuple(
            replace(described, lifetime=OperandLifeTime.NO_VALUE)
            if described.lifetime in unwritten and index not in written
            else described
            for index, described in enumerate(operands)
        ),
        operations=kept,
        output_indexes=(operand,),
    )
    names = [info.name for info in model.inputs]
    return NamedModel.of(replace(model.model, main=cut), names, ("tapped",))


def _lifetime(is_output: bool, lifetime: int) -> int:
    if is_output:
        return OperandLifeTime.SUBGRAPH_OUTPUT
    if lifetime == OperandLifeTime.SUBGRAPH_OUTPUT:
        return OperandLifeTime.TEMPORARY_VARIABLE
    return lifetime


def _consumers(operations: Sequence[Operation], index: int) -> int:
    return sum(operation.inputs.count(index) for operation in operations)
