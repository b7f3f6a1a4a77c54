"""HAL operations as they are drafted, before a builder gets them.

Each `Value` is a tensor with the shape that the file gives it, rank 0 included, and
knows what produces it. Operations whose results nothing needs are never built: a
converter may draft the float form of what a quantised form replaces later.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, AnyOperationType
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.operations.check import check_operands
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.axes import dimensions_of
from asyncnn.runtime.unsupported import UnsupportedOperatorError

F16, F32 = OperandType.TENSOR_FLOAT16, OperandType.TENSOR_FLOAT32
I32, B8 = OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8C = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


HAL_TYPES: dict[np.dtype[Any], OperandType] = {
    np.dtype(np.float32): OperandType.TENSOR_FLOAT32,
    np.dtype(np.float16): OperandType.TENSOR_FLOAT16,
    np.dtype(np.int32): OperandType.TENSOR_INT32,
    np.dtype(np.int64): OperandType.TENSOR_INT32,
    np.dtype(np.bool_): OperandType.TENSOR_BOOL8,
    np.dtype(np.uint8): OperandType.TENSOR_QUANT8_ASYMM,
    np.dtype(np.int8): OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}
"""What tensors become in the HAL. Bytes have scale 1 unless more is known of them."""


class Form(msgspec.Struct, frozen=True):
    """Type and quantisation of a tensor."""

    type: OperandType
    scale: float = 0.0
    zero_point: int = 0
    channels: SymmPerChannelQuantParams | None = None

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> "Form":
        """Return the form of plain elements of ``dtype``: bytes have scale 1."""
        type_ = HAL_TYPES[np.dtype(dtype)]
        return cls(type_, 1.0 if type_ in (Q8, Q8S) else 0.0)


FIXED_SCALES = {
    OperationType.LOGISTIC: (1 / 256, -128),
    OperationType.SOFTMAX: (1 / 256, -128),
    OperationType.TANH: (1 / 128, 0),
    OperationType.L2_NORMALIZATION: (1 / 128, 0),
}
"""Scale and int8 zero point that the HAL prescribes for the output."""


def fixed_form(type_: OperationType, bytes_: OperandType) -> Form:
    """Return the only form in which an operation may have a result of such bytes."""
    scale, zero_point = FIXED_SCALES[type_]
    return Form(bytes_, scale, zero_point + (128 if bytes_ == Q8 else 0))


MAX_OPERATIONS = 1 << 18
"""Most operations of a draft, those that are not needed included."""


class Value:
    """A tensor of the draft, the same object wherever it is read.

    ``data`` are its elements if they are known, in the dtype and shape of ONNX. If it
    ``is_run_shaped``, only a run shows the lengths that are 0 in ``opened``, and 1 in
    ``shape``.
    """

    __slots__ = (
        *("_data", "_source", "dtype", "form", "is_run_shaped", "name", "opened"),
        *("producer", "shape"),
    )

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: Shape,
        form: Form,
        data: Array | Callable[[], Array] | None = None,
        *,
        name: str = "",
        producer: "Drafted | None" = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.form = form
        self.name = name
        self.producer = producer
        self._source: Value | None = None  # not itself: weights would outlast the file
        self.opened: Shape | None = None
        self.is_run_shaped = False
        self._data = data

    def alias(self, shape: Shape, dtype: np.dtype[Any]) -> "Value":
        """Return the same operand of the HAL under another shape or dtype of ONNX."""
        alias = Value(dtype, shape, self.form, name=self.name, producer=self.producer)
        alias._source = self.source
        return alias

    @property
    def source(self) -> "Value":
        """What this is another shape or dtype of, or itself."""
        return self._source or self

    @property
    def data(self) -> Array | None:
        """The elements if they are known before the model runs."""
        if callable(self._data):
            self._data = self._data()
        return self._data

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known, without computing them now."""
        return self._data is not None

    @property
    def dimensions(self) -> Shape:
        """Shape in the HAL; 0 for an axis that requests choose."""
        return self.opened or dimensions_of(self.shape)

    @property
    def rank(self) -> int:
        """Rank in ONNX."""
        return len(self.shape)

    @property
    def type(self) -> OperandType:
        """Type in the HAL."""
        return self.form.type


class Scalar(msgspec.Struct, frozen=True):
    """A scalar argument of an operation."""

    value: float
    type: OperandType


