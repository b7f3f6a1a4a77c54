"""LiteRT by its C API: graphs that compute in place on arrays of ours.

LiteRT runs on tensor buffers. Those over the memory of an array are used again when its
address comes again; arrays that come for the third time are known without a look.

A run is cancelled by LiteRT's own means, a function that it asks before each node. That
function is C's, and looks at a byte of ours, so a run needs no interpreter lock.
"""

import ctypes
import errno
from collections.abc import Sequence
from ctypes import byref
from pathlib import Path
from typing import Any

import numpy as np

from asyncnn.devices.litert.c_api import (
    MOST_DIMENSIONS,
    Library,
    TensorType,
    failure,
)
from asyncnn.devices.litert.compiled_graph import (
    Array,
    CompiledGraph,
    Engine,
    Source,
    Tensor,
)
from asyncnn.devices.litert.graph_file import (
    GraphFile,
    ModelMemory,
    for_want_of_room,
    may_be_packed,
)
from asyncnn.devices.litert.tensor_buffers import (
    KnownArrays,
    TensorBuffers,
    TensorSlot,
    place,
)
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.interpreter_hooks import disown_in_children, forked_error

MOST_BINDINGS = 32
"""Sets of addresses whose tensor buffers a graph keeps for whatever comes there."""

MOST_KNOWN = 512
"""Sets of arrays whose tensor buffers it keeps for these, some kilobytes each."""

_CLEAR, _SET = b"\0", b"\1"

_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.int32),
    3: np.dtype(np.uint8),
    4: np.dtype(np.int64),
    6: np.dtype(np.bool_),
    7: np.dtype(np.int16),
    9: np.dtype(np.int8),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
}
"""By LiteRT's element types, which are TFLite's."""


