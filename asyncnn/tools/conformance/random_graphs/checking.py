"""Compares what a device computes of a graph with the reference kernels.

Those are run in the simplest way: one operation after the other, nothing reused.

A device that computes by those gives the same bits. Any other may be off by one code,
or by what floats of the HAL may be off, in each operation: so that errors do not add
up, all results are shown as outputs, and each operation is judged by what it makes of
the inputs that it really had.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
    CONTROL_FLOW,
    bound_operand,
    constant_array,
)
from asyncnn.hal.operands import QUANT8_TYPES, is_tensor
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import Model, OperandType, Operation, OperationType, Subgraph
from asyncnn.kernels.kernel import HeapScratch
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.conformance.executing import NotCarriedError
from asyncnn.tools.conformance.judging import BY_TYPE
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.samples import Tolerance, errors_and_limits

Evaluate = Callable[[BoundOperation], list[Array]]
"""Computes one operation all of whose inputs have values."""

Values = dict[int, Array]

_FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
_FENCED: AnyPath = "fenced"

_ROOM, _DRAWS = 16, 3
"""So many times what a result changes by, in as many draws, it may be off.

A sum in another order, or of products that are rounded otherwise, needs that.
"""


def interpret(model: Model, inputs: Sequence[Array], evaluate: Evaluate) -> list[Array]:
    """Return the outputs of the main subgraph."""
    with np.errstate(all="ignore"):
        return _Interpreter(model, evaluate).run(model.main, inputs)


def loop(model: Model, indexes: Sequence[int], state: Sequence[Array]) -> list[Array]:
    """Return what a WHILE, whose subgraphs are these operands, makes of ``state``."""
    interpreter = _Interpreter(model, evaluate)
    with np.errstate(all="ignore"):
        return interpreter.loop(model.main, indexes, state)


def evaluate(operation: BoundOperation) -> list[Array]:
    """Return the outputs of one operation, all of whose inputs have values.

    :raises GeneralFailureError: if it has no kernel, or its operands have illegal
        values or shapes.
    """
    if kernels.is_data_dependent(operation.type):
        computed = kernels.compute(operation)
        assert isinstance(computed, list | tuple)  # no operation here is an engine's
        return list(computed)
    shapes = zip(operation.outputs, infer_shapes(operation), strict=True)
    results = tuple(replace(output, shape=shape) for output, shape in shapes)
    outputs = [np.empty(o.require_shape(), o.dtype) for o in results]
    inputs = [None if i is None else i.require_value() for i in operation.inputs]
    prepared = kernels.prepare(replace(operation, outputs=results))
    prepared(HeapScratch())(inputs, outputs)
    return outputs


def constants_of(model: Model, subgraph: Subgraph) -> Values:
    """Return the values of constants by their operands."""
    return {
        index: constant_array(model, operand)
        for index, operand in enumerate(subgraph.operands)
        if operand.lifetime in CONSTANT_LIFETIMES
    }


class _Interpreter:
    def __init__(self, model: Model, evaluate: Evaluate) -> None:
        self._model = model
        self._evaluate = evaluate

    def run(self, subgraph: Subgraph, inputs: Sequence[Array]) -> list[Array]:
        values = constants_of(self._model, subgraph)
        values.update(zip(subgraph.input_indexes, inputs, strict=True))
        for operation in subgraph.operations:
            match operation.type:
                case OperationType.IF:
                    condition, then, other, *read = operation.inputs
                    branch = then if values[condition].item() else other
                    results = self.run(
                        self._referenced(subgraph, branch), [values[i] for i in read]
                    )
                case OperationType.WHILE:
                    test, body, *read = operation.inputs
                    state = [values[index] for index in read]
                    results = self.loop(subgraph, (test, body), state)
                    results = results[: len(operation.outputs)]
                case _:
                    results = self._evaluate(bind(subgraph, operation, values))
            values.update(zip(operation.outputs, results, strict=True))
        return [values[index] for index in subgraph.output_indexes]

    def loop(
        self, subgraph: Subgraph, indexes: Sequence[int], state: Sequence[Array]
    ) -> list[Array]:
        condition, body = (self._referenced(subgraph, index) for index in indexes)
        state = list(state)
        while self.run(condition, state)[0].item():
            outputs = self.run(body, state)
            state[: len(outputs)] = outputs
        return state

    def _referenced(self, subgraph: Subgraph, index: int) -> Subgraph:
        return self._model.referenced[subgraph.operands[index].location.offset]


def bind(subgraph: Subgraph, operation: Operation, values: Values) -> BoundOperation:
    """Return an operation with the values that its inputs have."""

    def bound(index: int, value: Array | None = None) -> BoundOperand:
        shape = None if value is None else value.shape
        return bound_operand(subgraph.operands[index], shape, value)

    reads = (bound(i, values[i]) if i in values else None for i in operation.inputs)
    writes = map(bound, operation.outputs)
    return BoundOperation(OperationType(operation.type), tuple(reads), tuple(writes))


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
        values = constants_of(shown.model, main)
        values.update(zip(main.input_indexes, inputs, strict=True))
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
    judged = operand.type in (*_FLOATS, *QUANT8_TYPES)
    allowed = BY_TYPE[OperandType(operand.type)] if judged else Tolerance(0)
    error, limit = errors_and_limits(result, want, allowed)
    with np.errstate(invalid="ignore"):
        close = error <= limit + _ROOM * np.asarray(slack, np.float64)
    return np.asarray(close | ((result != result) & (want != want)))
