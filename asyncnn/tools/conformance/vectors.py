"""Reads conformance vectors: models with their inputs and expected outputs.

Source: the test suite's specifications (``runtime/test/specs``), one gzip-compressed
JSON file for each; the folder that a file lies in names the HAL it was written for.
"""

import gzip
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
    SymmPerChannelQuantParams,
)
from asyncnn.input_files import call_abandonable, in_one, read_input

_ALIGNMENT = 4
_CTS_ONLY = "_cts_only"
_WRONG = (gzip.BadGzipFile, EOFError, zlib.error, LookupError, ValueError, TypeError)
_Number: TypeAlias = int | float | Literal["nan", "inf", "-inf"]


class ExpectedOutput(msgspec.Struct, frozen=True, eq=False):
    """What one output must be; the values of an ``ignored`` one are not compared.

    ``value`` has the dtype of the operand type; its shape is the exact shape.
    """

    value: Array
    ignored: bool


class Case(msgspec.Struct, frozen=True, eq=False):
    """One model with one set of inputs and the outputs that it must give.

    ``folder`` is the release the specification was written in. An input of None is
    omitted. ``multinomial_tolerance`` is 0 unless the output is random.
    """

    spec: str
    folder: str
    name: str
    min_hal: HalVersion | None
    declared_hal: HalVersion | None
    expect_failure: bool
    relaxed: bool
    model: Model
    inputs: tuple[Array | None, ...]
    outputs: tuple[ExpectedOutput, ...]
    multinomial_tolerance: float = 0.0

    @property
    def release(self) -> HalVersion:
        """HAL version that the specification was written for; its folder's name."""
        return HalVersion[self.folder.removesuffix(_CTS_ONLY)]

    @property
    def hal(self) -> HalVersion:
        """Lowest HAL version that the model is valid for.

        The suite promises none for relaxed models; they need what they declare, and
        at least V1_1. Where nothing is declared either, the release decides. For some
        layouts and axes of V1_2 the suite promises too much: a V1_0 without BOOL.
        """
        if self.min_hal is not None:
            return self.min_hal
        declared = self.declared_hal or self.release
        return max(declared, HalVersion.V1_1) if self.relaxed else declared


class _RawQuant(msgspec.Struct):
    scales: tuple[float, ...]
    channel_dim: int


class _RawOperand(msgspec.Struct):
    type: str
    dims: tuple[int, ...]
    scale: float
    zero_point: int
    lifetime: str
    channel_quant: _RawQuant | None
    value: list[_Number] | int | None


class _RawOperation(msgspec.Struct):
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class _RawModel(msgspec.Struct):
    operands: list[_RawOperand]
    operations: list[_RawOperation]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class _RawOutput(msgspec.Struct):
    values: list[_Number]
    dims: tuple[int, ...]
    ignored: bool


class _RawCase(msgspec.Struct):
    name: str
    min_hal: str
    declared_hal: str
    expect_failure: bool
    relaxed: bool
    main: _RawModel
    referenced: list[_RawModel]
    outputs: list[_RawOutput]
    multinomial_tolerance: float


class _RawSpec(msgspec.Struct):
    spec: str
    hal: str
    cases: list[_RawCase]


def find_specs(directory: Path) -> list[Path]:
    """Return the vector files below ``directory``, sorted."""
    what = f"looking into {directory}"
    return call_abandonable(what, in_one(sorted, directory.rglob("*.json.gz")))


def load_cases(path: Path) -> list[Case]:
    """Read every case of one vector file, in order.

    :raises OSError: if the file cannot be read.
    :raises InvalidArgumentError: if it does not hold a specification.
    """
    try:
        spec = msgspec.json.decode(gzip.decompress(read_input(path)), type=_RawSpec)
        return [_case(spec, raw) for raw in spec.cases]
    except (*_WRONG, msgspec.DecodeError) as error:
        raise InvalidArgumentError(
            f"{path}: not a file of vectors ({error})"
        ) from error


def operation_types(case: Case) -> frozenset[OperationType]:
    """Return the types of all operations of a case, referenced subgraphs included."""
    subgraphs = (case.model.main, *case.model.referenced)
    return frozenset(
        OperationType(operation.type)
        for subgraph in subgraphs
        for operation in subgraph.operations
    )