class Omitted(msgspec.Struct, frozen=True):
    """An optional argument of an operation that is left out."""

    type: OperandType


Argument: TypeAlias = "Value | Scalar | Omitted | float | Sequence[int]"
"""What an operation is given; numbers become scalars, sequences vectors of int32."""


class Drafted:
    """An operation of the draft."""

    __slots__ = ("inputs", "outputs", "type")

    def __init__(
        self, type_: AnyOperationType, inputs: tuple["Value | Scalar | Omitted", ...]
    ) -> None:
        self.type: Any = type_
        self.inputs = inputs
        self.outputs: tuple[Value, ...] = ()


class Draft:
    """Collects operations; ``allowance`` bounds what the file does not hold itself."""

    def __init__(self) -> None:
        self.allowance = Allowance()
        self.operations: list[Drafted] = []

    def constant(self, array: Array, name: str = "") -> Value:
        """Return a tensor of known elements; any dtype, even one that HAL lacks."""
        dtype = array.dtype
        form = Form.of(dtype) if dtype in HAL_TYPES else Form(I32)
        return Value(dtype, array.shape, form, array, name=name)

    def quantized(self, codes: Array, form: Form) -> Value:
        """Return a constant whose ``codes`` mean real numbers, as ``form`` says."""
        return Value(codes.dtype, codes.shape, form, codes)

    def emit(
        self,
        type_: OperationType,
        inputs: Sequence[Argument],
        form: Form | None = None,
        shape: Shape | None = None,
        dtype: Any = None,
    ) -> Value:
        """Draft an operation with one output; see `emit_all`."""
        shapes = None if shape is None else (shape,)
        return self.emit_all(type_, inputs, (form,), shapes, (dtype,))[0]

    def emit_all(
        self,
        type_: OperationType,
        inputs: Sequence[Argument],
        forms: Sequence[Form | None],
        shapes: Sequence[Shape] | None = None,
        dtypes: Sequence[Any] | None = None,
    ) -> tuple[Value, ...]:
        """Draft an operation and return its outputs.

        :param forms: of each output; None for the first tensor's.
        :param shapes: what ONNX says of the outputs where the HAL has rank 1 for 0.
        :param dtypes: of each output in ONNX; None for what follows from the form.
        :raises UnsupportedOperatorError: if the HAL has no such operation on these
            types, ranks or values.
        """
        first = next(value for value in inputs if isinstance(value, Value))
        given = tuple([self._argument(value, first) for value in inputs])
        outputs = [form or first.form for form in forms]
        inferred = self._infer(type_, given, outputs)
        self._check(type_, given, outputs, inferred)
        operation = Drafted(type_, given)
        operation.outputs = tuple(
            [
                Value(
                    np.dtype(dtype) if dtype else _dtype(form, first),
                    shape if shapes is None else _same(shapes[index], shape),
                    form,
                    producer=operation,
                )
                for index, (form, shape, dtype) in enumerate(
                    zip(outputs, inferred, dtypes or [None] * len(outputs), strict=True)
                )
            ]
        )
        self.append(operation)
        return operation.outputs

    def append(self, operation: Drafted) -> None:
        """Add an operation with its outputs.

        :raises InvalidArgumentError: if it is one too many.
        """
        if len(self.operations) >= MAX_OPERATIONS:
            raise InvalidArgumentError(f"more than {MAX_OPERATIONS} operations")
        self.operations.append(operation)

    def _argument(self, value: Argument, first: Value) -> Value | Scalar | Omitted:
        match value:
            case Value():
                return value.source
            case Scalar() | Omitted():
                return value
            case bool() | np.bool_():
                return Scalar(bool(value), OperandType.BOOL)
            case int() | np.integer():
                return Scalar(int(value), OperandType.INT32)
            case float() | np.floating():
                half = first.type == F16
                kind = OperandType.FLOAT16 if half else OperandType.FLOAT32
                return Scalar(float(value), kind)
            case _:
                self.allowance.take_elements((len(value),))
                return self.constant(np.array(value, np.int32).reshape(-1))

    def _infer(
        self,
        type_: OperationType,
        inputs: Sequence[Value | Scalar | Omitted],
        forms: Sequence[Form],
    ) -> tuple[Shape, ...]:
        results = [
            BoundOperand(form.type, None, form.scale, form.zero_point) for form in forms
        ]
        bound = BoundOperation(type_, tuple(map(_bound, inputs)), tuple(results))
        try:
            shapes = infer_shapes(bound)
        except ValueNeededError:
            raise UnsupportedOperatorError(
                f"{type_.name} would need a value before it is computed"
            ) from None
        except OperationFailedError as error:
            raise UnsupportedOperatorError(error.message) from error
        found = []
        for shape in shapes:
            if shape is None or 0 in shape:
                raise UnsupportedOperatorError("its result may have no elements")
            found.append(shape or (1,))
        return tuple(found)

    def _check(
        self,
        type_: OperationType,
        inputs: Sequence[Value | Scalar | Omitted],
        forms: Sequence[Form],
        shapes: Sequence[Shape],
    ) -> None:
        results = [
            Operand(form.type, shape, scale=form.scale, zero_point=form.zero_point)
            for form, shape in zip(forms, shapes, strict=True)
        ]
        given = tuple([operand_of(value) for value in inputs])
        try:
            check_operands(type_, given, tuple(results), HalVersion.AIDL_V4)
        except InvalidArgumentError as error:
            raise UnsupportedOperatorError(error.message, hint=error.hint) from error

    def needed(self, outputs: Sequence[Value]) -> list[Drafted]:
        """Return the operations that ``outputs`` depend on, in order."""
        needed: set[Drafted] = set()
        stack = [value.source.producer for value in outputs]
        while stack:
            operation = stack.pop()
            if operation is None or operation in needed:
                continue
            needed.add(operation)
            stack += [
                value.producer
                for value in operation.inputs
                if isinstance(value, Value) and not value.is_constant
            ]
        return [operation for operation in self.operations if operation in needed]

    def release(self) -> None:
        """Let go of constants: operations and their outputs refer to each other."""
        for operation in self.operations:
            operation.inputs = ()


