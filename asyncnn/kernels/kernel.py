"""What a kernel is: prepared once, instantiated per workspace, run per execution.

``prepare(operation)`` does everything that happens once: it reads constants, packs
weights and proves bounds. The `PreparedKernel` it returns is shared by all executions
of the model. Called with a `Scratch`, it allocates buffers and returns the `Run` that
one workspace calls, never concurrently with itself. Of an operation that may take
milliseconds it is a `TiledRun`.

Where tensors are small, calling NumPy is all that a run costs. So constants are arrays
of the dtype they are used with, which saves `ndarray.clip` three quarters of its time,
and matrices are multiplied by `ndarray.dot`, which saves half of `np.matmul`'s.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.hal.operands import AnyOperandType, ExtensionOperationType
from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.pacing import Steps

PACKING_VERSION = 4
"""Counts the changes to what any kernel packs; see `BoundOperation.pack`.

Caches of other versions are not used: raise it whenever a kernel packs other arrays.
"""

Inputs: TypeAlias = Sequence[Any]
"""Arrays in the order of the operation's inputs; an omitted input is None.

They may be read-only and of any alignment; a kernel never writes to them. Typed as
``Any`` so that a kernel indexes what it knows to be there without a check each call.
"""

Outputs: TypeAlias = Sequence[Array]
"""Arrays to fill, in the order of the operation's outputs; never overlap an input."""

Run: TypeAlias = Callable[[Inputs, Outputs], None]

Tiles: TypeAlias = Callable[[Inputs, Outputs], Iterator[None]]
"""A run as a generator that stops between parts of a long operation."""


class TiledRun:
    """A `Run` that can also stop on the way: step through its ``tiles``."""

    __slots__ = ("tiles",)

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles

    def __call__(self, inputs: Inputs, outputs: Outputs) -> None:
        """Run to the end."""
        for _ in self.tiles(inputs, outputs):
            pass


MOST_ATTEMPTS = 4
"""An interrupt may come late and hit a run that it was not meant for; not many do."""


class InterruptibleRun(msgspec.Struct, frozen=True, eq=False):
    """A `Run` by another engine, which other threads can interrupt.

    ``attempt`` says whether it has come to the end. After ``interrupt`` one that is
    under way, or begun before ``clear``, soon ends without having done so; it can be
    attempted again, from the beginning. ``spread`` says, before ``clear``, how many
    threads attempts may use from then on: one unless it was called. ``segment`` takes
    what a job has of it, if anything; see `asyncnn.engine.job`. One that ``may_pause``
    is interrupted for a pause, too, others to be stopped only.
    """

    attempt: Callable[[Inputs, Outputs], bool]
    interrupt: Callable[[], None]
    clear: Callable[[], None]
    spread: Callable[[int], None] = lambda threads: None
    segment: Callable[[], object] = lambda: None
    may_pause: bool = True

    def __call__(self, inputs: Inputs, outputs: Outputs) -> None:
        """Run to the end.

        :raises RuntimeError: if it never comes there, as when the process ends.
        """
        for _ in range(MOST_ATTEMPTS):
            self.clear()
            if self.attempt(inputs, outputs):
                return
        raise RuntimeError("it was interrupted each time, without a reason")


class NativeArray(NamedTuple):
    """What an array of a `NativeKernel` has to be."""

    dtype: np.dtype[Any]
    nbytes: int


class NativeKernel(msgspec.Struct, frozen=True, eq=False):
    """A `PreparedKernel` that a function of C computes, without the interpreter lock.

    ``function`` is its address. It takes two words, its ``state`` and where the
    addresses of its arrays are: of the operation's inputs ``reads``, then of all
    outputs. Any number of threads may call it at once. It returns 0 if it has computed,
    else an error number. ``run`` is the same for arrays, and keeps the state.
    """

    function: int
    state: int
    reads: tuple[int, ...]
    inputs: tuple[NativeArray, ...]
    outputs: tuple[NativeArray, ...]
    run: Run

    def __call__(self, scratch: "Scratch") -> Run:
        """See `PreparedKernel`."""
        return self.run


