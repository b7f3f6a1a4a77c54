"""Compares what a device computes of a graph with the reference kernels.

A device that computes by those gives the same bits. Any other may be off by one code,
or by what floats of the HAL may be off, in each operation: so that errors do not add
up, all results are shown as outputs, and each operation is judged by what it makes of
the inputs that it really had.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.operands import QUANT8_TYPES, is_tensor
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import Model, OperandType, Operation, OperationType
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.conformance.executing import NotCarriedError
from asyncnn.tools.conformance.random_graphs.interpreter import (
    Values,
    bind,
    constant_value,
    evaluate,
    interpret,
)
from asyncnn.tools.differing.extracts import ModelGraph

_FLOAT32 = (1e-5, 5 * 2.0**-23)
_FLOAT16 = (5 * 2.0**-10, 5 * 2.0**-10)
"""The conformance criterion: absolute and relative."""

_ROOM, _DRAWS = 16, 3
"""So many times what a result changes by, in as many draws, it may be off.

A sum in another order, or of products that are rounded otherwise, needs that.
"""

_FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
_FENCED: AnyPath = "fenced"


class DifferenceError(Exception):
    """A device computes something else than the reference kernels."""


class Judge(msgspec.Struct, frozen=True, eq=False):
    """Runs graphs on a device, which gives the kernels' bits if it ``is_exact``."""

    device: Device
    path: AnyPath
    is_exact: bool

    async def check(self, named: NamedModel, inputs: Sequence[Array]) -> None:
        """Run a graph and judge its outputs.

        :raises DifferenceError: if they are wrong.
        :raises NotCarriedError: if the path cannot carry them.
        :raises AsyncnnError: if the device refuses the graph, or fails.
        """
        expected = interpret(named.model, inputs, evaluate)
        prepared = await self.device.prepare(named)
        if self.path == _FENCED and _is_open(prepared):
            raise NotCarriedError("fenced runs have room for known shapes alone")
        got = await _run(prepared, self.path, inputs)
        for position, (result, want) in enumerate(zip(got, expected, strict=True)):
            _require_alike(f"output {position}", result, want)
            # Bit by bit: NaN and the sign of zero are part of it.
            if self.is_exact and result.tobytes() != want.tobytes():
                _raise_first(f"output {position}", result, want, result == want)
        if not self.is_exact:
            await self._check_operations(named, inputs)

    async def _check_operations(
        self, named: NamedModel, inputs: Sequence[Array]
    ) -> None:
        graph = ModelGraph(named)
        extract = graph.extract(range(len(graph.main.operations)), {}, [*graph.writers])
        given = dict(zip(graph.main.input_indexes, inputs, strict=True))
        shown, inputs = extract.named, [given[index] for index in extract.inputs]
        prepared = await self.device.prepare(shown)
        is_carried = self.path != _FENCED or not _is_open(prepared)
        path = self.path if is_carried else "async"
        results = await _run(prepared, path, inputs)
        main = shown.model.main
        values: Values = dict(zip(main.input_indexes, inputs, strict=True))
        for index, operand in enumerate(main.operands):
            constant = constant_value(shown.model, operand)
            if constant is not None:
                values[index] = constant
        values.update(zip(main.output_indexes, results, strict=True))
        for operation in _judged(shown.model):
            got = [values[index] for index in operation.outputs]
            with np.errstate(all="ignore"):
                bound = bind(main, operation, values)
                expected = evaluate(bound)
                require_close(bound, got, expected, _slack(bound, expected))


def _judged(model: Model) -> Iterator[Operation]:
    """Yield the operations whose results follow from what is shown.

    In IF and WHILE errors add up unseen. What an engine makes of float16 results it may
    make of more precise ones, which it rounds where it shows them.
    """
    main = model.main
    written: set[int] = set()
    for operation in main.operations:
        has_read_float16 = any(
            index in written and main.operands[index].type == OperandType.TENSOR_FLOAT16
            for index in operation.inputs
        )
        if operation.type not in CONTROL_FLOW and not has_read_float16:
            yield operation
        written.update(operation.outputs)


