"""Runs recurrent cells along sequences, forwards, backwards, or both.

What the inputs of all time steps contribute is one matrix product, computed first; the
loop over time is left with the recurrent part. Sequences stay in the layout in which
they come: time-major or batch-major only decides which view the loop walks along. Of
two directions the outputs stand apart or are merged along the last axis.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, Run, Scratch


class Cell(Protocol):
    """A cell at work on a batch: its state and one step in time."""

    @property
    def states(self) -> tuple[Array, ...]:
        """States float32 [batches, n]; the first is the output of the latest step."""

    def step(self, inputs: Array) -> None:
        """Advance by one step; ``inputs`` [batches, columns] are products."""


class CellWeights(Protocol):
    """The packed weights of a cell, shared by all executions."""

    @property
    def input_weights(self) -> Array:
        """Float32 [input_size, columns]; inputs are joined in order."""

    @property
    def input_bias(self) -> Array | None:
        """Float32 [columns] to add to the products of the inputs."""

    def bind(self, scratch: Scratch, batches: int) -> Cell:
        """Allocate a cell for so many sequences at once."""


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

    @property
    def batches(self) -> int:
        """Number of sequences at once."""
        return self.outer[1 if self.time_major else 0]

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


class _InputProduct:
    """Joins the inputs of all steps in float32 and multiplies them by the weights."""

    def __init__(self, scratch: Scratch, rows: int, weights: CellWeights) -> None:
        size, columns = weights.input_weights.shape
        self._weights, self._bias = weights.input_weights, weights.input_bias
        self._joined = scratch.transient((rows, size), np.float32)
        self.products = scratch.transient((rows, columns), np.float32)

    def compute(self, sources: Sequence[Array]) -> None:
        """Fill the products; sources end in the axis that is multiplied."""
        start = 0
        for source in sources:
            stop = start + source.shape[-1]
            rows = source.reshape(len(self._joined), source.shape[-1])
            np.copyto(self._joined[:, start:stop], rows)
            start = stop
        np.matmul(self._joined, self._weights, out=self.products)
        if self._bias is not None:
            np.add(self.products, self._bias, out=self.products)


class _Walk:
    """One direction at work: computes its sequence step by step."""

    def __init__(self, scratch: Scratch, direction: Direction, extent: Extent) -> None:
        rows = math.prod(extent.outer)
        self._direction = direction
        self._input = _InputProduct(scratch, rows, direction.weights)
        products = self._input.products
        shape = *extent.outer, products.shape[1]
        self._order = slice(None, None, -1 if direction.backward else 1)
        self._products = extent.by_step(products.reshape(shape))[self._order]
        self.cell = direction.weights.bind(scratch, extent.batches)

    def run(self, inputs: Inputs, sequence: Array) -> None:
        """Fill ``sequence`` [steps, batches, n]; leave the last states in the cell."""
        self._input.compute([inputs[index] for index in self._direction.sources])
        states = self.cell.states
        for state, index in zip(states, self._direction.states, strict=True):
            np.copyto(state, inputs[index])
        step, output = self.cell.step, states[0]
        for product, result in zip(self._products, sequence[self._order], strict=True):
            step(product)
            np.copyto(result, output)


def unrolled(
    directions: Sequence[Direction], extent: Extent, arrange: Arrange
) -> PreparedKernel:
    """Return the kernel that runs every direction over the whole extent."""

    def instantiate(scratch: Scratch) -> Run:
        walks = [_Walk(scratch, direction, extent) for direction in directions]
        last_states = [state for walk in walks for state in walk.cell.states]

        def run(inputs: Inputs, outputs: Outputs) -> None:
            results = arrange(outputs)
            for walk, sequence in zip(walks, results.sequences, strict=True):
                walk.run(inputs, sequence)
            for result, state in zip(results.states, last_states, strict=False):
                np.copyto(result, state)

        return run

    return instantiate


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
