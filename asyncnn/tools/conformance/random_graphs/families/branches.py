"""Draws IF and WHILE over subgraphs that are drawn themselves."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist, completely, is_tame
from asyncnn.tools.conformance.random_graphs.checking import loop
from asyncnn.tools.conformance.random_graphs.families.moving import is_like
from asyncnn.tools.conformance.random_graphs.families.pointwise import Builder
from asyncnn.tools.conformance.random_graphs.sketch import (
    B8,
    I32,
    TYPES,
    DrawnTensor,
    Sketch,
    bound_of,
    sample,
)

Fill = Callable[[Artist, int], None]
"""Draws operations, at least one and at most so many."""

_INSIDE_AT_MOST = 3
"""Operations drawn into a subgraph, besides those that make it what it must be."""


def builders(fill: Fill) -> dict[OperationType, Builder]:
    """Return the builders, which draw the insides of subgraphs by ``fill``."""
    return {
        OperationType.IF: lambda artist, *_: _if(artist, fill),
        OperationType.WHILE: lambda artist, *_: _while(artist, fill),
    }


class _Inside:
    """A subgraph that an operation of ``artist`` runs on ``sources``."""

    def __init__(self, artist: Artist, sources: Sequence[DrawnTensor]) -> None:
        self.artist = Artist(artist.draw, Sketch(artist.sketch), artist)
        self.sketch = self.artist.sketch
        self.inputs = [
            self.sketch.add_input(source.bound, source.dimensions) for source in sources
        ]

    @property
    def captured(self) -> list[DrawnTensor]:
        """What inputs that were drawn inside are outside."""
        return [outer for outer, _ in self.artist.captured]

    def close(
        self, outputs: Sequence[DrawnTensor], captured: Iterable[DrawnTensor]
    ) -> None:
        """Give it its outputs, and inputs for the sources and ``captured``.

        What another subgraph captured is an input that this one does not read.
        """
        own = {outer.index: inner for outer, inner in self.artist.captured}
        extra = [
            own.get(outer.index) or self.sketch.add_input(outer.bound, outer.dimensions)
            for outer in captured
        ]
        self.sketch.end(outputs, [*self.inputs, *extra])


def _counterpart(
    inside: _Inside,
    bound: BoundOperand,
    taken: Sequence[DrawnTensor],
    suits: Callable[[DrawnTensor], bool],
) -> DrawnTensor:
    """Draw a result, not ``taken``, of the same type and quantisation that ``suits``.

    A new one is also of the same shape, which the model declares.
    """
    artist, sketch = inside.artist, inside.sketch
    candidates = [
        result
        for result in sketch.results
        if is_like(result, bound) and result not in taken and suits(result)
    ]
    chosen = artist.choose(None, *reversed(candidates))
    if chosen is not None:
        return chosen
    x = next(
        (t for t in sketch.tensors if is_like(t, bound) and t.shape == bound.shape),
        None,
    )
    one = sample(OperandType(bound.type), (1,), artist.number(0, 255))
    operands = [
        x or sketch.add_constant(bound),
        sketch.add_constant(replace(bound, shape=(1,), value=one)),
    ]
    type_ = OperationType.LOGICAL_OR if bound.type == B8 else OperationType.MAXIMUM
    return artist.apply(type_, operands, bound, declare=completely)[0]


def _condition(artist: Artist) -> tuple[DrawnTensor, bool]:
    """Draw a boolean; return it, and whether it is the same in all executions."""
    computed = [
        result
        for result in artist.sketch.results
        if result.type == B8 and result.dimensions == (1,)
    ]
    chosen = artist.choose(None, *reversed(computed))
    if chosen is not None:
        return chosen, False
    value = np.array([artist.choose(True, False)])
    if artist.choose("fixed", "varied") == "fixed":
        return artist.known(bound_of(B8, value), is_open=False), True
    return artist.input(bound_of(B8, value), ~value, is_open=False), False


def _if(artist: Artist, fill: Fill) -> None:
    condition, is_fixed = _condition(artist)
    sources = [artist.pick(artist.choose(*TYPES)) for _ in range(artist.number(1, 3))]
    then, other = _Inside(artist, sources), _Inside(artist, sources)
    for inside in (then, other):
        fill(inside.artist, _INSIDE_AT_MOST)
    pairs = _paired_outputs(
        then, other, any_shape=is_fixed and artist.choose(False, True)
    )
    captured = [*then.captured, *other.captured]
    for position, inside in enumerate((then, other)):
        inside.close([pair[position] for pair in pairs], captured)
    sketch = artist.sketch
    inputs = [
        condition.index,
        *map(sketch.subgraph, (then.sketch, other.sketch)),
        *(tensor.index for tensor in [*sources, *captured]),
    ]
    taken = 0 if condition.value.item() else 1
    sketch.add_operation(
        OperationType.IF,
        inputs,
        [
            (
                pair[taken].bound,
                artist.declared(pair[0].shape)
                if pair[0].shape == pair[1].shape
                else (),
            )
            for pair in pairs
        ],
    )


def _paired_outputs(
    then: _Inside, other: _Inside, *, any_shape: bool
) -> list[tuple[DrawnTensor, DrawnTensor]]:
    """Draw one or two outputs of both branches, which may differ in shape."""
    results = [t for t in then.sketch.results if t.type in TYPES and is_tame(t)]
    if not results:
        results = [_counterpart(then, then.inputs[0].bound, (), lambda _: False)]
    chosen = results[-then.artist.number(1, 2) :]
    others: list[DrawnTensor] = []
    for output in chosen:
        others.append(
            _counterpart(
                other,
                output.bound,
                others,
                partial(_has_shape, output.shape if not any_shape else None),
            )
        )
    return list(zip(chosen, others, strict=True))


def _has_shape(shape: Shape | None, tensor: DrawnTensor) -> bool:
    return shape is None or tensor.shape == shape


def _declares(shape: Shape, tensor: DrawnTensor) -> bool:
    return tensor.dimensions == shape


def _while(artist: Artist, fill: Fill) -> None:
    """Count up to a small number; what else is carried along is drawn."""
    zero = artist.known(bound_of(I32, np.zeros(1, np.int32)), is_open=False)
    count = artist.number(0, 2)
    state = [zero, *(_declared_source(artist) for _ in range(count))]
    body, test = _Inside(artist, state), _Inside(artist, state)
    fill(body.artist, _INSIDE_AT_MOST)
    outputs = _next_state(body, state)
    continues = _is_below_limit(test)
    captured = [*test.captured, *body.captured]
    test.close([continues], captured)
    body.close(outputs, captured)
    kept = state[: artist.number(1, len(state))]
    inputs = [*state, *captured]
    insides = list(map(artist.sketch.subgraph, (test.sketch, body.sketch)))
    model = artist.sketch.build().model
    values = loop(model, insides, [tensor.value for tensor in inputs])
    artist.sketch.add_operation(
        OperationType.WHILE,
        [*insides, *(tensor.index for tensor in inputs)],
        [
            (replace(tensor.bound, value=value), tensor.shape)
            for tensor, value in zip(kept, values, strict=False)
        ],
    )


def _declared_source(artist: Artist) -> DrawnTensor:
    """Draw a tensor whose shape the model declares, as a loop's must be."""
    type_ = artist.choose(*TYPES)
    declared = [
        tensor
        for tensor in artist.sketch.tensors
        if tensor.type == type_ and tensor.is_declared and is_tame(tensor)
    ]
    chosen = artist.choose(None, *reversed(declared))
    if chosen is not None:
        return chosen
    return artist.known(artist.bound(type_, artist.shape()), is_open=False)


def _next_state(body: _Inside, state: Sequence[DrawnTensor]) -> list[DrawnTensor]:
    one = body.artist.known(bound_of(I32, np.ones(1, np.int32)))
    addends = [body.inputs[0], one, body.artist.scalar(0)]
    outputs = body.artist.apply(OperationType.ADD, addends, I32, declare=completely)
    for source in state[1:]:
        outputs.append(
            _counterpart(body, source.bound, outputs, partial(_declares, source.shape))
        )
    return outputs


def _is_below_limit(test: _Inside) -> DrawnTensor:
    rounds = np.array([test.artist.number(0, 4)], np.int32)
    operands = [test.inputs[0], test.artist.known(bound_of(I32, rounds))]
    return test.artist.apply(OperationType.LESS, operands, B8, declare=completely)[0]
