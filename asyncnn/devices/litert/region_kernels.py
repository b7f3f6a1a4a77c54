"""Regions of TFLite: whole files that LiteRT runs, as operations of the HAL.

The file is a constant operand of the operation (`asyncnn.extensions.regions`). It is
read and checked without the engine, and written anew for the shapes that inputs have.
So a graph of open lengths is compiled for each that comes, as plans are. Where a run
alone shows the shapes of results, the public interpreter runs it.
"""

import os
import weakref
from collections.abc import Sequence

import numpy as np

from asyncnn.devices.compiled_graph import CompiledTensor, GraphKernel, NoElementsError
from asyncnn.devices.litert.delegate import WORTH_SHARING_BYTES, WRITER_VERSION
from asyncnn.devices.litert.graph_file import Engine, GraphFile
from asyncnn.devices.litert.public_interpreter import computed
from asyncnn.devices.litert.region_file import region_file
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.engine.array_memory import address_of
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import LITERT, region_extension
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.input_files import decoding
from asyncnn.memory.pages import is_final
from asyncnn.pacing import completed
from asyncnn.tflite import runnable
from asyncnn.tflite.contents import checked
from asyncnn.tflite.scan import reading_checked
from asyncnn.tflite.tables import Contents

_NOTE = "region"


class RegionKernel(GraphKernel):
    """The graph of a region, for inputs of certain shapes."""

    def __init__(
        self, engine: Engine, file: GraphFile, weights: PackedWeights | None
    ) -> None:
        graph = engine.compile(file)
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.reads = tuple(range(1, 1 + len(graph.inputs)))
        super().__init__(
            lambda threads: engine.compile(file, threads=threads, weights=weights),
            graph,
        )


class LiteRtRegions:
    """The kernels of regions, on an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._version = f"{engine.name} {engine.version}, writer {WRITER_VERSION}"
        self._surprising: set[int] = set()

    def extension(self) -> Extension:
        """Return the extension whose operation they compute."""
        return region_extension(
            LITERT,
            version=self._version,
            shape=self.shapes,
            prepare=self.prepare,
            compute=self.compute,
        )

    def shapes(self, operation: BoundOperation) -> tuple[Shape | None, ...]:
        """Return the shapes of the outputs; see `ShapeRule`."""
        declared = tuple(output.shape for output in operation.outputs)
        if any(0 in (operand.shape or ()) for operand in _given(operation)):
            return (None,) * len(declared)
        if None not in declared:
            return declared
        if id(operation.value(0)) in self._surprising:
            return declared
        kernel = self._kernel(operation)
        if kernel is None:
            return declared
        return tuple(
            _like(tensor.shape) if shape is None else shape
            for tensor, shape in zip(kernel.outputs, declared, strict=True)
        )

    def prepare(self, operation: BoundOperation) -> RegionKernel:
        """Compile a region whose shapes are all known; see `Prepare`."""
        kernel = self._kernel(operation)
        if kernel is None:
            raise GeneralFailureError(
                "the region's outputs have shapes that only a run tells",
                hint="a model that declares none for them can have it",
            )
        _check("input", operation.inputs[1:], kernel.inputs)
        _check("output", operation.outputs, kernel.outputs)
        return kernel

    def compute(self, operation: BoundOperation) -> Sequence[Array]:
        """Run a region whose shapes only a run shows; see `Compute`."""
        given = [operand.require_value() for operand in _given(operation)]
        file = self._file(_contents(operation.value(0)), [each.shape for each in given])
        results = computed(file, given)
        return [
            np.ascontiguousarray(each).reshape(_like(each.shape)) for each in results
        ]

    def _kernel(self, operation: BoundOperation) -> RegionKernel | None:
        return operation.note(_NOTE, lambda: self._compiled(operation))

    def _compiled(self, operation: BoundOperation) -> RegionKernel | None:
        """Return the graph for the inputs' shapes; None if a run makes its results."""
        graph = operation.value(0)
        contents = _contents(graph)
        shapes = [operand.require_shape() for operand in _given(operation)]
        if runnable.may_surprise(contents) and not self._is_settled(contents, shapes):
            self._surprising.add(id(graph))
            weakref.finalize(graph, self._surprising.discard, id(graph))
            return None
        file = self._file(contents, shapes)
        weights = None
        if graph.nbytes >= WORTH_SHARING_BYTES:
            key = weights_key(os.urandom(16), self._version)
            weights = PackedWeights(key)
        try:
            return RegionKernel(self._engine, file, weights)
        except NoElementsError:  # there can only be LiteRT's own memory for it
            return None

    def _is_settled(self, contents: Contents, shapes: Sequence[Shape]) -> bool:
        """Return whether the shapes of outputs follow from the inputs'.

        An output that is said to have no elements has some then all the same.
        """
        file = self._file(contents, shapes, output_shape=(0,))
        try:
            self._engine.compile(file).close()
        except GeneralFailureError:
            return False
        return True

    def _file(
        self,
        contents: Contents,
        shapes: Sequence[Shape],
        output_shape: Shape | None = None,
    ) -> GraphFile:
        main = contents.graphs[0]
        if len(shapes) != len(main.inputs):
            raise InvalidArgumentError(
                f"{len(shapes)} inputs for {main.label}, which has {len(main.inputs)}"
            )
        own = []
        for shape, index in zip(shapes, main.inputs, strict=True):
            tensor = main.tensors[index]
            if _like(tensor.shape) != shape and len(tensor.shape) != len(shape):
                raise InvalidArgumentError(
                    f"{tensor.label} of shape {list(tensor.shape)} cannot have "
                    f"{list(shape)}"
                )
            own.append(tensor.shape if _like(tensor.shape) == shape else shape)
        speeds = self._engine.speeds
        with decoding("TFLite"):
            return region_file(contents, own, speeds, output_shape=output_shape)


def _contents(graph: Array) -> Contents:
    """Read and check a file, unless that was done when it was loaded.

    Whoever has it may write to its memory at any time, if that is not final. So what is
    checked, and what LiteRT gets, is a copy.

    :raises InvalidArgumentError: if LiteRT does not get it.
    """
    known = checked(address_of(graph), graph.nbytes)
    if known is not None:
        return known
    data = graph.data if is_final(graph) else graph.copy().data
    with decoding("TFLite"):
        contents = completed(reading_checked(data, is_final=True))
        refusal = runnable.refusal(contents)
        if refusal:
            raise InvalidArgumentError(f"LiteRT does not run the region: {refusal}")
        runnable.check(contents)
    return contents


def _given(operation: BoundOperation) -> list[BoundOperand]:
    return [operation.input(number) for number in range(1, len(operation.inputs))]


def _like(shape: Shape) -> Shape:
    """Return the shape that the HAL has for one of LiteRT's."""
    return shape or (1,)


def _check(
    side: str,
    operands: Sequence[BoundOperand | None],
    tensors: Sequence[CompiledTensor],
) -> None:
    if len(operands) != len(tensors):
        raise InvalidArgumentError(
            f"{len(operands)} {side}s of the region; its graph has {len(tensors)}"
        )
    for number, (operand, tensor) in enumerate(zip(operands, tensors, strict=True)):
        own = tensor.dtype, _like(tensor.shape)
        given = (None, None) if operand is None else (operand.dtype, operand.shape)
        if given != own:
            raise InvalidArgumentError(
                f"{side} {number} of the region is {given[0]}{list(given[1] or ())}, "
                f"that of its graph {own[0]}{list(own[1])}"
            )
