"""Parts of models: what they compute is what the whole computes there."""

import asyncio

import numpy as np

from asyncnn import open_device
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.random_graphs.families import RandomGraph as Drawn
from asyncnn.tools.differing import extracts
from asyncnn.tools.differing.extracts import ModelGraph, compacted
from asyncnn.tools.differing.sides import DeviceSide
from tests.random_graphs.running import assert_same
from tests.random_graphs.trying import on_graphs

F32 = OperandType.TENSOR_FLOAT32
FLOATS = Operand(F32, (64,))


def folding() -> NamedModel:
    """``y = abs(x) + weights``, of weights that are reshaped first."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (64,))
    weights = builder.constant(np.arange(64, dtype=np.float32).reshape(8, 8))
    shape = builder.constant(np.int32([64]))
    flat = builder.operation(OperationType.RESHAPE, [weights, shape], FLOATS)
    size = builder.operation(OperationType.ABS, [x], FLOATS)
    none = builder.scalar(FusedActivationFunc.NONE)
    y = builder.operation(OperationType.ADD, [size, flat, none], FLOATS)
    builder.output(y, "y")
    return builder.build()


def test_all_that_is_computed_can_be_shown() -> None:
    graph = ModelGraph(folding())
    (shown,) = graph.shown()
    validate_model(shown.named.model)
    assert set(shown.outputs) == set(graph.writers)
    assert shown.outputs[0] == graph.main.output_indexes[0]


def test_many_tensors_are_shown_in_several_batches(monkeypatch) -> None:
    monkeypatch.setattr(extracts, "MOST_BYTES", 300)
    graph = ModelGraph(folding())
    batches = list(graph.shown())
    assert len(batches) == 2
    assert {i for each in batches for i in each.outputs} == set(graph.writers)
    assert len(list(graph.batches(range(3), ()))) == 3


def test_what_follows_from_constants_is_known() -> None:
    graph = ModelGraph(folding())
    assert graph.folded == {graph.main.operations[0].outputs[0]}


def test_an_operation_alone_has_what_it_reads_as_inputs_and_constants() -> None:
    graph = ModelGraph(folding())
    flat, size, y = (operation.outputs[0] for operation in graph.main.operations)
    value = np.ones(64, np.float32)
    alone = graph.extract([2], {flat: value, size: None}, [y])
    validate_model(alone.named.model)
    assert alone.inputs == (size,)
    assert [info.name for info in alone.named.outputs] == ["y"]
    assert len(alone.named.model.main.operations) == 1
    assert graph.needed(2, {flat, size}) == (2,)
    assert graph.needed(2, {size}) == (0, 2)


def test_what_is_kept_has_no_bytes_that_nobody_reads() -> None:
    graph = ModelGraph(folding())
    flat, size, y = (operation.outputs[0] for operation in graph.main.operations)
    alone = graph.extract([2], {flat: None, size: None}, [y]).named
    assert sum(pool.size for pool in alone.model.pools) > 0
    small = compacted(alone)
    validate_model(small.model)
    assert sum(pool.size for pool in small.model.pools) == 0
    whole = compacted(graph.named)
    assert sum(pool.size for pool in whole.model.pools) == 256


@on_graphs(0.1)
def test_separated_operations_compute_what_the_whole_does(graph: Drawn) -> None:
    asyncio.run(check_separated(graph))


async def check_separated(drawn: Drawn) -> None:
    graph = ModelGraph(drawn.named)
    names = [info.name for info in drawn.named.inputs]
    sample = dict(zip(names, drawn.inputs, strict=True))
    async with open_device("reference") as device:
        side = DeviceSide("reference", device, graph, ())
        (seen,) = await side.tensors([sample])
        for position, operation in enumerate(graph.main.operations):
            given = dict.fromkeys(graph.writers)
            alone = graph.extract([position], given, operation.outputs)
            assert alone.operations == (position,)
            (computed,) = await side.run(alone, [seen])
            assert_same(
                [computed[index] for index in operation.outputs],
                [seen[index] for index in operation.outputs],
            )
