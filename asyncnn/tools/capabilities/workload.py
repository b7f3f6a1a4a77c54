"""A reference workload: one model, and the NumPy program that does the same."""

from collections.abc import Callable, Sequence
from typing import Self

import msgspec
import numpy as np

from asyncnn import hal
from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel


class Coding(msgspec.Struct, frozen=True):
    """A tensor's type; ``scale`` is 0 unless it is quantised."""

    type: hal.OperandType
    scale: float = 0.0
    zero_point: int = 0

    def operand(self, dimensions: hal.Dimensions) -> hal.Operand:
        """Describe a tensor of such numbers."""
        return hal.Operand(
            self.type, dimensions, scale=self.scale, zero_point=self.zero_point
        )

    def read(self, codes: Array) -> Array:
        """Return the numbers as float32."""
        numbers = codes.astype(np.float32, copy=False)
        if not self.scale:
            return numbers
        return (numbers - self.zero_point) * np.float32(self.scale)

    def write(self, numbers: Array) -> Array:
        """Return float32 numbers in the tensor's own type."""
        dtype = DTYPES[self.type]
        if not self.scale:
            return numbers.astype(dtype, copy=False)
        bounds = np.iinfo(dtype)
        codes = np.rint(numbers / np.float32(self.scale)) + self.zero_point
        return codes.clip(bounds.min, bounds.max).astype(dtype)


class Codings(msgspec.Struct, frozen=True):
    """Values of a network: features lie in [0, 6], shares in [0, 1]."""

    features: Coding
    weights: Coding
    bias: Coding
    logits: Coding
    shares: Coding

    @classmethod
    def of(cls, type_: hal.OperandType) -> Self:
        """Return the codings of a network on ``type_``."""
        if type_ not in QUANT8_TYPES:
            return cls(*[Coding(type_)] * 5)
        lowest = int(np.iinfo(DTYPES[type_]).min)
        features = Coding(type_, 6 / 255, lowest)
        weights = Coding(type_, 2.0**-7, lowest + 128)
        return cls(
            features,
            weights,
            Coding(hal.OperandType.TENSOR_INT32, features.scale * weights.scale),
            logits=Coding(type_, 2.0**-4, lowest + 128),
            shares=Coding(type_, 2.0**-8, lowest),
        )


class Workload(msgspec.Struct, frozen=True, eq=False):
    """``plain`` takes the ``inputs`` of the model and returns its outputs."""

    name: ReferenceWorkload
    model: NamedModel
    inputs: tuple[Array, ...]
    plain: Callable[..., Sequence[Array]]


def add_inputs(builder: GraphBuilder, *operands: hal.Operand) -> list[int]:
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


def _channel_quant(operand: hal.Operand) -> hal.SymmPerChannelQuantParams | None:
    params = operand.extra_params
    return params if isinstance(params, hal.SymmPerChannelQuantParams) else None
