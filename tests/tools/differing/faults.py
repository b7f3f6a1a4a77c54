"""Faults in one operation of a model, put into one of two sides, seeded.

A fault is in the kernel, in a constant, in a scale or in the rounding. It is put into
the kernels that a device prepares and runs while `Faulty` calls it, so that another
side beside it has none, or, for engines that do not use them, into the model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.engine.plan import CONTROL_FLOW, constant_array
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import DataLocation, Model, OperandLifeTime, Operation, Subgraph
from asyncnn.kernels import registry
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.random_graphs.checking import evaluate, interpret

KINDS = ("kernel", "constant", "scale", "rounding")

_CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


class Target(msgspec.Struct, frozen=True, eq=False):
    """An operation by what its kernel sees of it: no other of the model looks so."""

    model: Model
    subgraph: Subgraph
    position: int

    @property
    def operation(self) -> Operation:
        return self.subgraph.operations[self.position]

    def constant(self, index: int) -> Array | None:
        """Return the value of an operand, None if it is no constant."""
        operand = self.subgraph.operands[index]
        if operand.lifetime not in _CONSTANTS:
            return None
        return constant_array(self.model, operand)

    def matches(self, operation: BoundOperation) -> bool:
        if operation.type != self.operation.type:
            return False
        given = self.operation.inputs
        if len(operation.inputs) != len(given) or any(
            not self._is_alike(index, operand)
            for index, operand in zip(given, operation.inputs, strict=True)
        ):
            return False
        return all(
            self._looks_alike(index, operand)
            for index, operand in zip(
                self.operation.outputs, operation.outputs, strict=True
            )
        )

    def _is_alike(self, index: int, operand: BoundOperand | None) -> bool:
        mine = self.subgraph.operands[index]
        if operand is None or mine.lifetime == OperandLifeTime.NO_VALUE:
            return operand is None and mine.lifetime == OperandLifeTime.NO_VALUE
        value = self.constant(index)
        if value is not None:
            other = operand.value
            if other is None or value.dtype != other.dtype:
                return False
            if value.shape != other.shape or value.tobytes() != other.tobytes():
                return False
        return self._looks_alike(index, operand)

    def _looks_alike(self, index: int, operand: BoundOperand) -> bool:
        mine = self.subgraph.operands[index]
        is_declared = mine.dimensions and all(mine.dimensions)
        if operand.shape and is_declared and operand.shape != mine.dimensions:
            return False
        return (mine.type, mine.scale, mine.zero_point) == (
            operand.type,
            operand.scale,
            operand.zero_point,
        )


class Fault(msgspec.Struct, frozen=True, eq=False):
    """What is wrong with the kernel of ``target``.

    ``operation`` is what is prepared instead, and ``results`` changes what it computes.
    """

    kind: str
    target: Target
    operation: Callable[[BoundOperation], BoundOperation] = lambda operation: operation
    results: Callable[[Sequence[Array]], None] = lambda outputs: None
    rounds: bool = False


def targets(model: Model) -> list[Target]:
    """Return the operations that look like no other, control flow left out."""
    found = [
        Target(model, subgraph, position)
        for subgraph in (model.main, *model.referenced)
        for position, operation in enumerate(subgraph.operations)
        if operation.type not in CONTROL_FLOW
    ]
    return [
        target
        for target in found
        if not any(_could_be(target, other) for other in found if other is not target)
    ]


def _could_be(target: Target, other: Target) -> bool:
    """Return whether ``target`` may match another operation."""
    one, two = target.operation, other.operation
    if one.type != two.type or len(one.inputs) != len(two.inputs):
        return False
    ends = zip((*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True)
    for index, another in ends:
        operands = target.subgraph.operands[index], other.subgraph.operands[another]
        a, b = ((each.type, each.scale, each.zero_point) for each in operands)
        # What is no constant there may turn out to be the same.
        value, theirs = target.constant(index), other.constant(another)
        are_known = value is not None and theirs is not None
        if a != b or (are_known and not np.array_equal(value, theirs)):
            return False
    return True


def draw(target: Target, kind: str, rng: np.random.Generator) -> Fault | None:
    """Draw a fault; None if the operation cannot have one of that kind."""
    match kind:
        case "kernel":
            return Fault(kind, target, results=_wrong(rng))
        case "constant":
            places = [
                place
                for place, index in enumerate(target.operation.inputs)
                if (value := target.constant(index)) is not None and value.ndim
            ]
            if not places:
                return None
            return Fault(kind, target, _with_constant(int(rng.choice(places)), rng))
        case "scale":
            return Fault(kind, target, _with_scale(rng))
    return Fault(kind, target, rounds=True)


def _wrong(rng: np.random.Generator) -> Callable[[Sequence[Array]], None]:
    seed = int(rng.integers(1 << 31))
    how = rng.choice(["one", "all", "edge", "sign"])

    def alter(outputs: Sequence[Array]) -> None:
        own = np.random.default_rng(seed)
        output = outputs[int(own.integers(len(outputs)))]
        if not output.size:
            return
        flat = output.reshape(-1)
        at: Any = slice(None) if how == "all" else int(own.integers(flat.size))
        if how == "edge":
            at = slice(flat.size - max(flat.size // 8, 1), None)
        if output.dtype == np.bool_:
            flat[at] = ~flat[at]
        elif output.dtype.kind == "f":
            flat[at] = -flat[at] if how == "sign" else flat[at] * 1.02 + 0.01
        else:
            limits = np.iinfo(output.dtype)
            flat[at] = np.where(flat[at] < limits.max, flat[at] + 1, limits.max)

    return alter


def _with_constant(
    place: int, rng: np.random.Generator
) -> Callable[[BoundOperation], BoundOperation]:
    seed = int(rng.integers(1 << 31))

    def alter(operation: BoundOperation) -> BoundOperation:
        operand = operation.input(place)
        value = altered_constant(operand.require_value(), seed)
        inputs = list(operation.inputs)
        inputs[place] = replace(operand, value=value)
        return replace(operation, inputs=tuple(inputs), packed={})

    return alter


def altered_constant(value: Array, seed: int) -> Array:
    """Return a constant of which one element is another one."""
    value = value.copy()
    flat = value.reshape(-1)
    at = int(np.random.default_rng(seed).integers(flat.size))
    if value.dtype == np.bool_:
        flat[at] = ~flat[at]
    elif value.dtype.kind == "f":
        flat[at] = flat[at] * 1.5 + 0.25
    else:
        flat[at] += 1 if value.dtype.itemsize > 1 else (9 if flat[at] < 100 else -9)
    return value


def _with_scale(rng: np.random.Generator) -> Callable[[BoundOperation], BoundOperation]:
    factor = float(rng.choice([0.5, 0.8, 1.25, 1.5]))
    is_output = bool(rng.integers(2))

    def alter(operation: BoundOperation) -> BoundOperation:
        name = "outputs" if is_output else "inputs"
        operands = list(getattr(operation, name))
        for place, operand in enumerate(operands):
            if operand is not None and operand.scale:
                scale = float(np.float32(operand.scale * factor))
                operands[place] = replace(operand, scale=scale)
                break
        return replace(operation, packed={}, **{name: tuple(operands)})

    return alter


class Injected:
    """A fault among the kernels, in force while ``is_active``."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.is_active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        self.is_active = True
        try:
            yield
        finally:
            self.is_active = False

    @contextmanager
    def among_kernels(self) -> Iterator[None]:
        type_ = int(self.fault.target.operation.type)
        with pytest.MonkeyPatch.context() as patch:
            family = import_module(f"asyncnn.kernels.{registry.family_of(type_)}")
            kernels = getattr(family, "KERNELS", {})
            if type_ in kernels:
                patch.setitem(kernels, type_, self._preparing(kernels[type_]))
            dependent = getattr(family, "DATA_DEPENDENT", {})
            if type_ in dependent:
                patch.setitem(dependent, type_, self._computing(dependent[type_]))
            yield

    def _hits(self, operation: BoundOperation) -> bool:
        return self.is_active and self.fault.target.matches(operation)

    def _preparing(self, prepare: Prepare) -> Prepare:
        fault = self.fault

        def instead(operation: BoundOperation) -> PreparedKernel:
            if not self._hits(operation):
                return prepare(operation)
            if fault.rounds:
                return _rounding(prepare, operation)
            kernel = prepare(fault.operation(operation))

            def instantiate(scratch: Any) -> Any:
                run = kernel(scratch)

                def faulty(inputs: Any, outputs: Any) -> None:
                    run(inputs, outputs)
                    fault.results(outputs)

                return faulty

            return instantiate

        return instead

    def _computing(self, compute: Any) -> Any:
        def instead(operation: BoundOperation) -> Any:
            if not self._hits(operation):
                return compute(operation)
            outputs = list(compute(self.fault.operation(operation)))
            self.fault.results(outputs)
            return outputs

        return instead


