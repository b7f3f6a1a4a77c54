"""The strategy of valid random models, over the signature table.

A graph has up to twelve operations on small tensors. Operands are inputs, constants or
results, read once, often or not at all; shapes are declared, left open, or depend on
the values of inputs.
"""

from collections.abc import Set
from typing import Any, NamedTuple

from hypothesis import strategies as st

from asyncnn import kernels
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.operations.table import allowed_types
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.dot import dot
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.random_graphs.artist import Artist, chosen
from asyncnn.tools.conformance.random_graphs.families import (
    branches,
    moving,
    pointwise,
    reducing,
    windows,
)
from asyncnn.tools.conformance.random_graphs.families.pointwise import Builder
from asyncnn.tools.conformance.random_graphs.sketch import (
    Q8PC,
    Q8SYM,
    TYPES,
    DrawnTensor,
    Sketch,
)

MAX_OPERATIONS = 12
_DEEPEST = 2
_TYPES = {*TYPES, Q8SYM, Q8PC}


class RandomGraph(NamedTuple):
    """A model and two legal sets of inputs of the same shapes."""

    named: NamedModel
    inputs: list[Array]
    other_inputs: list[Array]

    def __repr__(self) -> str:
        return dot(self.named)


def _fill(artist: Artist, at_most: int) -> None:
    """Draw one operation or more into the artist's subgraph."""
    types = DRAWN if artist.depth < _DEEPEST else DRAWN - CONTROL_FLOW
    _fill_from(artist, at_most, types)


def _fill_from(artist: Artist, at_most: int, types: Set[OperationType]) -> None:
    # A number and that many draws of a strategy shrink better than a list does.
    for _ in range(artist.number(1, at_most)):
        artist.draw(_operation(artist, types))


BUILDERS: dict[OperationType, Builder] = {
    **pointwise.BUILDERS,
    **moving.BUILDERS,
    **reducing.BUILDERS,
    **windows.BUILDERS,
    **branches.builders(_fill),
}
"""How to draw the arguments of each operation."""

DRAWN = BUILDERS.keys() & (kernels.supported_operations() | CONTROL_FLOW)
"""Operations that graphs are made of."""


@st.composite
def _operation(draw: Any, artist: Artist, types: Set[OperationType]) -> OperationType:
    """Add an operation of one of ``types`` to the artist's subgraph."""
    # Two among so many types would be rare.
    type_ = chosen(draw, [*sorted(types), *4 * sorted(CONTROL_FLOW & types)])
    allowed = [t for t in allowed_types(type_) if type_ in CONTROL_FLOW or t in _TYPES]
    present = {result.type for result in artist.sketch.results}
    # Types that are there already connect operations with each other.
    allowed += 12 * [t for t in allowed if t in present]
    BUILDERS[type_](artist, type_, OperandType(artist.choose(*allowed)))
    return type_


@st.composite
def graphs(
    draw: Any,
    types: Set[OperationType] | None = None,
    max_operations: int = MAX_OPERATIONS,
) -> RandomGraph:
    """Draw a graph of operations of all types, or of ``types``."""
    is_static = chosen(draw, [True, True, False])
    artist = Artist(draw, Sketch(), is_static=is_static)
    _fill_from(artist, max_operations, DRAWN if types is None else types)
    sketch = artist.sketch
    sketch.end(_outputs(artist))
    return RandomGraph(
        sketch.build(),
        [tensor.value for tensor in sketch.inputs],
        [artist.other_values[tensor.index] for tensor in sketch.inputs],
    )


def _outputs(artist: Artist) -> list[DrawnTensor]:
    """Draw which results are outputs: few of those that are read, most others."""
    *earlier, last = artist.sketch.results
    unread = artist.sketch.unread
    outputs = []
    for result in earlier:
        odds = [False, True, True] if result in unread else [False] * 7 + [True]
        if artist.choose(*odds):
            outputs.append(result)
    return [*outputs, last]
