"""Checks the operands of a model, each by itself: rules M2 to M7.

Scale, zero point and extra parameters are rule M4.

Source: HAL 1.0 to 1.3/types.hal (OperandType, Operand, OperandLifeTime,
SymmPerChannelQuantParams).
"""

import struct
from collections.abc import Generator, Sequence
from functools import cache
from itertools import chain
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import SCALAR_TYPES, element_size_bytes, is_extension_type
from asyncnn.hal.operations.signature import Form, form_of
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    ExtraParams,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate.rules import (
    RANK_MAX,
    SLICE,
    UINT32_MAX,
    brief,
    broken,
    checked_size_bytes,
    is_integer,
    located,
    operand_type_name,
)

_FLOAT32_MAX = float.fromhex("0x1.fffffep127")
_FLOAT32_TINIEST = float.fromhex("0x1p-149")


class _Scale(msgspec.Struct, frozen=True):
    """What a scale must be: in words, its bounds, and whether it may be zero too."""

    words: str
    least: float
    greatest: float
    may_be_zero: bool


_ZERO = _Scale("zero", 0, 0, True)
_POSITIVE = _Scale("positive", _FLOAT32_TINIEST, _FLOAT32_MAX, False)
_NOT_NEGATIVE = _Scale("zero or positive", _FLOAT32_TINIEST, _FLOAT32_MAX, True)


class TypeRules(msgspec.Struct, frozen=True):
    """Since when a type exists, and how its operands are quantised."""

    since: HalVersion
    scale: _Scale = _ZERO
    least_zero_point: int = 0
    greatest_zero_point: int = 0


_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_V1_0, _V1_2, _V1_3 = HalVersion.V1_0, HalVersion.V1_2, HalVersion.V1_3
TYPE_RULES: dict[int, TypeRules] = {
    OperandType.FLOAT32: TypeRules(_V1_0),
    OperandType.INT32: TypeRules(_V1_0),
    OperandType.UINT32: TypeRules(_V1_0),
    OperandType.TENSOR_FLOAT32: TypeRules(_V1_0),
    OperandType.TENSOR_INT32: TypeRules(_V1_0, _NOT_NEGATIVE),
    OperandType.TENSOR_QUANT8_ASYMM: TypeRules(_V1_0, _POSITIVE, 0, 255),
    OperandType.BOOL: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_SYMM: TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_FLOAT16: TypeRules(_V1_2),
    OperandType.TENSOR_BOOL8: TypeRules(_V1_2),
    OperandType.FLOAT16: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_ASYMM: TypeRules(_V1_2, _POSITIVE, 0, 65535),
    OperandType.TENSOR_QUANT8_SYMM: TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: TypeRules(_V1_3, _POSITIVE, -128, 127),
    OperandType.SUBGRAPH: TypeRules(_V1_3),
    OperandType.OEM: TypeRules(_V1_0),
    OperandType.TENSOR_OEM_BYTE: TypeRules(_V1_0),
}
EXTENSION_RULES = TypeRules(_V1_2)


def check_quantization(operand: Operand, rules: TypeRules) -> None:
    """Check scale and zero point.

    :raises InvalidArgumentError: if one is not what the operand's type allows.
    """
    scale, allowed = operand.scale, rules.scale
    # NaN is not within any bounds.
    if not allowed.least <= scale <= allowed.greatest and (
        scale != 0 or not allowed.may_be_zero
    ):
        raise broken("M4", f"scale must be {allowed.words}, is {brief(scale)}")
    least, greatest = rules.least_zero_point, rules.greatest_zero_point
    zero_point = operand.zero_point
    if not isinstance(zero_point, int) or not least <= zero_point <= greatest:
        legal = f"from {least} to {greatest}" if least < greatest else str(least)
        raise broken("M4", f"zero point must be {legal}, is {brief(zero_point)}")