def _case(spec: _RawSpec, raw: _RawCase) -> Case:
    operands = raw.main.operands
    model = _ModelBuilder(relaxed=raw.relaxed).build(raw.main, raw.referenced)
    return Case(
        spec=spec.spec,
        folder=spec.hal,
        name=raw.name,
        min_hal=_version(raw.min_hal),
        declared_hal=_version(raw.declared_hal),
        expect_failure=raw.expect_failure,
        relaxed=raw.relaxed,
        model=model,
        inputs=tuple(_input(operands[index]) for index in raw.main.inputs),
        outputs=tuple(
            ExpectedOutput(
                _array(operands[index].type, output.values, output.dims), output.ignored
            )
            for index, output in zip(raw.main.outputs, raw.outputs, strict=True)
        ),
        multinomial_tolerance=raw.multinomial_tolerance,
    )


def _version(name: str) -> HalVersion | None:
    return None if name == "UNKNOWN" else HalVersion[name]


def _input(operand: _RawOperand) -> Array | None:
    if not isinstance(operand.value, list) or not operand.value:
        return None
    return _array(operand.type, operand.value, operand.dims)


def _array(type_name: str, values: list[_Number], dims: Shape) -> Array:
    type_ = OperandType[type_name]
    shape = () if type_ in SCALAR_TYPES else dims
    return np.array(values, np.float64).astype(DTYPES[type_]).reshape(shape)


class _ModelBuilder:
    """Lays the constants of all subgraphs out as the test suite does."""

    def __init__(self, *, relaxed: bool) -> None:
        self._relaxed = relaxed
        self._copied = bytearray()
        self._pooled = bytearray()

    def build(self, main: _RawModel, referenced: list[_RawModel]) -> Model:
        subgraphs = [self._subgraph(raw) for raw in (main, *referenced)]
        pool = memoryview(bytes(self._pooled))
        return Model(
            main=subgraphs[0],
            referenced=tuple(subgraphs[1:]),
            operand_values=bytes(self._copied),
            pools=(Memory("ashmem", len(pool), buffer=pool),) if pool else (),
            relax_computation_float32_to_float16=self._relaxed,
        )

    def _subgraph(self, raw: _RawModel) -> Subgraph:
        consumers = Counter(
            index for operation in raw.operations for index in operation.inputs
        )
        return Subgraph(
            operands=tuple(
                self._operand(operand, consumers[index])
                for index, operand in enumerate(raw.operands)
            ),
            operations=tuple(
                Operation(OperationType[op.type], op.inputs, op.outputs)
                for op in raw.operations
            ),
            input_indexes=raw.inputs,
            output_indexes=raw.outputs,
        )

    def _operand(self, raw: _RawOperand, consumers: int) -> Operand:
        lifetime = OperandLifeTime[raw.lifetime]
        quant = raw.channel_quant
        return Operand(
            type=OperandType[raw.type],
            dimensions=raw.dims,
            number_of_consumers=consumers,
            scale=raw.scale,
            zero_point=raw.zero_point,
            lifetime=lifetime,
            location=self._location(raw, lifetime),
            extra_params=(
                SymmPerChannelQuantParams(quant.scales, quant.channel_dim)
                if quant
                else None
            ),
        )

    def _location(self, raw: _RawOperand, lifetime: OperandLifeTime) -> DataLocation:
        value: Any = raw.value
        match lifetime:
            case OperandLifeTime.SUBGRAPH:
                return DataLocation(offset=value)
            case OperandLifeTime.CONSTANT_COPY:
                return _append(self._copied, _array(raw.type, value, raw.dims))
            case OperandLifeTime.CONSTANT_REFERENCE:
                return _append(self._pooled, _array(raw.type, value, raw.dims))
            case _:
                return DataLocation()


def _append(data: bytearray, value: Array) -> DataLocation:
    data.extend(bytes(-len(data) % _ALIGNMENT))
    location = DataLocation(offset=len(data), length=value.nbytes)
    data.extend(value.tobytes())
    return location
