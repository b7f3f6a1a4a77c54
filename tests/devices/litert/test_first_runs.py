"""What a preparation knows the shapes of it compiles, without running anything."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.graph_file import Engine, Source
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.engine import Program
from asyncnn.engine.plan import Plan
from asyncnn.engine.plan_execution import PlanExecution
from asyncnn.engine.program import Records
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Model, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model_file import load
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.devices.cache.folder import Folder
from tests.devices.cache.models import repeated


class CountingEngine(Engine):
    """Counts the graphs that another engine compiles, and their runs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.version)
        self.name, self.speeds = engine.name, engine.speeds
        self.compiled = self.runs = 0
        self._engine = engine

    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None, float16: bool
    ) -> CompiledGraph:
        self.compiled += 1
        graph = self._engine.compile(model, threads=threads, weights=weights)
        run = graph.run

        def counted(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
            self.runs += 1
            return run(inputs, outputs)

        object.__setattr__(graph, "run", counted)
        return graph


def convolutions() -> Model:
    return load(mobilenet_v1(quantized=False, size=32, width=0.25), strict=True).model


def branches() -> Model:
    """``y = x * 1.01 ** n``: n is 3 if the condition holds, else 5."""
    builder = ModelBuilder()
    row = Operand(OperandType.TENSOR_FLOAT32, (1, 64))
    condition = builder.input("condition", OperandType.TENSOR_BOOL8, (1,))
    x = builder.input("x", row.type, row.dimensions)
    bodies = []
    for length in (3, 5):
        body = builder.body()
        value = body.input("x", row.type, row.dimensions)
        factor = body.constant(np.array([1.01], np.float32))
        for _ in range(length):
            value = body.operation(
                OperationType.MUL, [value, factor, body.scalar(0)], row
            )
        body.output(value, "y")
        bodies.append(builder.subgraph(body))
    y = builder.operation(OperationType.IF, [condition, *bodies, x], row)
    builder.output(y, "y")
    return builder.build().model


MODELS: dict[str, Callable[[], Model]] = {
    "convolutions": convolutions,
    "a chain": lambda: repeated(OperationType.MUL).model,
    "branches": branches,
}


def zeros(plan: Plan) -> list[Array]:
    arrays = []
    for port in plan.inputs:
        array = aligned_bytes(port.size_bytes + 64)[: port.size_bytes]
        array.fill(0)
        arrays.append(array.view(port.dtype).reshape(port.shape or ()))
    return arrays


class OneByOne(PlanExecution):
    """Has Python run the segments, where they are counted."""

    runs_jobs = False


def run(program: Program) -> None:
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    OneByOne(program, plan, zeros(plan), [None] * len(plan.outputs)).advance()


@pytest.fixture
def counting(engine: Engine) -> CountingEngine:
    return CountingEngine(engine)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keeps_weights", [False, True])
def test_a_preparation_compiles_all_and_the_first_run_nothing(
    counting: CountingEngine, tmp_path: Path, name: str, keeps_weights: bool
) -> None:
    weights = tmp_path / "weights" if keeps_weights else None
    folder = Folder(tmp_path, LiteRtDelegate(counting, weights))
    model = MODELS[name]()
    for prepare in (lambda: folder.save(model), lambda: folder.load().program):
        before = counting.compiled
        program = prepare()
        prepared = counting.compiled
        assert prepared > before
        assert not counting.runs
        run(program)
        assert counting.runs
        counting.runs = 0
        assert counting.compiled == prepared


def test_what_cannot_be_restored_is_told_as_it_is_loaded(engine: Engine) -> None:
    def damaged() -> Records:
        raise GeneralFailureError("not today")

    with pytest.raises(GeneralFailureError, match="not today"):
        Program(convolutions(), {-1: damaged}, delegate=LiteRtDelegate(engine))