def check_extra_params(operand: Operand) -> None:
    """Check that there are scales per channel where, and only where, they belong.

    :raises InvalidArgumentError: if there aren't, or they don't fit the dimensions.
    """
    extra = operand.extra_params
    if operand.type == _PER_CHANNEL:
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
    if not is_integer(quant.channel_dim, 0, rank - 1):
        raise broken("M4", f"channel axis {brief(quant.channel_dim)} of rank {rank}")
    channels = operand.dimensions[quant.channel_dim]
    if channels == 0 or len(quant.scales) != channels:
        raise broken("M4", f"{len(quant.scales)} scales for {channels} channels")
    if _are_positive(quant.scales):
        return
    for channel, scale in enumerate(quant.scales):
        if not _FLOAT32_TINIEST <= scale <= _FLOAT32_MAX:
            raise broken(
                "M4", f"scale of channel {channel} must be positive, is {brief(scale)}"
            )


def _are_positive(scales: Sequence[float]) -> bool:
    """Return whether all are legal, in a fraction of a look at each; False in doubt."""
    try:
        numbers = np.frombuffer(struct.pack(f"{len(scales)}d", *scales))
    except struct.error:  # one is no number, or a very large one
        return False
    # NaN would be both the least and the greatest.
    return bool(numbers.min() >= _FLOAT32_TINIEST and numbers.max() <= _FLOAT32_MAX)


_LIFETIMES = frozenset(OperandLifeTime)
_COPY = OperandLifeTime.CONSTANT_COPY
_REFERENCE = OperandLifeTime.CONSTANT_REFERENCE
_BODY = OperandLifeTime.SUBGRAPH
_CONSTANTS = frozenset({_COPY, _REFERENCE})
_SUBGRAPH = OperandType.SUBGRAPH
_RANKLESS = SCALAR_TYPES | {_SUBGRAPH}
_OEM = frozenset({OperandType.OEM, OperandType.TENSOR_OEM_BYTE})
_MAX_KINDS = 4096

_Kind: TypeAlias = tuple[int, Dimensions, float, int, int, ExtraParams, int, int]
"""All of an operand that is checked, but its offset: pool and length come last."""

_Verdict: TypeAlias = tuple[Form, int]
"""The form of operands of a kind, and the greatest offset that they may have."""


class _Facts(msgspec.Struct, frozen=True):
    """What the rules ask of a type; ``element_size`` is 0 where none is known."""

    rules: TypeRules
    element_size: int = 0
    has_rank: bool = True
    is_sized: bool = False
    is_oem: bool = False
    is_extension: bool = False


_EXTENSION = _Facts(EXTENSION_RULES, is_extension=True)


@cache
def _types_of(version: HalVersion) -> dict[int, _Facts]:
    return {
        type_: _Facts(
            rules,
            element_size_bytes(type_),
            has_rank=type_ not in _RANKLESS,
            is_sized=type_ not in _OEM,
            is_oem=type_ in _OEM,
        )
        for type_, rules in TYPE_RULES.items()
        if rules.since <= version
    }


