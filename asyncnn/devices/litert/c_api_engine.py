"""LiteRT by its C API: graphs that compute in place on arrays of ours.

LiteRT runs on tensor buffers, which lie over memory of ours. Where that is, and when
they are used again, is the business of `asyncnn.engine.job`, as is the run itself.

A run is cancelled by LiteRT's own means, a function that it asks before each node. That
function is of C, and looks at a byte of ours and at the clock, so that a run needs no
interpreter lock.
"""

import ctypes
import errno
from collections.abc import Iterable
from ctypes import byref
from pathlib import Path
from typing import Any

import numpy as np

from asyncnn.devices.compiled_graph import CompiledGraph, CompiledTensor
from asyncnn.devices.litert.c_api import (
    MOST_DIMENSIONS,
    LiteRtLibrary,
    TensorLayout,
    TensorType,
)
from asyncnn.devices.litert.graph_file import (
    Engine,
    GraphFile,
    ModelMemory,
    Source,
    may_be_packed,
)
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.engine.job import FLAG_BYTES, INTERRUPTED, MUST_END, Bound, JobSegment
from asyncnn.hal.errors import GeneralFailureError

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
    13: np.dtype(np.uint64),
    16: np.dtype(np.uint32),
    17: np.dtype(np.uint16),
}
"""By LiteRT's element types, which are TFLite's."""

_FLOAT16_FLAGS = 1 | 2 | 4
"""Of XNNPACK: signed and unsigned codes, as ever, and FORCE_FP16."""


class CApiEngine(Engine):
    """The engine on a library that has passed its self-test.

    :raises CApiUnavailableError: if the library cannot be used.
    """

    name = "c_api"
    computes_float16 = True

    def __init__(self, path: Path, version: str) -> None:
        super().__init__(version)
        self._library = LiteRtLibrary(path)

    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None, float16: bool
    ) -> CompiledGraph:
        memory = ModelMemory(model)
        options = {"num_threads": threads}
        if float16:
            options["flags"] = _FLOAT16_FLAGS
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


class CApiGraph(JobSegment, CompiledGraph):
    """A compiled model of LiteRT's."""

    def __init__(
        self, library: LiteRtLibrary, memory: ModelMemory, options: dict[str, int]
    ) -> None:
        self._library = library
        self._memory = memory  # LiteRT refers to it
        self._model = self._compiled = 0
        self._flag = ctypes.create_string_buffer(FLAG_BYTES)
        CompiledGraph.__init__(self)
        try:
            self._create(options)
        except BaseException:
            self.close()
            raise

    def _create(self, options: dict[str, int]) -> None:
        library, memory = self._library, self._memory
        self._model = library.create(
            "CreateModelFromBuffer", *(library.environment, memory.address, memory.size)
        )
        self._compiled = library.compile(self._model, options)
        self._types: list[TensorType] = []
        main = library.number("GetMainModelSubgraphIndex", self._model)
        graph = library.create("GetModelSubgraph", self._model, main)
        self.inputs = self._tensors_of(graph, "Input")
        self.outputs = self._tensors_of(graph, "Output")
        library.call(
            "SetCompiledModelCancellationFunction",
            self._compiled,
            ctypes.addressof(self._flag),
            MUST_END or library.cancellation_function(),
        )
        address = ctypes.cast(library.run, ctypes.c_void_p).value or 0
        JobSegment.__init__(self, address, self._flag, self.inputs, self.outputs)

    def _tensors_of(self, graph: int, side: str) -> tuple[CompiledTensor, ...]:
        library = self._library
        count = library.number(f"GetNumSubgraph{side}s", graph)
        layouts: list[TensorLayout | None] = [None] * count
        if side == "Output":  # what the file says of their shapes, nobody has looked at
            shaped = (TensorLayout * count)()
            library.call(
                "GetCompiledModelOutputTensorLayouts",
                *(self._compiled, 0, count, shaped, True),
            )
            layouts = [*shaped]
        return tuple([self._tensor(graph, side, *each) for each in enumerate(layouts)])

    def _tensor(
        self, graph: int, side: str, number: int, layout: TensorLayout | None
    ) -> CompiledTensor:
        library = self._library
        type_ = TensorType()
        tensor = library.create(f"GetSubgraph{side}", graph, number)
        library.call("GetRankedTensorType", tensor, byref(type_))
        if layout is not None:
            type_.rank_and_flags = layout.rank
            type_.dimensions[:] = layout.dimensions
        dtype, rank = _DTYPES.get(type_.element_type), type_.rank
        if dtype is None or rank > MOST_DIMENSIONS:
            raise GeneralFailureError(
                f"{side.lower()} {number} is of element type {type_.element_type} "
                f"and rank {rank}, which no array here is"
            )
        shape = [abs(length) for length in type_.dimensions[:rank]]  # -1: open
        type_.dimensions[:rank] = shape
        described = CompiledTensor.of(dtype, tuple(shape))
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
        self._types.append(type_)
        return described

    def _bind(self, addresses: tuple[int, ...]) -> Bound:
        """See `JobSegment`."""
        tensors = zip(self._types, self.inputs + self.outputs, addresses, strict=True)
        buffers = _TensorBuffers(self._library, tensors)
        split, count = len(self.inputs), len(addresses)
        inputs, outputs = buffers.address_of(0), buffers.address_of(split)
        words = self._compiled, 0, split, inputs, count - split, outputs
        return words, buffers

    def _ended(self, status: int) -> None:
        """See `JobSegment`."""
        # An interrupted run has statuses of other failures in some versions.
        if self._flag[0] >= INTERRUPTED:
            # What it has reported is dropped unread: reading takes as long as a part.
            self._library.forget_errors_of(self._compiled)
            return
        errors = self._library.errors_of(self._compiled)
        raise self._library.failure("RunCompiledModel", status, errors)

    def _free(self) -> None:
        self.forget()
        if self._compiled:
            self._library.destroy("CompiledModel", self._compiled)
        if self._model:
            self._library.destroy("Model", self._model)


class _TensorBuffers:
    """Tensor buffers over a set of addresses, which are freed with the last reference.

    Buffers over memory that is gone are harmless as long as they are not run.
    """

    def __init__(
        self,
        library: LiteRtLibrary,
        tensors: Iterable[tuple[TensorType, CompiledTensor, int]],
    ) -> None:
        self._library = library
        self._made: list[int] = []
        for type_, tensor, address in tensors:
            made = library.create(
                "CreateTensorBufferFromHostMemory",
                *(byref(type_), address, tensor.nbytes, None),
            )
            self._made.append(made)
        self._array = (ctypes.c_void_p * len(self._made))(*self._made)

    def address_of(self, number: int) -> int:
        """Return where C finds the buffers, from this one on."""
        return ctypes.addressof(self._array) + number * ctypes.sizeof(ctypes.c_void_p)

    def __del__(self) -> None:
        for made in self._made:
            self._library.destroy("TensorBuffer", made)
