"""Mutations of operands: their types, ranks, quantisation, lifetimes and consumers."""

from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.tools.conformance.mutations.legal import why_operand_goes, why_type_fits
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    Mutants,
    Row,
    can_be_constant,
    replaced,
    with_lifetime,
    with_listed_lifetime,
    with_main,
    with_operand,
    without_operand,
)

_TEMPORARY = hal.OperandLifeTime.TEMPORARY_VARIABLE
_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = hal.OperandLifeTime.SUBGRAPH_OUTPUT
_COPY = hal.OperandLifeTime.CONSTANT_COPY
_REFERENCE = hal.OperandLifeTime.CONSTANT_REFERENCE
_WRITTEN = (_TEMPORARY, _OUTPUT)
_GIVEN = (_COPY, _REFERENCE, _INPUT)
_SAME_WRITER: dict[int, hal.OperandLifeTime] = {
    _COPY: _INPUT,
    _REFERENCE: _INPUT,
    _OUTPUT: _TEMPORARY,
    _TEMPORARY: _OUTPUT,
}

_I32 = hal.OperandType.TENSOR_INT32
_Q8PC = hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_RANKLESS = (*SCALAR_TYPES, hal.OperandType.SUBGRAPH)
_OEM = (hal.OperandType.OEM, hal.OperandType.TENSOR_OEM_BYTE)
_TYPES = [type_ for type_ in hal.OperandType if type_ not in _OEM]
_BAD_ZERO_POINTS_OF_QUANTISED = {
    hal.OperandType.TENSOR_QUANT8_ASYMM: (-1, 256),
    hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    hal.OperandType.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
    hal.OperandType.TENSOR_QUANT16_ASYMM: (-1, 65536),
    hal.OperandType.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
}
_BAD_ZERO_POINTS = dict.fromkeys(_TYPES, (1,)) | _BAD_ZERO_POINTS_OF_QUANTISED
_FIRST_MISSING_TYPE = {
    hal.HalVersion.V1_0: hal.OperandType.BOOL,
    hal.HalVersion.V1_1: hal.OperandType.BOOL,
    hal.HalVersion.V1_2: hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}
_AFTER_LAST_TYPE = max(_TYPES) + 1


def _unknown_types(model: hal.Model, version: hal.HalVersion) -> Mutants:
    missing = _FIRST_MISSING_TYPE.get(version, _AFTER_LAST_TYPE)
    for index in range(len(model.main.operands)):
        for type_ in (0xFFFF_FFFF, missing, 9999, 10002):
            changed = with_operand(model, index, type=int(type_))
            yield Mutant(f"operand {index} of type {type_}", changed)


def _wrong_ranks(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        if operand.type in _RANKLESS:
            changed = with_operand(model, index, dimensions=(0,))
            yield Mutant(f"scalar {index} of rank 1", changed)
        elif version < hal.HalVersion.V1_2:
            changed = with_operand(model, index, dimensions=())
            yield Mutant(f"tensor {index} of rank 0", changed)


def _wrong_scales(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        scale = 0.0 if operand.type in _BAD_ZERO_POINTS_OF_QUANTISED else 1.0
        if operand.type == _I32:
            scale = -1.0
        changed = with_operand(model, index, scale=scale)
        yield Mutant(f"operand {index} with scale {scale}", changed)


def _wrong_zero_points(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        for bad in _BAD_ZERO_POINTS[hal.OperandType(operand.type)]:
            changed = with_operand(model, index, zero_point=bad)
            yield Mutant(f"operand {index} with zero point {bad}", changed)


def _lifetimes_of_other_writers(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        lifetimes: tuple[hal.OperandLifeTime, ...] = ()
        if operand.lifetime in _WRITTEN:
            lifetimes = (_INPUT, _COPY) if can_be_constant(operand) else (_INPUT,)
        elif operand.lifetime in _GIVEN:
            lifetimes = _WRITTEN
        for lifetime in lifetimes:
            changed = with_listed_lifetime(model, index, lifetime)
            yield Mutant(f"operand {index} becomes {lifetime.name}", changed)


def _unlisted_lifetimes(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        lifetime = _SAME_WRITER.get(operand.lifetime)
        if operand.lifetime == _INPUT and can_be_constant(operand):
            lifetime = _COPY
        if lifetime is not None:
            changed = with_lifetime(model, index, lifetime)
            yield Mutant(f"operand {index} becomes {lifetime.name} unlisted", changed)


def _miscounted_consumers(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        count = operand.number_of_consumers
        for wrong in (count - 1, count + 1) if count else (1,):
            changed = with_operand(model, index, number_of_consumers=wrong)
            yield Mutant(f"{wrong} consumers of operand {index}", changed)


def _other_types(model: hal.Model, version: hal.HalVersion) -> Mutants:
    operands = model.main.operands
    for index, operand in enumerate(operands):
        for type_ in _TYPES:
            if type_ != operand.type:
                retyped = replaced(operands, index, _retyped(operand, type_))
                yield Mutant(
                    f"operand {index} becomes {type_.name}",
                    with_main(model, operands=retyped),
                    may_pass=why_type_fits(model, index, type_),
                )


def _removed_operands(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index in range(len(model.main.operands)):
        yield Mutant(
            f"operand {index} is removed",
            without_operand(model, index),
            may_pass=why_operand_goes(model, index),
        )


OPERAND_ROWS = (
    Row("VM3", "an operand has a type that is none", _unknown_types),
    Row("VM4", "a scalar has a rank, a tensor has none", _wrong_ranks),
    Row("VM5", "an operand has a wrong scale", _wrong_scales),
    Row("VM6", "an operand has a wrong zero point", _wrong_zero_points),
    Row("VM7", "a lifetime gains or loses a writer", _lifetimes_of_other_writers),
    Row("VM8", "a lifetime changes, but not the lists", _unlisted_lifetimes),
    Row("VM9", "consumers are miscounted", _miscounted_consumers),
    Row("VM11", "an operand has another type", _other_types),
    Row("VM16", "an operand is removed", _removed_operands),
)


def _retyped(operand: hal.Operand, type_: hal.OperandType) -> hal.Operand:
    """Return ``operand`` with another type, consistent in itself."""
    dimensions = operand.dimensions or (1,)
    changed = replace(operand, type=type_, extra_params=None)
    if type_ in SCALAR_TYPES:
        return replace(changed, dimensions=(), scale=0.0, zero_point=0)
    if type_ == _I32:
        return replace(changed, dimensions=dimensions, zero_point=0)
    if type_ in _BAD_ZERO_POINTS_OF_QUANTISED:
        return replace(changed, dimensions=dimensions, scale=operand.scale or 1.0)
    if type_ == _Q8PC:
        extra = hal.SymmPerChannelQuantParams((1.0,) * dimensions[0], 0)
        changed = replace(changed, extra_params=extra)
    return replace(changed, dimensions=dimensions, scale=0.0, zero_point=0)