def _rounding(prepare: Prepare, operation: BoundOperation) -> PreparedKernel:
    """Prepare an operation that truncates: codes to steps, floats to twelve bits."""
    first = operation.outputs[0]
    if first.dtype.kind == "f":
        kernel, fine = prepare(operation), None
    else:
        half = float(np.float32(first.scale / 2))
        finer = (replace(first, scale=half), *operation.outputs[1:])
        kernel, fine = (
            prepare(replace(operation, packed={}, outputs=each))
            for each in (operation.outputs, finer)
        )

    def instantiate(scratch: Any) -> Any:
        run = kernel(scratch)
        run_finer = None if fine is None else fine(scratch)

        def faulty(inputs: Any, outputs: Any) -> None:
            run(inputs, outputs)
            output = outputs[0]
            if run_finer is None:
                word = np.uint16 if output.dtype == np.float16 else np.uint32
                mask = word(0xFFF8) if word is np.uint16 else word(0xFFFFF000)
                output.reshape(-1).view(word)[...] &= mask
                return
            others = [np.empty_like(each) for each in outputs]
            run_finer(inputs, others)
            limits = np.iinfo(output.dtype)
            codes, zero = others[0].astype(np.int64), first.zero_point
            inside = (codes > limits.min) & (codes < limits.max)
            truncated = ((codes - zero) >> 1) + zero
            output[inside] = truncated[inside]

        return faulty

    return instantiate


