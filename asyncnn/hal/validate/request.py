"""Checks requests against the model that they execute: rules R1 to R7.

Source: HAL 1.0 to 1.3/types.hal (Request, RequestArgument) and 1.3/IPreparedModel.hal.
"""

from collections.abc import Sequence

import msgspec

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operands import is_opaque_type, is_scalar, size_of_data_bytes
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Dimensions,
    Memory,
    Model,
    Operand,
    OperandType,
    Request,
    RequestArgument,
    Subgraph,
)
from asyncnn.hal.validate.rules import (
    HARDWARE_BUFFER,
    RANK_MAX,
    brief,
    broken,
    checked_size_bytes,
    is_uint32,
    located,
    operand_type_name,
    validate_memory,
)

_NOWHERE = DataLocation()
_OPAQUE = -1
"""Stands for the size of pools that an argument can only use as a whole."""

_BUFFER = -2
"""Stands for the size of device-managed buffers, which are used as a whole, too."""

ONNX_REGIONS, LITERT_REGIONS = "org.asyncnn.onnx", "org.asyncnn.litert"
"""Extensions for models of which requests may give inputs axes of length 0.

Elsewhere such a length is unspecified.
"""

_UNSIZED = frozenset({OperandType.OEM, OperandType.TENSOR_OEM_BYTE})


class RequestRules:
    """The rules for requests of one validated model, ready for many requests."""

    def __init__(self, model: Model) -> None:
        main = model.main
        used = {each.name for each in model.extension_name_to_prefix}
        may_be_empty = not used.isdisjoint({ONNX_REGIONS, LITERT_REGIONS})
        self._inputs = tuple(
            _ArgumentRules.of("input", position, main.operands[index], may_be_empty)
            for position, index in enumerate(main.input_indexes)
        )
        self._outputs = tuple(
            _ArgumentRules.of("output", position, main.operands[index])
            for position, index in enumerate(main.output_indexes)
        )

    def check(self, request: Request, *, allow_unspecified_output: bool = True) -> None:
        """Check ``request``; shapes of outputs may stay open if the flag allows it.

        Then an output that is too short is not found here, as the execution has a way
        to report it. Otherwise it has none: such an output breaks a rule.

        :raises InvalidArgumentError: if a rule is broken.
        """
        try:
            self._check(request, allow_unspecified_output)
        except AsyncnnError:  # some are a ValueError as well
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"malformed request: {error}") from error

    def _check(self, request: Request, allow_unspecified_output: bool) -> None:
        _check_count("inputs", len(request.inputs), len(self._inputs))
        _check_count("outputs", len(request.outputs), len(self._outputs))
        pool_sizes = [_pool_size(i, pool) for i, pool in enumerate(request.pools)]
        for rules, argument in zip(self._inputs, request.inputs, strict=True):
            if not rules.is_plain(argument, pool_sizes):
                rules.check(argument, pool_sizes, allow_open=False)
        for rules, argument in zip(self._outputs, request.outputs, strict=True):
            if not rules.is_plain(argument, pool_sizes):
                rules.check(argument, pool_sizes, allow_open=allow_unspecified_output)


def signature_of(model: Model) -> Model:
    """Return a model of which `RequestRules` are the same, and which does nothing."""
    main = model.main
    indexes = (*main.input_indexes, *main.output_indexes)
    count = len(main.input_indexes)
    return Model(
        Subgraph(
            operands=tuple(main.operands[index] for index in indexes),
            operations=(),
            input_indexes=tuple(range(count)),
            output_indexes=tuple(range(count, len(indexes))),
        ),
        extension_name_to_prefix=model.extension_name_to_prefix,
    )


def plain_arguments(
    sizes: Sequence[int], inputs: int
) -> tuple[tuple[RequestArgument, ...], tuple[RequestArgument, ...]]:
    """Return inputs and outputs of so many bytes each, in pools of their own."""
    plain = tuple(
        RequestArgument(False, DataLocation(index, 0, size), ())
        for index, size in enumerate(sizes)
    )
    return plain[:inputs], plain[inputs:]


def plain_request(model: Model) -> Request | None:
    """Return a request with a pool for each argument, which are left out.

    None if the model leaves a shape open.
    """
    main = model.main
    operands = [main.operands[i] for i in (*main.input_indexes, *main.output_indexes)]
    if any(operand.type in _UNSIZED for operand in operands):
        return None
    sizes = [size_of_data_bytes(each.type, each.dimensions) for each in operands]
    if not all(sizes):
        return None
    return Request(*plain_arguments(sizes, len(main.input_indexes)), ())


def validate_request(
    request: Request, model: Model, *, allow_unspecified_output: bool = True
) -> None:
    """Check one request for a validated model; see `RequestRules.check`.

    :raises InvalidArgumentError: if a rule is broken.
    """
    RequestRules(model).check(
        request, allow_unspecified_output=allow_unspecified_output
    )