class CApiEngine(Engine):
    """The engine on a library that has passed its self-test.

    :raises CApiUnavailableError: if the library cannot be used.
    """

    name = "c_api"

    def __init__(self, path: Path, version: str) -> None:
        self.version = version
        self._library = Library(path)
        self._is_forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that loaded it."""
        self._is_forked = True

    def compile(
        self,
        model: Source,
        *,
        threads: int = 1,
        weights: PackedWeights | None = None,
    ) -> CompiledGraph:
        """See `Engine`."""
        if self._is_forked:
            raise forked_error("an engine")
        with for_want_of_room(model):
            return self._compile(model, threads, weights)

    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None
    ) -> CompiledGraph:
        memory = ModelMemory(model)
        options: dict[str, int | str] = {"num_threads": threads}
        if weights is None or not may_be_packed(model):
            return CApiGraph(self._library, memory, options)
        content = model.content if isinstance(model, GraphFile) else model
        try:
            return weights.compile(
                np.frombuffer(content, np.uint8),
                lambda descriptor: CApiGraph(
                    self._library,
                    memory,
                    {**options, "weight_cache_file_descriptor": descriptor},
                ),
            )
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        # It takes no descriptor to pack for this graph alone.
        return CApiGraph(self._library, memory, options)


class CApiGraph(CompiledGraph):
    """A compiled model of LiteRT's."""

    def __init__(
        self, library: Library, memory: ModelMemory, options: dict[str, int | str]
    ) -> None:
        self._library = library
        self._memory = memory  # LiteRT refers to it
        self._model = self._compiled = 0
        self._buffers: dict[tuple[int, ...], TensorBuffers] = {}
        # By the identities of arrays. None where they have come once: most never come
        # again, and are not worth a reference.
        self._known: dict[tuple[int, ...], KnownArrays | None] = {}
        self._flag = ctypes.create_string_buffer(2)
        super().__init__()
        try:
            self._create(options)
        except BaseException:
            self.close()
            raise

    def _create(self, options: dict[str, int | str]) -> None:
        library, memory = self._library, self._memory
        self._model = library.create(
            "CreateModelFromBuffer",
            *(library.environment, memory.address, memory.size),
        )
        self._compiled = library.compile(self._model, options)
        self._inputs, self._outputs = self._slots("Input"), self._slots("Output")
        self.inputs = tuple(slot.tensor for slot in self._inputs)
        self.outputs = tuple(slot.tensor for slot in self._outputs)
        library.call(
            "SetCompiledModelCancellationFunction",
            self._compiled,
            ctypes.addressof(self._flag),
            library.cancellation_function(),
        )

    def _slots(self, side: str) -> tuple[TensorSlot, ...]:
        library = self._library
        main = library.number("GetMainModelSubgraphIndex", self._model)
        graph = library.create("GetModelSubgraph", self._model, main)
        count = library.number(f"GetNumSubgraph{side}s", graph)
        return tuple(self._slot(graph, side, number) for number in range(count))

    def _slot(self, graph: int, side: str, number: int) -> TensorSlot:
        library = self._library
        type_ = TensorType()
        tensor = library.create(f"GetSubgraph{side}", graph, number)
        library.call("GetRankedTensorType", tensor, byref(type_))
        dtype = _DTYPES.get(type_.element_type)
        if dtype is None or type_.rank > MOST_DIMENSIONS:
            raise GeneralFailureError(
                f"{side.lower()} {number} is of element type {type_.element_type} "
                f"and rank {type_.rank}, which no array here is"
            )
        for axis in range(type_.rank):
            type_.dimensions[axis] = abs(type_.dimensions[axis])  # -1: open
        described = Tensor.of(dtype, tuple(type_.dimensions[: type_.rank]))
        needed = library.number(
            "GetTensorBufferRequirementsBufferSize",
            library.create(
                f"GetCompiledModel{side}BufferRequirements", self._compiled, 0, number
            ),
        )
        if needed > described.nbytes:
            raise GeneralFailureError(
                f"{side.lower()} {number} of shape {list(described.shape)} takes "
                f"{needed} bytes, not {described.nbytes}"
            )
        return TensorSlot(type_, described)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """See `CompiledGraph`."""
        if not self._acquire(False):
            return self._refuse()
        try:
            identity = (*map(id, inputs), *map(id, outputs))
            known = self._known.get(identity)
            if known is not None and known.match(inputs, outputs):
                status = known.run()
                return not status or self._ended(status)
            copied_in: list[tuple[Array, Array]] = []
            copied_out: list[tuple[Array, Array]] = []
            addresses: list[int] = []
            if not (
                place(inputs, self._inputs, addresses, copied_in)
                and place(outputs, self._outputs, addresses, copied_out, written=True)
            ):
                self._check(inputs, outputs)
                raise GeneralFailureError("the arrays do not fit the graph")
            key = tuple(addresses)
            # A buffer at an address serves whatever array lies there.
            buffers = self._buffers.get(key)
            if buffers is None:
                buffers = self._bind(key)
            if not (copied_in or copied_out):
                self._note(identity, inputs, outputs, buffers)
            for array, memory in copied_in:
                memory[:] = array.reshape(-1)
            status = buffers.run()
            if status:
                return self._ended(status)
            for array, memory in copied_out:
                array.reshape(-1)[:] = memory
        finally:
            self._release()
            if self._is_closing:
                self._free_if_idle()
        return True

    def _note(
        self,
        identity: tuple[int, ...],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        buffers: TensorBuffers,
    ) -> None:
        """Know arrays from their third run on, the first two of which come by here."""
        known = self._known
        is_second = identity in known and known[identity] is None
        known[identity] = KnownArrays(inputs, outputs, buffers) if is_second else None
        # Each call looks at another set: the buffers of arrays that are gone take up
        # memory as well.
        candidate = next(iter(known))
        found = known.pop(candidate)
        if len(known) < MOST_KNOWN and (found is None or found.are_alive):
            known[candidate] = found

    def interrupt(self) -> None:
        """See `CompiledGraph`."""
        self._flag[0] = _SET

    def clear_interrupt(self) -> None:
        """See `CompiledGraph`."""
        self._flag[0] = _CLEAR

    def _ended(self, status: int) -> bool:
        # Statuses of an interrupted run are those of other failures in some versions.
        if self._flag[0] == _SET:
            # What it has reported is dropped unread: reading takes as long as a part.
            self._library.forget_errors_of(self._compiled)
            return False
        told = self._library.errors_of(self._compiled)
        raise failure("RunCompiledModel", status, told)

    def _bind(self, addresses: tuple[int, ...]) -> TensorBuffers:
        split = len(self._inputs)
        sides = (
            (self._inputs, addresses[:split]),
            (self._outputs, addresses[split:]),
        )
        buffers = TensorBuffers(self._library, self._compiled, sides)
        while len(self._buffers) >= MOST_BINDINGS:
            self._buffers.pop(next(iter(self._buffers)), None)
        self._buffers[addresses] = buffers
        return buffers

    def forget(self) -> None:
        """See `CompiledGraph`."""
        self._known.clear()
        self._buffers.clear()

    def _free(self) -> None:
        self.forget()
        if self._compiled:
            self._library.destroy("CompiledModel", self._compiled)
        if self._model:
            self._library.destroy("Model", self._model)
