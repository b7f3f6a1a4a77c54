"""Checks one operand by itself: rules M2 to M7.

Source: HAL 1.0 to 1.3/types.hal (OperandType, Operand, OperandLifeTime).
"""

from collections.abc import Callable

import msgspec

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import (
    SCALAR_TYPES,
    has_unknown_dimensions,
    is_extension_type,
    size_of_data_bytes,
)
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate.wording import brief, broken

_UINT32_MAX = 0xFFFF_FFFF
_FLOAT32_MAX = float.fromhex("0x1.fffffep127")
_NOWHERE = DataLocation()
_CONSTANTS = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)
_RANKLESS = SCALAR_TYPES | {OperandType.SUBGRAPH}
_OEM = frozenset({OperandType.OEM, OperandType.TENSOR_OEM_BYTE})


class _Scale(msgspec.Struct, frozen=True):
    """What a scale must be, in words and as a test that NaN does not pass."""

    words: str
    allows: Callable[[float], bool]


_ZERO = _Scale("zero", lambda scale: scale == 0)
_POSITIVE = _Scale("positive", lambda scale: 0 < scale <= _FLOAT32_MAX)
_NOT_NEGATIVE = _Scale("zero or positive", lambda scale: 0 <= scale <= _FLOAT32_MAX)


class _TypeRules(msgspec.Struct, frozen=True):
    """Since when a type exists, and how its operands are quantised."""

    since: HalVersion
    scale: _Scale = _ZERO
    least_zero_point: int = 0
    greatest_zero_point: int = 0


_V1_0, _V1_2, _V1_3 = HalVersion.V1_0, HalVersion.V1_2, HalVersion.V1_3
_TYPES: dict[int, _TypeRules] = {
    OperandType.FLOAT32: _TypeRules(_V1_0),
    OperandType.INT32: _TypeRules(_V1_0),
    OperandType.UINT32: _TypeRules(_V1_0),
    OperandType.TENSOR_FLOAT32: _TypeRules(_V1_0),
    OperandType.TENSOR_INT32: _TypeRules(_V1_0, _NOT_NEGATIVE),
    OperandType.TENSOR_QUANT8_ASYMM: _TypeRules(_V1_0, _POSITIVE, 0, 255),
    OperandType.BOOL: _TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_SYMM: _TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_FLOAT16: _TypeRules(_V1_2),
    OperandType.TENSOR_BOOL8: _TypeRules(_V1_2),
    OperandType.FLOAT16: _TypeRules(_V1_2),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: _TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_ASYMM: _TypeRules(_V1_2, _POSITIVE, 0, 65535),
    OperandType.TENSOR_QUANT8_SYMM: _TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: _TypeRules(_V1_3, _POSITIVE, -128, 127),
    OperandType.SUBGRAPH: _TypeRules(_V1_3),
    OperandType.OEM: _TypeRules(_V1_0),
    OperandType.TENSOR_OEM_BYTE: _TypeRules(_V1_0),
}
_EXTENSION = _TypeRules(_V1_2)