class FaultyDevice:
    """A device that has a fault; its models have it, too, when they run."""

    def __init__(self, device: Device, injected: Injected) -> None:
        self.version = device.version
        self._device = device
        self._injected = injected

    async def prepare(self, named: NamedModel) -> "_FaultyModel":
        with self._injected.active():
            prepared = await self._device.prepare(named)
        return _FaultyModel(prepared, self._injected)


class _FaultyModel:
    def __init__(self, prepared: Any, injected: Injected) -> None:
        self._prepared = prepared
        self._injected = injected

    async def run(self, inputs: Sequence[Array]) -> Any:
        with self._injected.active():
            return await self._prepared.run(inputs)


class AlteringDevice:
    """A device that gets models with one constant altered, wherever that is used."""

    def __init__(self, device: Device, value: Array, altered: Array) -> None:
        self.version = device.version
        self._device = device
        self._value = value
        self._altered = altered

    async def prepare(self, named: NamedModel) -> Any:
        model = named.model
        pool = len(model.pools)
        operands = list(model.main.operands)
        for index, operand in enumerate(operands):
            if operand.lifetime in _CONSTANTS:
                value = constant_array(model, operand)
                if value.dtype == self._value.dtype and np.array_equal(
                    value, self._value
                ):
                    operands[index] = replace(
                        operand,
                        lifetime=OperandLifeTime.CONSTANT_REFERENCE,
                        location=DataLocation(pool, 0, value.nbytes),
                    )
        data = from_buffer(self._altered.reshape(-1).view(np.uint8))
        altered = replace(
            model,
            main=replace(model.main, operands=tuple(operands)),
            pools=(*model.pools, data),
        )
        return await self._device.prepare(replace(named, model=altered))


def effects(
    injected: Injected, inputs: Sequence[Array]
) -> list[tuple[list[Array], list[Array]]]:
    """Return what the operation gives in a run without the fault, and then with it.

    Empty if it does not run, or not with the fault.
    """
    target = injected.fault.target
    found: list[tuple[list[Array], list[Array]]] = []

    def both(operation: BoundOperation) -> list[Array]:
        right = evaluate(operation)
        if target.matches(operation):
            with injected.active():
                found.append((right, evaluate(operation)))
        return right

    try:
        with injected.among_kernels():
            interpret(target.model, inputs, both)
    except Exception:
        return []
    return found


def is_seen(right: Sequence[Array], wrong: Sequence[Array]) -> bool:
    """Return whether results differ at all."""
    return not all(
        a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(right, wrong, strict=True)
    )
