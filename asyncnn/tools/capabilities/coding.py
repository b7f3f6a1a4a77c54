"""How tensors hold numbers, for programs that compute in float32."""

from typing import Self

import msgspec
import numpy as np

from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Operand, OperandType


class Coding(msgspec.Struct, frozen=True):
    """A tensor's type; ``scale`` is 0 unless it is quantised."""

    type: OperandType
    scale: float = 0.0
    zero_point: int = 0

    def operand(self, dimensions: Dimensions) -> Operand:
        """Describe a tensor of such numbers."""
        return Operand(
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
    """Those of a network: features lie in [0, 6], shares in [0, 1]."""

    features: Coding
    weights: Coding
    bias: Coding
    logits: Coding
    shares: Coding

    @classmethod
    def of(cls, type_: OperandType) -> Self:
        """Return the codings of a network on ``type_``."""
        if type_ not in QUANT8_TYPES:
            return cls(*[Coding(type_)] * 5)
        lowest = int(np.iinfo(DTYPES[type_]).min)
        features = Coding(type_, 6 / 255, lowest)
        weights = Coding(type_, 2.0**-7, lowest + 128)
        return cls(
            features,
            weights,
            Coding(OperandType.TENSOR_INT32, features.scale * weights.scale),
            logits=Coding(type_, 2.0**-4, lowest + 128),
            shares=Coding(type_, 2.0**-8, lowest),
        )
