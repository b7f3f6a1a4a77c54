"""Draws IF and WHILE over subgraphs that are drawn themselves."""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operations.bound import Array, BoundOperand
from asyncnn.hal.types import OperationType
from tests.random_graphs import naive
from tests.random_graphs.artist import B8, I32, TYPES, Artist, completely, is_tame, sample
from tests.random_graphs.families.elementwise import Builder
from tests.random_graphs.interpreter import interpret
from tests.random_graphs.sketch import Sketch, Tensor, bound_of

Fill = Callable[[Artist, int], None]
"""Draws operations, at least one and at most so many."""


def builders(fill: Fill) -> dict[OperationType, Builder]:
    """Return the builders, which draw the insides of subgraphs by ``fill``."""
    return {
        OperationType.IF: lambda artist, *_: _if(artist, fill),
        OperationType.WHILE: lambda artist, *_: _while(artist, fill),
    }


class _Inside:
    """A subgraph that an operation of ``artist`` runs on ``sources``."""

    def __init__(self, artist: Artist, sources: Sequence[Tensor]) -> None:
        self.artist = Artist(artist.draw, Sketch(artist.sketch.world), artist)
        self.inputs = [
            self.artist.sketch.input(source.bound, source.dimensions)
            for source in sources
        ]

    @property
    def captured(self) -> list[Tensor]:
        """Inputs drawn inside: their counterparts outside."""
        return [outer for outer, _ in self.artist.captured]

    def close(self, outputs: Sequence[Tensor], captured: Sequence[Tensor]) -> int:
        """Add the subgraph to the model; ``captured`` are the inputs after the sources.

        Those that another subgraph captured are not read in this one.
        """
        own = {outer.index: inner for outer, inner in self.artist.captured}
        sketch = self.artist.sketch
        extra = [
            own.get(outer.index) or sketch.input(outer.bound, outer.dimensions)
            for outer in captured
        ]
        return sketch.world.refer(sketch.close(outputs, [*self.inputs, *extra]))


def _is_alike(tensor: Tensor, bound: BoundOperand) -> bool:
    other = tensor.bound
    return (other.type, other.scale, other.zero_point) == (
        bound.type,
        bound.scale,
        bound.zero_point,
    )


def _counterpart(
    inside: _Inside,
    bound: BoundOperand,
    taken: Sequence[Tensor],
    *,
    any_shape: bool = False,
    is_open: bool = True,
) -> Tensor:
    """Draw a result of the same type, quantisation and, as a rule, shape."""
    artist = inside.artist
    alike = [t for t in artist.sketch.tensors if _is_alike(t, bound)]
    results = {result.index for result in artist.sketch.results}
    indexes = {tensor.index for tensor in taken}
    chosen = artist.choose(
        None,
        *(
            tensor
            for tensor in alike
            if tensor.index in results - indexes
            and (any_shape or tensor.shape == bound.shape)
            and (is_open or tensor.is_declared)
        ),
    )
    if chosen is not None:
        return chosen
    x = next((t for t in alike if t.shape == bound.shape), None)
    if x is None:
        x = artist.sketch.constant(bound)
    one = sample(bound.type, (1,), artist.number(0, 255))
    y = artist.sketch.constant(replace(bound, shape=(1,), value=one))
    type_ = OperationType.LOGICAL_OR if bound.type == B8 else OperationType.MAXIMUM
    declare = None if is_open else completely
    return artist.apply(type_, [x, y], bound, declare=declare)[0]


def _condition(artist: Artist) -> tuple[Tensor, bool]:
    """Draw a boolean, and tell whether it is the same in all executions."""
    computed = [
        tensor
        for tensor in artist.sketch.results
        if tensor.type == B8 and tensor.dimensions == (1,)
    ]
    chosen = artist.choose(None, *computed)
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
    fill(then.artist, 3)
    fill(other.artist, 3)
    results = [t for t in then.artist.sketch.results if t.type in TYPES and is_tame(t)]
    if not results:
        results = [_counterpart(then, then.inputs[0].bound, ())]
    chosen = results[-artist.number(1, 2) :]
    any_shape = is_fixed and artist.choose(False, True)
    others: list[Tensor] = []
    for output in chosen:
        others.append(_counterpart(other, output.bound, others, any_shape=any_shape))
    captured = [*then.captured, *other.captured]
    branches = then.close(chosen, captured), other.close(others, captured)
    values = chosen if condition.value.item() else others
    sketch = artist.sketch
    sketch.operation(
        OperationType.IF,
        [
            condition.index,
            *map(sketch.reference, branches),
            *(tensor.index for tensor in [*sources, *captured]),
        ],
        [
            (value.bound, artist.declared(value.shape) if one == two else ())
            for value, one, two in zip(
                values,
                (tensor.shape for tensor in chosen),
                (tensor.shape for tensor in others),
                strict=True,
            )
        ],
    )


def _while(artist: Artist, fill: Fill) -> None:
    """Count up to a small number; what else is carried along is drawn."""
    zero = artist.known(bound_of(I32, np.zeros(1, np.int32)), is_open=False)
    state = [zero]
    for _ in range(artist.number(0, 2)):
        state.append(_declared_source(artist))
    body, test = _Inside(artist, state), _Inside(artist, state)
    fill(body.artist, 3)
    outputs = [_incremented(body)]
    for source in state[1:]:
        outputs.append(_counterpart(body, source.bound, outputs, is_open=False))
    rounds = np.array([artist.number(0, 4)], np.int32)
    limit = test.artist.known(bound_of(I32, rounds))
    (continues,) = test.artist.apply(
        OperationType.LESS, [test.inputs[0], limit], B8, declare=completely
    )
    captured = [*test.captured, *body.captured]
    subgraphs = test.close([continues], captured), body.close(outputs, captured)
    kept = state[: artist.number(1, len(state))]
    inputs = [*state, *captured]
    values = _after_the_loop(artist, subgraphs, inputs, kept)
    artist.add(
        OperationType.WHILE,
        [
            *map(artist.sketch.reference, subgraphs),
            *(tensor.index for tensor in inputs),
        ],
        [replace(t.bound, value=value) for t, value in zip(kept, values, strict=True)],
        completely,
    )


def _declared_source(artist: Artist) -> Tensor:
    type_ = artist.choose(*TYPES)
    declared = [
        tensor
        for tensor in artist.sketch.tensors
        if tensor.type == type_ and tensor.is_declared and is_tame(tensor)
    ]
    chosen = artist.choose(None, *declared)
    if chosen is not None:
        return chosen
    bound = artist.bound(type_, artist.shape())
    return artist.known(bound, is_open=False)


def _incremented(body: _Inside) -> Tensor:
    artist = body.artist
    one = artist.known(bound_of(I32, np.ones(1, np.int32)))
    inputs = [body.inputs[0], one, artist.scalar(0)]
    return artist.apply(OperationType.ADD, inputs, I32, declare=completely)[0]


def _after_the_loop(
    artist: Artist,
    subgraphs: Sequence[int],
    inputs: Sequence[Tensor],
    kept: Sequence[Tensor],
) -> list[Array]:
    """Return the values of the loop's outputs, by way of a model of the loop alone."""
    alone = Sketch(artist.sketch.world)
    state = [alone.input(tensor.bound, tensor.shape) for tensor in inputs]
    results = alone.operation(
        OperationType.WHILE,
        [*map(alone.reference, subgraphs), *(tensor.index for tensor in state)],
        [(tensor.bound, tensor.shape) for tensor in kept],
    )
    model = alone.world.model(alone.close(results))
    return interpret(model, [t.value for t in inputs], naive.evaluate_stored)