class _ArgumentRules(msgspec.Struct, frozen=True):
    """One input or output of the model.

    ``fixed_length`` is the size in bytes, None if the model leaves the shape open.
    """

    kind: str
    position: int
    operand: Operand
    fixed_length: int | None
    may_be_empty: bool

    @classmethod
    def of(
        cls, kind: str, position: int, operand: Operand, may_be_empty: bool = False
    ) -> "_ArgumentRules":
        """Return the slot of an operand of a validated model."""
        size = 0
        if operand.type not in _UNSIZED:
            size = size_of_data_bytes(operand.type, operand.dimensions)
        return cls(kind, position, operand, size or None, may_be_empty)

    def is_plain(self, argument: RequestArgument, pool_sizes: Sequence[int]) -> bool:
        """Return whether the argument is of the kind nearly all are, and correct.

        That is: exactly as long as the model says, with nothing else said, in a pool
        of known size. Anything else is left to `check`.
        """
        location = argument.location
        offset, length = location.offset, location.length
        return (
            type(length) is type(offset) is int
            and length == self.fixed_length
            and not argument.has_no_value
            and not argument.dimensions
            and 0 <= location.pool_index < len(pool_sizes)
            and 0 <= offset <= pool_sizes[location.pool_index] - length
        )

    def check(
        self, argument: RequestArgument, pool_sizes: Sequence[int], *, allow_open: bool
    ) -> None:
        """Check R2 to R5 and R7."""
        try:
            if argument.has_no_value:
                if argument.location != _NOWHERE or argument.dimensions:
                    raise broken(
                        "R2", "an omitted argument has a location or dimensions"
                    )
            else:
                _check_location(argument.location, pool_sizes)
                size = pool_sizes[argument.location.pool_index]
                # The buffer of an input knows the shape of what it holds.
                is_open = allow_open or (size == _BUFFER and self.kind == "input")
                self._check_dimensions(argument.dimensions, allow_open=is_open)
                if size >= 0:
                    self._check_length(argument, allow_short=allow_open)
        except InvalidArgumentError as error:
            name = operand_type_name(self.operand.type)
            raise located(f"{self.kind} {self.position} ({name})", error) from None

    def _check_dimensions(self, given: Dimensions, *, allow_open: bool) -> None:
        if given:
            self._check_given(given)
        if not allow_open:
            self._check_specified(given)

    def _check_given(self, given: Dimensions) -> None:
        declared = self.operand.dimensions
        if is_scalar(self.operand.type) or len(declared) not in (0, len(given)):
            raise broken(
                "R4", f"rank is {len(declared)}, the request says {len(given)}"
            )
        if len(given) > RANK_MAX or not all(map(is_uint32, given)):
            raise broken("R4", f"{brief(given)} are not legal dimensions")
        for axis, (length, said) in enumerate(zip(declared, given, strict=False)):
            if length not in (0, said):
                raise broken("R4", f"axis {axis} is {length}, the request says {said}")

    def _check_specified(self, given: Dimensions) -> None:
        dimensions = given or self.operand.dimensions
        has_rank = (
            dimensions
            or is_scalar(self.operand.type)
            or is_opaque_type(self.operand.type)
        )
        is_open = 0 in dimensions and not (given and self.may_be_empty)
        if not has_rank or is_open:
            raise broken(
                "R5", f"dimensions {brief(dimensions)} are not fully specified"
            )

    def _check_length(self, argument: RequestArgument, *, allow_short: bool) -> None:
        type_, given = self.operand.type, argument.dimensions
        is_output = self.kind == "output"
        if type_ in _UNSIZED or is_opaque_type(type_) or (is_output and allow_short):
            return
        length = argument.location.length
        dimensions = given or self.operand.dimensions
        expected = checked_size_bytes(type_, dimensions, "R7")
        if length < expected or (length > expected and not is_output):
            raise broken("R7", f"length is {length} bytes, expected {expected}")


def _check_count(what: str, given: int, expected: int) -> None:
    if given != expected:
        raise broken("R1", f"the request has {given} {what}, the model {expected}")


def _pool_size(position: int, pool: Memory | BufferToken) -> int:
    try:
        if isinstance(pool, Memory):
            validate_memory(pool, rule="R6")
            return _OPAQUE if pool.name == HARDWARE_BUFFER else pool.size
        if not is_uint32(pool.token) or not pool.token:
            raise broken("R6", f"{brief(pool.token)} is not a token of a buffer")
    except InvalidArgumentError as error:
        raise located(f"pool {position}", error) from None
    return _BUFFER


def _check_location(location: DataLocation, pool_sizes: Sequence[int]) -> None:
    for name, number in (
        ("pool", location.pool_index),
        ("offset", location.offset),
        ("length", location.length),
    ):
        if not is_uint32(number):
            raise broken("R3", f"{name} is {brief(number)}")
    if location.pool_index >= len(pool_sizes):
        raise broken("R3", f"pool {location.pool_index} of {len(pool_sizes)}")
    size = pool_sizes[location.pool_index]
    end = location.offset + location.length
    if end > max(size, 0):
        raise broken(
            "R3",
            f"bytes {location.offset} to {end} are not within the "
            f"{max(size, 0)} of pool {location.pool_index}",
        )