class OperandRules:
    """The rules for operands of one model; its pools have been checked already.

    Operands of a kind that was seen before are only looked up. ``saw_odd`` says
    whether some have fields of other Python types than declared: those are checked
    one by one, because what equals a legal operand need not be one.
    """

    def __init__(self, model: Model, version: HalVersion) -> None:
        self._version = version
        self._types = _types_of(version)
        is_old = version < HalVersion.V1_3
        self._lifetimes = _LIFETIMES - {_BODY} if is_old else _LIFETIMES
        self._prefixes = frozenset(
            extension.prefix for extension in model.extension_name_to_prefix
        )
        self._operand_values_size = len(model.operand_values)
        self._pool_sizes = tuple(pool.size for pool in model.pools)
        self._referenced_count = len(model.referenced)
        self._verdicts: dict[_Kind, _Verdict] = {}
        self.saw_odd = False

    def checking(
        self, operands: Sequence[Operand]
    ) -> Generator[None, None, list[Form]]:
        """Check M2 to M7 of ``operands``, slice by slice; return their forms.

        :raises InvalidArgumentError: if a rule is broken.
        """
        forms: list[Form] = []
        for start in range(0, len(operands), SLICE):
            part = operands[start : start + SLICE]
            found = self._prescan(part) or self._inspect(part, start)
            forms += [form for form, _ in found]
            yield
        return forms

    def greatest_offset(self, operands: Sequence[Operand], index: int) -> int:
        """Check M2 to M7 of one operand; return the greatest offset of such operands.

        :raises InvalidArgumentError: if a rule is broken.
        """
        part = (operands[index],)
        ((_, greatest),) = self._prescan(part) or self._inspect(part, index)
        return greatest

    def _prescan(self, operands: Sequence[Operand]) -> list[_Verdict] | None:
        """Return verdicts on operands that are all right, None in any doubt."""
        verdicts = self._verdicts
        found: list[_Verdict] = []
        # A sum of integers is an integer, whatever else takes part makes it something
        # else. To ask each number would take longer than all the rest.
        numbers = 0
        try:
            for operand in operands:
                dimensions = operand.dimensions
                zero_point = operand.zero_point
                location = operand.location
                pool_index, offset = location.pool_index, location.offset
                length = location.length
                kind = (
                    operand.type,
                    dimensions,
                    operand.scale,
                    zero_point,
                    operand.lifetime,
                    extra := operand.extra_params,
                    pool_index,
                    length,
                )
                if type(extra) is SymmPerChannelQuantParams:
                    numbers += extra.channel_dim
                elif extra is not None and type(extra) is not bytes:
                    return None
                verdict = verdicts.get(kind)
                if verdict is None:
                    verdict = self.check(operand)
                    # To find scales per channel again takes as long as to check them.
                    if type(extra) is not SymmPerChannelQuantParams:
                        self._remember(kind, verdict)
                if not 0 <= offset <= verdict[1]:
                    return None
                found.append(verdict)
                numbers += zero_point + pool_index + offset + length
            numbers += sum(chain.from_iterable([each.dimensions for each in operands]))
        except (AttributeError, InvalidArgumentError, TypeError, ValueError):
            return None
        return found if type(numbers) is int else None

    def _remember(self, kind: _Kind, verdict: _Verdict) -> None:
        if len(self._verdicts) >= _MAX_KINDS:
            self._verdicts.clear()
        self._verdicts[kind] = verdict

    def _inspect(self, operands: Sequence[Operand], start: int) -> list[_Verdict]:
        self.saw_odd = True
        found: list[_Verdict] = []
        for index, operand in enumerate(operands, start):
            try:
                found.append(self.check(operand))
            except InvalidArgumentError as error:
                name = operand_type_name(operand.type)
                raise located(f"operand {index} ({name})", error) from None
        return found

    def check(self, operand: Operand) -> _Verdict:
        """Check M2 to M7; return the form, and the greatest offset of such operands.

        :raises InvalidArgumentError: if a rule is broken.
        """
        type_, lifetime = operand.type, operand.lifetime
        facts = self._types.get(type_) or self._extension_facts(type_)
        if lifetime not in self._lifetimes:
            raise broken(
                "M7", f"{self._version.title} has no lifetime {brief(lifetime)}"
            )
        if (lifetime == _BODY) != (type_ == _SUBGRAPH):
            raise broken("M7", "type and lifetime must both be SUBGRAPH or neither")
        is_constant = lifetime in _CONSTANTS
        size = self._check_dimensions(operand, facts, is_constant)
        if not facts.is_oem:
            check_quantization(operand, facts.rules)
            if operand.extra_params is not None or type_ == _PER_CHANNEL:
                check_extra_params(operand)
        location = operand.location
        greatest = self._check_location(lifetime, location)
        if is_constant and facts.is_sized and location.length != size:
            raise broken(
                "M6", f"the constant has {location.length} bytes, expected {size}"
            )
        return form_of(type_, operand.dimensions, lifetime), greatest

    def check_extension_prefix(self, type_: int, rule: str) -> None:
        """Check that the model names the extension of an operand or operation type.

        :raises InvalidArgumentError: if it doesn't, or the version has no extensions.
        """
        if type_ > UINT32_MAX or self._version < EXTENSION_RULES.since:
            raise broken(rule, f"{brief(type_)} is not a type of {self._version.title}")
        if type_ >> 16 not in self._prefixes:
            raise broken(rule, f"the model names no extension of prefix {type_ >> 16}")

    def _extension_facts(self, type_: int) -> _Facts:
        if not is_extension_type(type_):
            raise broken("M2", f"{self._version.title} has no such operand type")
        self.check_extension_prefix(type_, "M2")
        return _EXTENSION

    def _check_dimensions(
        self, operand: Operand, facts: _Facts, is_constant: bool
    ) -> int:
        """Check them; return the bytes of a value, 0 where they do not follow."""
        dimensions, size = operand.dimensions, facts.element_size
        if not facts.has_rank:
            if dimensions:
                raise broken("M3", f"a scalar cannot have rank {len(dimensions)}")
            return size
        if len(dimensions) > RANK_MAX:
            raise broken("M3", f"{brief(dimensions)} are not legal dimensions")
        for axis in dimensions:
            if not isinstance(axis, int) or not 0 <= axis <= UINT32_MAX:
                raise broken("M3", f"{brief(dimensions)} are not legal dimensions")
            size *= axis
        if facts.is_extension:
            return 0
        if not dimensions and self._version < _V1_2:
            raise broken("M3", f"{self._version.title} demands a known rank")
        if is_constant and (not dimensions or 0 in dimensions):
            raise broken("M6", f"a constant has open dimensions {brief(dimensions)}")
        if dimensions and size > UINT32_MAX:
            return checked_size_bytes(operand.type, dimensions, "M6")
        return size

    def _check_location(self, lifetime: int, location: DataLocation) -> int:
        """Check it; return the greatest offset that would be legal with the rest."""
        pool_index, offset = location.pool_index, location.offset
        length = location.length
        if not (
            isinstance(pool_index, int)
            and isinstance(offset, int)
            and isinstance(length, int)
            and 0 <= pool_index <= UINT32_MAX
            and 0 <= offset <= UINT32_MAX
            and 0 <= length <= UINT32_MAX
        ):
            raise broken("M5", f"{brief(location)} does not fit in 32 bits")
        if lifetime == _COPY:
            if pool_index:
                raise broken("M5", f"CONSTANT_COPY has no pool {pool_index}")
            return _check_span(
                location, self._operand_values_size, "the operand values"
            )
        if lifetime == _REFERENCE:
            if pool_index >= len(self._pool_sizes):
                raise broken(
                    "M5", f"pool {pool_index} of {len(self._pool_sizes)} pools"
                )
            size = self._pool_sizes[pool_index]
            return _check_span(location, size, f"pool {pool_index}")
        if lifetime == _BODY:
            if pool_index or length:
                raise broken("M5", "a SUBGRAPH has neither pool nor length")
            if offset >= self._referenced_count:
                raise broken(
                    "M5", f"subgraph {offset} of {self._referenced_count} referenced"
                )
            return self._referenced_count - 1
        if pool_index or offset or length:
            raise broken("M5", "only constants and subgraphs have a location")
        return 0


def _check_span(location: DataLocation, size: int, where: str) -> int:
    end = location.offset + location.length
    if end > size:
        raise broken(
            "M5",
            f"bytes {location.offset} to {end} are not within the {size} of {where}",
        )
    return min(size - location.length, UINT32_MAX)