def hal_type(dtype: np.dtype[Any], what: str) -> OperandType:
    """Return the HAL's type for elements of ``dtype``.

    :raises UnsupportedOperatorError: if it has none.
    """
    if dtype not in HAL_TYPES:
        raise UnsupportedOperatorError(
            f"{what} has elements of type {dtype}, which the HAL does not have"
        )
    return HAL_TYPES[dtype]


def hal_array(data: Array, what: str) -> Array:
    """Return ``data`` as the HAL has it: of rank 1 at least, and int32 for int64.

    :raises InvalidArgumentError: if a value is beyond 32 bits.
    """
    if data.dtype == np.int64:
        narrow = data.astype(np.int32)
        if not np.array_equal(narrow, data):
            raise InvalidArgumentError(f"{what} has values beyond 32 bits")
        data = narrow
    return data.reshape(data.shape or (1,))


def _dtype(form: Form, first: Value) -> np.dtype[Any]:
    """Return the dtype in ONNX of an output: int64 stays int64."""
    return first.dtype if form.type == first.type else DTYPES[form.type]


def _same(shape: Shape, inferred: Shape) -> Shape:
    if dimensions_of(shape) != inferred:
        raise UnsupportedOperatorError(
            f"the HAL computes {list(inferred)}, not {list(shape)}"
        )
    return shape


def _bound(value: Value | Scalar | Omitted) -> BoundOperand | None:
    if isinstance(value, Value):
        form = value.form
        # Only vectors of integers decide shapes.
        data = value.data if form.type == I32 and value.rank <= 2 else None
        return BoundOperand(
            form.type,
            value.dimensions,
            form.scale,
            form.zero_point,
            form.channels,
            None if data is None else hal_array(data, value.name),
        )
    if isinstance(value, Scalar):
        return BoundOperand(value.type, (), value=np.array(value.value))
    return None


def operand_of(value: Value | Scalar | Omitted) -> Operand:
    """Return what describes a tensor or an argument in a model of the HAL."""
    if isinstance(value, Value):
        form = value.form
        return Operand(
            form.type,
            value.dimensions,
            scale=form.scale,
            zero_point=form.zero_point,
            extra_params=form.channels,
        )
    is_scalar = isinstance(value, Scalar)
    kept = OperandLifeTime.CONSTANT_COPY if is_scalar else OperandLifeTime.NO_VALUE
    return Operand(value.type, lifetime=kept)
