"""Writes operations and plans as TFLite and runs them in the public interpreter."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pytest

from asyncnn.devices.litert import claims, write_graph
from asyncnn.engine import Program
from asyncnn.engine.costs import estimated_ns
from asyncnn.engine.delegation import Segment
from asyncnn.engine.plan import Plan, Step
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import Model

interpreter = pytest.importorskip("ai_edge_litert.interpreter")


def segment_of(steps: Iterable[Step], needed: Collection[int]) -> Segment:
    """Return the segment of ``steps``, of which ``needed`` are used later."""
    steps = tuple(steps)
    written = {index for step in steps for index in step.outputs}
    read: list[int] = []
    for step in steps:
        for index, operand in zip(step.inputs, step.operation.inputs, strict=False):
            comes = operand is not None and operand.value is None
            if comes and index not in written and index not in read:
                read.append(index)
    return Segment(steps, tuple(read), tuple(i for i in needed if i in written))


def whole(plan: Plan) -> Segment:
    """Return all steps of a plan as one segment."""
    return segment_of(plan.steps, plan.subgraph.output_indexes)


def segment_of_one(operation: BoundOperation) -> Segment:
    """Return the segment of a single operation, whose operands it numbers."""
    inputs = range(len(operation.inputs))
    outputs = range(len(inputs), len(inputs) + len(operation.outputs))
    operands, cost_ns = (tuple(inputs), tuple(outputs)), estimated_ns(operation)
    step = Step(0, operation, *operands, None, costs_ns=(cost_ns,))
    return segment_of([step], outputs)


class Loaded:
    """A file in the interpreter, with one thread; ``reference`` keeps XNNPACK out."""

    def __init__(self, data: bytes, *, reference: bool = False) -> None:
        resolvers = interpreter.OpResolverType
        self.interpreter = interpreter.Interpreter(
            model_content=data,
            num_threads=1,
            experimental_op_resolver_type=(
                resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
                if reference
                else resolvers.AUTO
            ),
        )
        self.interpreter.allocate_tensors()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of the inputs ``arrays``, both in the file's order."""
        engine = self.interpreter
        for details, array in zip(engine.get_input_details(), arrays, strict=True):
            engine.set_tensor(details["index"], array)
        engine.invoke()
        outputs = engine.get_output_details()
        return [engine.get_tensor(details["index"]) for details in outputs]


def run_segment(
    segment: Segment,
    values: Mapping[int, Array],
    barriers: Collection[int] = (),
    *,
    reference: bool = False,
) -> list[Array]:
    """Write and run a segment on the operands in ``values``."""
    loaded = Loaded(write_graph(segment, barriers), reference=reference)
    return loaded.run([values[index] for index in segment.inputs])


def run_operation(
    operation: BoundOperation,
    arrays: Sequence[Array | None],
    *,
    reference: bool = False,
) -> list[Array]:
    """Write and run one operation; ``arrays`` are its inputs."""
    segment = segment_of_one(operation)
    values = {i: array for i, array in enumerate(arrays) if array is not None}
    return run_segment(segment, values, reference=reference)


def plan_of(model: Model, inputs: Sequence[Array | None]) -> Plan:
    """Return the plan of a model's main subgraph for these inputs."""
    program = Program(model)
    return program.plan(tuple(None if x is None else x.shape for x in inputs))


def is_claimed(plan: Plan) -> bool:
    """Return whether the plan has steps, and all of them are claimed."""
    return bool(plan.steps) and all(
        step.kernel is not None and claims(step.operation) for step in plan.steps
    )


def run_plan(
    plan: Plan, inputs: Sequence[Array | None], barriers: Collection[int] = ()
) -> list[Array]:
    """Run all steps of a plan as one segment; return the plan's outputs."""
    segment = whole(plan)
    indexes = plan.subgraph.input_indexes
    values = {i: x for i, x in zip(indexes, inputs, strict=True) if x is not None}
    results = dict(
        zip(segment.outputs, run_segment(segment, values, barriers), strict=True)
    )
    known = {**plan.constants, **values, **results}
    return [np.asarray(known[i]) for i in plan.subgraph.output_indexes]