class EngineKernel:
    """A `PreparedKernel` by another engine, which has more of it for more threads.

    It reads the operation's inputs of ``reads`` only, all of them if that is None. It
    ``is_foreseeable`` if a run shows how long the next ones take. It
    ``serves_all_lengths`` if what computes is made once for all of them. One that
    ``is_open`` takes inputs of any lengths, and puts new arrays into its list of
    outputs.
    """

    reads: tuple[int, ...] | None = None
    is_foreseeable = True
    serves_all_lengths = False
    is_open = False

    def __call__(self, scratch: "Scratch") -> Run:
        """See `PreparedKernel`."""
        raise NotImplementedError

    def widen(self, threads: int) -> None:
        """Get ready for runs on ``threads`` threads; others go on meanwhile.

        :raises AsyncnnError: if the engine fails.
        """

    def trim(self) -> None:
        """Free what no run uses, but for what one run on one thread needs."""


class KernelPart(NamedTuple):
    """One of the kernels that a `DividedKernel` is.

    Inputs and outputs have numbers: the operation's inputs come first, then its
    outputs, then what crosses from one part to another.
    """

    kernel: EngineKernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Crossing: TypeAlias = tuple[AnyOperandType, Shape]
"""Type and shape of what crosses from one part to another."""


class DividedKernel(EngineKernel):
    """Stands for several, each of which is a step of its own in a plan.

    ``parting`` prepares them, in steps, and returns them in order, and what crosses.
    """

    def __init__(
        self, parting: Callable[[], Steps[tuple[list[KernelPart], list[Crossing]]]]
    ) -> None:
        self.parting = parting


def tiles_of(run: Run, inputs: Inputs, outputs: Outputs) -> Iterator[None]:
    """Run in tiles where ``run`` has some, else in one go; for kernels that wrap it."""
    if isinstance(run, TiledRun):
        yield from run.tiles(inputs, outputs)
    else:
        run(inputs, outputs)


class Scratch(Protocol):
    """Allocates the buffers of one kernel in one workspace."""

    def transient(self, shape: Shape, dtype: DTypeLike) -> Array:
        """Return memory whose contents last for one run; other kernels share it."""

    def persistent(self, shape: Shape, dtype: DTypeLike, fill: float = 0) -> Array:
        """Return memory of this kernel alone, filled once with ``fill``."""


PreparedKernel: TypeAlias = Callable[[Scratch], Run]

Prepare: TypeAlias = Callable[[BoundOperation], PreparedKernel]
"""One operation's preparation; all shapes of inputs and outputs are known in it.

:raises ValueNeededError: if the value of a non-constant input is needed; the engine
    then prepares the kernel at each execution.
:raises OperationFailedError: if an operand has an illegal value.
"""


def stateless(run: Run) -> PreparedKernel:
    """Return the `PreparedKernel` of a run that needs no scratch memory."""
    return lambda scratch: run


def with_scratch(
    run: Callable[..., None], *buffers: tuple[Shape, DTypeLike]
) -> PreparedKernel:
    """Return the `PreparedKernel` of a run whose first arguments are such buffers."""
    return lambda scratch: partial(run, *[scratch.transient(*b) for b in buffers])


PrepareOpen: TypeAlias = Callable[[BoundOperation], EngineKernel]
"""Returns a kernel that ``is_open``, whatever is known of the operation's shapes.

Its runs are of the kind `InterruptibleRun`.

:raises AsyncnnError: if the engine does not take it.
"""

Compute: TypeAlias = Callable[[BoundOperation], Sequence[Array] | InterruptibleRun]
"""Kernel of an operation whose output shapes depend on the data.

Every input has a value in the operation; the result is a new array for each output,
in order, with its dtype and final shape. Its shape rule gives None for such outputs.
Another engine's is a run without inputs, which appends these arrays to its outputs.
"""


class HeapScratch:
    """`Scratch` that allocates everything anew; for tests and one-off executions."""

    def transient(self, shape: Shape, dtype: DTypeLike) -> Array:
        """Return uninitialised memory."""
        return np.empty(shape, dtype)

    def persistent(self, shape: Shape, dtype: DTypeLike, fill: float = 0) -> Array:
        """Return memory filled with ``fill``."""
        return np.full(shape, fill, dtype)


class ExtensionOperation(ExtensionOperationType):
    """An operation type with its kernel.

    It is ``compute`` if output shapes depend on the data, else ``prepare``; with both,
    ``compute`` is for outputs whose shapes are not known. A client that only builds
    models needs neither. ``prepare_open`` is in place of ``compute`` where an engine
    has one kernel for all lengths.
    """

    prepare: Prepare | None = None
    compute: Compute | None = None
    prepare_open: PrepareOpen | None = None
