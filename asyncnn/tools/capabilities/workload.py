"""A reference workload: one model, and the NumPy program that does the same."""

from collections.abc import Callable, Sequence

import msgspec

from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, SymmPerChannelQuantParams
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel


class Workload(msgspec.Struct, frozen=True, eq=False):
    """``plain`` takes the ``inputs`` of the model and returns its outputs."""

    name: ReferenceWorkload
    model: NamedModel
    inputs: tuple[Array, ...]
    plain: Callable[..., Sequence[Array]]


def add_inputs(builder: ModelBuilder, *operands: Operand) -> list[int]:
    """Make the tensors that ``operands`` describe the inputs of a model."""
    return [
        builder.input(
            f"input_{number}",
            operand.type,
            operand.dimensions,
            scale=operand.scale,
            zero_point=operand.zero_point,
            channel_quant=_channel_quant(operand),
        )
        for number, operand in enumerate(operands)
    ]


def _channel_quant(operand: Operand) -> SymmPerChannelQuantParams | None:
    params = operand.extra_params
    return params if isinstance(params, SymmPerChannelQuantParams) else None