class OperandRules:
    """The rules for operands of one model; its pools have been checked already."""

    def __init__(self, model: Model, version: HalVersion) -> None:
        self._version = version
        self._prefixes = frozenset(
            extension.prefix for extension in model.extension_name_to_prefix
        )
        self._operand_values_size = len(model.operand_values)
        self._pool_sizes = tuple(pool.size for pool in model.pools)
        self._referenced_count = len(model.referenced)

    def check(self, operand: Operand) -> None:
        """Check M2 to M7.

        :raises InvalidArgumentError: if a rule is broken.
        """
        rules = self._check_type(operand.type)
        self._check_lifetime(operand)
        self._check_dimensions(operand)
        if operand.type not in _OEM:
            _check_quantization(operand, rules)
            _check_extra_params(operand)
        self._check_location(operand)
        _check_constant_length(operand)

    def check_extension_prefix(self, type_: int, rule: str) -> None:
        """Check that the model names the extension of an operand or operation type.

        :raises InvalidArgumentError: if it doesn't, or the version has no extensions.
        """
        if type_ > _UINT32_MAX or self._version < _EXTENSION.since:
            raise broken(rule, f"{brief(type_)} is not a type of {self._version.name}")
        if type_ >> 16 not in self._prefixes:
            raise broken(rule, f"the model names no extension of prefix {type_ >> 16}")

    def _check_type(self, type_: int) -> _TypeRules:
        if is_extension_type(type_):
            self.check_extension_prefix(type_, "M2")
            return _EXTENSION
        rules = _TYPES.get(type_)
        if rules is None or self._version < rules.since:
            raise broken("M2", f"{self._version.name} has no such operand type")
        return rules

    def _check_lifetime(self, operand: Operand) -> None:
        lifetime = operand.lifetime
        is_reference = lifetime == OperandLifeTime.SUBGRAPH
        if not 0 <= lifetime <= OperandLifeTime.SUBGRAPH or (
            is_reference and self._version < HalVersion.V1_3
        ):
            raise broken("M7", f"{self._version.name} has no lifetime {brief(lifetime)}")
        if is_reference != (operand.type == OperandType.SUBGRAPH):
            raise broken("M7", "type and lifetime must both be SUBGRAPH or neither")

    def _check_dimensions(self, operand: Operand) -> None:
        dimensions = operand.dimensions
        if operand.type in _RANKLESS:
            if dimensions:
                raise broken("M3", f"a scalar cannot have rank {len(dimensions)}")
            return
        if not all(0 <= axis <= _UINT32_MAX for axis in dimensions):
            raise broken("M3", f"dimensions {brief(dimensions)} do not fit in 32 bits")
        if is_extension_type(operand.type):
            return
        if not dimensions and self._version < HalVersion.V1_2:
            raise broken("M3", f"{self._version.name} demands a known rank")
        if operand.lifetime in _CONSTANTS and has_unknown_dimensions(operand):
            raise broken("M6", f"a constant has open dimensions {brief(dimensions)}")
        _size_of_data(operand)

    def _check_location(self, operand: Operand) -> None:
        location = operand.location
        if not (
            0 <= location.pool_index <= _UINT32_MAX
            and 0 <= location.offset <= _UINT32_MAX
            and 0 <= location.length <= _UINT32_MAX
        ):
            raise broken("M5", f"{brief(location)} does not fit in 32 bits")
        match operand.lifetime:
            case OperandLifeTime.CONSTANT_COPY:
                self._check_copied(location)
            case OperandLifeTime.CONSTANT_REFERENCE:
                self._check_pooled(location)
            case OperandLifeTime.SUBGRAPH:
                self._check_reference(location)
            case _:
                if location != _NOWHERE:
                    raise broken("M5", "only constants and subgraphs have a location")

    def _check_copied(self, location: DataLocation) -> None:
        if location.pool_index:
            raise broken("M5", f"CONSTANT_COPY has no pool {location.pool_index}")
        _check_span(location, self._operand_values_size, "the operand values")

    def _check_pooled(self, location: DataLocation) -> None:
        index = location.pool_index
        if index >= len(self._pool_sizes):
            raise broken("M5", f"pool {index} of {len(self._pool_sizes)} pools")
        _check_span(location, self._pool_sizes[index], f"pool {index}")

    def _check_reference(self, location: DataLocation) -> None:
        if location.pool_index or location.length:
            raise broken("M5", "a SUBGRAPH has neither pool nor length")
        if location.offset >= self._referenced_count:
            raise broken(
                "M5",
                f"subgraph {location.offset} of {self._referenced_count} referenced",
            )


def _check_span(location: DataLocation, size: int, where: str) -> None:
    end = location.offset + location.length
    if end > size:
        raise broken(
            "M5",
            f"bytes {location.offset} to {end} are not within the {size} of {where}",
        )


def _check_quantization(operand: Operand, rules: _TypeRules) -> None:
    if not rules.scale.allows(operand.scale):
        raise broken(
            "M4", f"scale must be {rules.scale.words}, is {brief(operand.scale)}"
        )
    least, greatest = rules.least_zero_point, rules.greatest_zero_point
    if not least <= operand.zero_point <= greatest:
        allowed = f"from {least} to {greatest}" if least < greatest else str(least)
        raise broken(
            "M4", f"zero point must be {allowed}, is {brief(operand.zero_point)}"
        )


def _check_extra_params(operand: Operand) -> None:
    extra = operand.extra_params
    if operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if not isinstance(extra, SymmPerChannelQuantParams):
            raise broken("M4", "scales per channel are missing")
        _check_channels(operand, extra)
    elif is_extension_type(operand.type):
        if extra is not None and not isinstance(extra, bytes):
            raise broken("M4", "an extension operand cannot have scales per channel")
    elif extra is not None:
        raise broken("M4", "this type has no extra parameters")


def _check_channels(operand: Operand, quant: SymmPerChannelQuantParams) -> None:
    rank = len(operand.dimensions)
    if not 0 <= quant.channel_dim < rank:
        raise broken("M4", f"channel axis {brief(quant.channel_dim)} of rank {rank}")
    channels = operand.dimensions[quant.channel_dim]
    if channels == 0 or len(quant.scales) != channels:
        raise broken("M4", f"{len(quant.scales)} scales for {channels} channels")
    for channel, scale in enumerate(quant.scales):
        if not _POSITIVE.allows(scale):
            raise broken(
                "M4",
                f"scale of channel {channel} must be positive, is {brief(scale)}",
            )


def _check_constant_length(operand: Operand) -> None:
    if (
        operand.lifetime not in _CONSTANTS
        or operand.type in _OEM
        or is_extension_type(operand.type)
    ):
        return
    expected = _size_of_data(operand)
    if operand.location.length != expected:
        raise broken(
            "M6",
            f"the constant has {operand.location.length} bytes, expected {expected}",
        )


def _size_of_data(operand: Operand) -> int:
    try:
        return size_of_data_bytes(operand.type, operand.dimensions)
    except InvalidArgumentError as error:
        raise broken("M6", error.message) from None