def _slack(operation: BoundOperation, results: Sequence[Array]) -> list[float]:
    """Return what roundings may amount to in each output.

    It is what results change by where tensors do in their last places; nothing where
    some are not finite, or a result jumps.
    """
    floats = [
        each.require_value() if each is not None and each.type in _FLOATS else None
        for each in operation.inputs
    ]
    slack = [0.0] * len(results)
    finite = all(array is None or np.isfinite(array).all() for array in floats)
    if not finite or operation.type == OperationType.FLOOR:
        return slack
    rng = np.random.default_rng(0)
    for _ in range(_DRAWS):
        changed = tuple(
            each
            if array is None or each is None
            else replace(each, value=_changed(array, rng))
            for each, array in zip(operation.inputs, floats, strict=True)
        )
        others = evaluate(replace(operation, inputs=changed))
        for place, (one, other) in enumerate(zip(results, others, strict=True)):
            if one.dtype.kind == "f":
                apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
                slack[place] = max(slack[place], np.nan_to_num(apart).max(initial=0))
    return slack


def _changed(array: Array, rng: np.random.Generator) -> Array:
    signs = rng.choice((-1, 1), array.shape).astype(array.dtype)
    changed: Array = array * (1 + signs * np.finfo(array.dtype).eps)
    return changed.astype(array.dtype)


async def _run(
    prepared: PreparedModel, path: AnyPath, inputs: Sequence[Array]
) -> list[Array]:
    async with prepared.runner(path) as run:
        # A burst gives the same arrays each time.
        return [np.array(each) for each in (await run(list(inputs))).values()]


def _is_open(prepared: PreparedModel) -> bool:
    return any(
        is_tensor(info.type) and (not info.dimensions or 0 in info.dimensions)
        for info in prepared.outputs
    )


def require_close(
    operation: BoundOperation,
    got: Sequence[Array],
    expected: Sequence[Array],
    slack: Sequence[object] | None = None,
) -> None:
    """Check outputs against the kernel's; ``slack`` is allowed besides.

    :raises DifferenceError: if one is not close.
    """
    slack = [0.0] * len(expected) if slack is None else slack
    rows = zip(operation.outputs, got, expected, slack, strict=True)
    for operand, result, want, allowed in rows:
        name = operation.type.name
        _require_alike(name, result, want)
        passes = _passes(operand, result, want, allowed)
        if not passes.all():
            _raise_first(name, result, want, passes)


def _require_alike(name: str, result: Array, want: Array) -> None:
    if result.dtype != want.dtype:
        raise DifferenceError(f"{name} is {result.dtype}, expected {want.dtype}")
    if result.shape != want.shape:
        raise DifferenceError(f"{name} has shape {result.shape}, expected {want.shape}")


def _raise_first(name: str, result: Array, want: Array, passes: Array) -> None:
    places = np.nonzero(~passes)
    if not len(places) or not places[0].size:
        raise DifferenceError(f"{name} differs in bits of NaN or zero")
    place = tuple(int(axis[0]) for axis in places)
    raise DifferenceError(
        f"{name} at {list(place)} is {result[place]}, expected {want[place]}"
    )


def _passes(operand: BoundOperand, result: Array, want: Array, slack: object) -> Array:
    got, wanted = result.astype(np.float64), want.astype(np.float64)
    if operand.type in QUANT8_TYPES:
        codes: Array = np.abs(got - wanted) <= 1
        return codes
    if operand.dtype.kind != "f":
        return np.asarray(got == wanted)
    absolute, relative = _FLOAT16 if operand.dtype.itemsize == 2 else _FLOAT32
    with np.errstate(invalid="ignore"):
        room = _ROOM * np.asarray(slack, np.float64)
        allowed = absolute + relative * np.abs(wanted) + room
        close = np.abs(got - wanted) <= allowed
    return np.asarray(close | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
