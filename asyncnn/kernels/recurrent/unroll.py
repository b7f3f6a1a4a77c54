"""Runs recurrent cells along sequences, forwards, backwards, or both.

What the inputs of all time steps contribute is one matrix product, computed first; the
loop over time is left with the recurrent part. Sequences stay in the layout in which
they come: time-major or batch-major only decides which view the loop walks along. Of
two directions the outputs stand apart or are merged along the last axis.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, stateless


class CellWeights(Protocol):
    """The packed weights of a cell, shared by all executions."""

    @property
    def input_weights(self) -> Array:
        """Float32 [input_size, columns]; inputs are joined in order."""

    @property
    def input_bias(self) -> Array | None:
        """Float32 [columns] to add to the products of the inputs."""

    def step(self, products: Array, *states: Array) -> tuple[Array, ...]:
        """Return the states after a step, float32 [batches, n]; first, the output.

        ``products`` [batches, columns] are of the inputs.
        """


class Direction(msgspec.Struct, frozen=True, eq=False):
    """A cell, the operation's inputs that feed it, and its initial states' indices."""

    weights: CellWeights
    sources: tuple[int, ...]
    states: tuple[int, ...]
    backward: bool = False


class Extent(msgspec.Struct, frozen=True):
    """The two outer axes of sequences: steps and batches, or batches and steps."""

    outer: tuple[int, int]
    time_major: bool

    @classmethod
    def of(cls, operation: BoundOperation, *, time_major: bool) -> "Extent":
        """Return the extent of input 0, a sequence."""
        first, second, _ = operation.shape(0)
        return cls((first, second), time_major)

    def by_step(self, sequences: Array) -> Array:
        """Return a view [steps, batches, n] of sequences in their layout."""
        return sequences if self.time_major else sequences.swapaxes(0, 1)


class Results(NamedTuple):
    """Where results go: a sequence [steps, batches, n] per direction, and last states.

    The states of all directions follow each other, or there are none.
    """

    sequences: Sequence[Array]
    states: Sequence[Array] = ()


Arrange: TypeAlias = Callable[[Outputs], Results]


def _walk(
    direction: Direction, extent: Extent, inputs: Inputs, sequence: Array
) -> tuple[Array, ...]:
    """Fill ``sequence`` [steps, batches, n]; return the last states."""
    weights, order = (
        direction.weights,
        slice(None, None, -1 if direction.backward else 1),
    )
    sources = [inputs[index] for index in direction.sources]
    joined = np.concatenate(sources, axis=-1, dtype=np.float32)
    products = joined.reshape(-1, joined.shape[-1]) @ weights.input_weights
    if weights.input_bias is not None:
        products += weights.input_bias
    by_step = extent.by_step(products.reshape(*extent.outer, products.shape[1]))
    states = tuple(inputs[index].astype(np.float32) for index in direction.states)
    for step, output in zip(by_step[order], sequence[order], strict=True):
        states = weights.step(step, *states)
        output[...] = states[0]
    return states


def unrolled(
    directions: Sequence[Direction], extent: Extent, arrange: Arrange
) -> PreparedKernel:
    """Return the kernel that runs every direction over the whole extent."""

    def run(inputs: Inputs, outputs: Outputs) -> None:
        results = arrange(outputs)
        last_states: list[Array] = []
        for direction, sequence in zip(directions, results.sequences, strict=True):
            last_states += _walk(direction, extent, inputs, sequence)
        for result, state in zip(results.states, last_states, strict=False):
            np.copyto(result, state, casting="same_kind")

    return stateless(run)


def one_step(
    weights: CellWeights, operation: BoundOperation, states: tuple[int, ...]
) -> PreparedKernel:
    """Return the kernel of one step of a cell from the inputs that are its ``states``.

    Its outputs are the states after it, then the first of these once more; what is
    before them becomes zero.
    """

    def arrange(outputs: Outputs) -> Results:
        *others, output = outputs
        first = len(others) - len(states)
        for scratch in others[:first]:
            scratch.fill(0)
        return Results([output[None]], others[first:])

    extent = Extent((1, operation.shape(0)[0]), time_major=True)
    return unrolled([Direction(weights, (0,), states)], extent, arrange)


def one_way(
    weights: CellWeights, extent: Extent, states: tuple[int, ...]
) -> PreparedKernel:
    """Return the kernel of all steps: its outputs are the sequence, maybe states."""

    def arrange(outputs: Outputs) -> Results:
        return Results([extent.by_step(outputs[0])], outputs[1:])

    return unrolled([Direction(weights, (0,), states)], extent, arrange)


class Auxiliary(msgspec.Struct, frozen=True):
    """The inputs that feed each direction.

    An auxiliary input with weights of its own is ``joined`` to the main input of both
    cells; without weights it is the input of the backward cell alone.
    """

    forward: tuple[int, ...] = (0,)
    backward: tuple[int, ...] = (0,)
    joined: bool = False

    @classmethod
    def of(cls, operation: BoundOperation, index: int, weights: int) -> "Auxiliary":
        """Read the role of input ``index``; ``weights`` is one input with weights."""
        if operation.has(weights):
            return cls((0, index), (0, index), joined=True)
        return cls(backward=(index,)) if operation.has(index) else cls()


def two_way(
    forward: Direction,
    backward: Direction,
    extent: Extent,
    forward_outputs: int,
    merge: bool,
) -> PreparedKernel:
    """Return the kernel of both directions.

    Its outputs are two sequences, or one that joins them at the last axis, and perhaps
    the last states: all of the forward, then of the backward direction.
    """

    def separate(outputs: Outputs) -> Results:
        return Results([extent.by_step(output) for output in outputs[:2]], outputs[2:])

    def merged(outputs: Outputs) -> Results:
        both = extent.by_step(outputs[0])
        parts = [both[..., :forward_outputs], both[..., forward_outputs:]]
        return Results(parts, outputs[1:])

    return unrolled([forward, backward], extent, merged if merge else separate)
