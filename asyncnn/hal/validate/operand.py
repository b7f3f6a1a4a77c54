"""Checks one operand by itself: rules M2 to M7.

Source: HAL 1.0 to 1.3/types.hal (OperandType, Operand, OperandLifeTime).
"""

from asyncnn.hal.operands import (
    SCALAR_TYPES,
    has_unknown_dimensions,
    is_extension_type,
)
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
)
from asyncnn.hal.validate.limits import (
    RANK_MAX,
    UINT32_MAX,
    checked_size_bytes,
    is_uint32,
)
from asyncnn.hal.validate.quantization import (
    EXTENSION_RULES,
    TYPE_RULES,
    TypeRules,
    check_extra_params,
    check_quantization,
)
from asyncnn.hal.validate.wording import brief, broken

_NOWHERE = DataLocation()
_LIFETIMES = frozenset(OperandLifeTime)
_CONSTANTS = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)
_RANKLESS = SCALAR_TYPES | {OperandType.SUBGRAPH}
_OEM = frozenset({OperandType.OEM, OperandType.TENSOR_OEM_BYTE})


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
            check_quantization(operand, rules)
            check_extra_params(operand)
        self._check_location(operand)
        _check_constant_length(operand)

    def check_extension_prefix(self, type_: int, rule: str) -> None:
        """Check that the model names the extension of an operand or operation type.

        :raises InvalidArgumentError: if it doesn't, or the version has no extensions.
        """
        if type_ > UINT32_MAX or self._version < EXTENSION_RULES.since:
            raise broken(rule, f"{brief(type_)} is not a type of {self._version.name}")
        if type_ >> 16 not in self._prefixes:
            raise broken(rule, f"the model names no extension of prefix {type_ >> 16}")

    def _check_type(self, type_: int) -> TypeRules:
        if is_extension_type(type_):
            self.check_extension_prefix(type_, "M2")
            return EXTENSION_RULES
        rules = TYPE_RULES.get(type_)
        if rules is None or self._version < rules.since:
            raise broken("M2", f"{self._version.name} has no such operand type")
        return rules

    def _check_lifetime(self, operand: Operand) -> None:
        lifetime = operand.lifetime
        is_reference = lifetime == OperandLifeTime.SUBGRAPH
        if lifetime not in _LIFETIMES or (
            is_reference and self._version < HalVersion.V1_3
        ):
            raise broken(
                "M7", f"{self._version.name} has no lifetime {brief(lifetime)}"
            )
        if is_reference != (operand.type == OperandType.SUBGRAPH):
            raise broken("M7", "type and lifetime must both be SUBGRAPH or neither")

    def _check_dimensions(self, operand: Operand) -> None:
        dimensions = operand.dimensions
        if operand.type in _RANKLESS:
            if dimensions:
                raise broken("M3", f"a scalar cannot have rank {len(dimensions)}")
            return
        if len(dimensions) > RANK_MAX or not all(map(is_uint32, dimensions)):
            raise broken("M3", f"{brief(dimensions)} are not legal dimensions")
        if is_extension_type(operand.type):
            return
        if not dimensions and self._version < HalVersion.V1_2:
            raise broken("M3", f"{self._version.name} demands a known rank")
        if operand.lifetime in _CONSTANTS and has_unknown_dimensions(operand):
            raise broken("M6", f"a constant has open dimensions {brief(dimensions)}")
        checked_size_bytes(operand.type, dimensions, "M6")

    def _check_location(self, operand: Operand) -> None:
        location = operand.location
        if not (
            is_uint32(location.pool_index)
            and is_uint32(location.offset)
            and is_uint32(location.length)
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


def _check_constant_length(operand: Operand) -> None:
    if (
        operand.lifetime not in _CONSTANTS
        or operand.type in _OEM
        or is_extension_type(operand.type)
    ):
        return
    expected = checked_size_bytes(operand.type, operand.dimensions, "M6")
    if operand.location.length != expected:
        raise broken(
            "M6",
            f"the constant has {operand.location.length} bytes, expected {expected}",
        )
