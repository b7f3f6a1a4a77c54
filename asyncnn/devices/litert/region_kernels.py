"""Regions of TFLite: whole files that LiteRT runs, as operations of the HAL.

The file is a constant operand of the operation (`asyncnn.extensions.regions`). It is
read and checked without the engine, and written anew for the shapes that inputs have.
So a graph of open lengths is compiled for each that comes, as plans are. Where a run
alone shows the shapes of results, the public interpreter runs it; those behind IF and
WHILE are as recorded, or the run fails.
"""

import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asyncnn.devices.compiled_graph import CompiledTensor, GraphKernel, NoElementsError
from asyncnn.devices.litert.delegate import WORTH_SHARING_BYTES, version_with
from asyncnn.devices.litert.graph_file import Engine, GraphFile
from asyncnn.devices.litert.public_interpreter import computed
from asyncnn.devices.litert.region_file import region_file
from asyncnn.devices.litert.region_parts import region_parts
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.engine.array_memory import address_of
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import LITERT, region_extension, type_of
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.input_files import decoding
from asyncnn.kernels.kernel import Crossing, DividedKernel, KernelPart
from asyncnn.memory.pages import is_final
from asyncnn.pacing import Steps, completed
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
        super().__init__(
            lambda threads: engine.compile(file, threads=threads, weights=weights),
            graph,
        )


class LiteRtRegions:
    """The kernels of regions, on an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._version = version_with(engine)
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

    def prepare(self, operation: BoundOperation) -> RegionKernel | DividedKernel:
        """Compile a region whose shapes are all known; see `Prepare`."""
        if _NOTE not in operation.noted:
            contents = _contents(operation.value(0))
            parts = region_parts(contents, self._engine.speeds)
            # What has values is run at once, as it has no plan.
            if parts and all(each.value is None for each in _given(operation)):
                return DividedKernel(partial(self._parting, operation, contents, parts))
        kernel = self._kernel(operation)
        if kernel is None:
            raise GeneralFailureError(
                "the region's outputs have shapes that only a run shows",
                hint="a model that declares none for them can have it",
            )
        _check("input", operation.inputs[1:], kernel.inputs)
        _check("output", operation.outputs, kernel.outputs)
        kernel.reads = tuple(range(1, 1 + len(kernel.inputs)))
        return kernel

    def _parting(
        self, operation: BoundOperation, contents: Contents, parts: Sequence[Contents]
    ) -> Steps[tuple[list[KernelPart], list[Crossing]]]:
        """Compile the parts of a region, each for shapes that the last one gives."""
        main, given = contents.graphs[0], _own_shapes(contents, _given(operation))
        shapes = dict(zip(main.inputs, given, strict=True))
        numbers = {index: at for at, index in enumerate(main.inputs + main.outputs, 1)}
        ends: dict[int, CompiledTensor] = {}
        made: list[KernelPart] = []
        crossing: list[Crossing] = []
        for part in parts:
            graph, nbytes = part.graphs[0], operation.value(0).nbytes
            try:
                needed = [shapes[index] for index in graph.inputs]
                kernel = self._compiled(nbytes, part, needed)
            except NoElementsError:  # there is no memory for what crosses
                if part is contents:
                    raise
                return (yield from self._parting(operation, contents, [contents]))
            own = graph.inputs + graph.outputs
            ends.update(zip(own, kernel.inputs + kernel.outputs, strict=True))
            for index in graph.outputs:
                shapes[index] = ends[index].shape
                if index not in numbers:
                    numbers[index] = 1 + len(numbers)
                    type_ = type_of(LITERT, ends[index].dtype)
                    crossing.append((type_, _like(shapes[index])))
            read = tuple(numbers[index] for index in graph.inputs)
            written = tuple(numbers[index] for index in graph.outputs)
            made.append(KernelPart(kernel, read, written))
            yield
        _check("input", operation.inputs[1:], [ends[index] for index in main.inputs])
        _check("output", operation.outputs, [ends[index] for index in main.outputs])
        return made, crossing

    def compute(self, operation: BoundOperation) -> Sequence[Array]:
        """Run a region whose shapes only a run shows; see `Compute`."""
        contents = _contents(operation.value(0))
        shapes = _own_shapes(contents, _given(operation))
        file = self._file(contents, shapes)
        given = [operand.require_value() for operand in _given(operation)]
        results = computed(file, given)
        return [
            np.ascontiguousarray(each).reshape(_like(each.shape)) for each in results
        ]

    def _kernel(self, operation: BoundOperation) -> RegionKernel | None:
        return operation.note(_NOTE, lambda: self._settled(operation))

    def _settled(self, operation: BoundOperation) -> RegionKernel | None:
        """Return the graph for the inputs' shapes; None if a run makes its results."""
        graph = operation.value(0)
        contents = _contents(graph)
        shapes = _own_shapes(contents, _given(operation))
        is_surprising = runnable.may_surprise(contents)
        is_recorded = all(each.shape is not None for each in operation.outputs)
        is_checked = is_surprising and is_recorded and runnable.calls(contents)
        is_unknown = is_surprising and not is_checked
        if is_unknown and not self._is_settled(contents, shapes):
            self._surprising.add(id(graph))
            weakref.finalize(graph, self._surprising.discard, id(graph))
            return None
        try:
            return self._compiled(graph.nbytes, contents, shapes, is_checked=is_checked)
        except NoElementsError:  # there can only be LiteRT's own memory for it
            return None

    def _compiled(
        self, nbytes: int, contents: Contents, shapes: Sequence[Shape], **ends: Any
    ) -> RegionKernel:
        """Return the graph of a file of ``nbytes``, or of a part of it."""
        file = self._file(contents, shapes, **ends)
        weights = None
        if nbytes >= WORTH_SHARING_BYTES:
            key = weights_key(os.urandom(16), self._version)
            weights = PackedWeights(key)
        kernel = RegionKernel(self._engine, file, weights)
        kernel.is_foreseeable = not runnable.calls(contents, "WHILE")
        return kernel

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
        self, contents: Contents, shapes: Sequence[Shape], **ends: Any
    ) -> GraphFile:
        with decoding("TFLite"):
            return region_file(contents, shapes, self._engine.speeds, **ends)


def _own_shapes(contents: Contents, given: Sequence[BoundOperand]) -> list[Shape]:
    """Return the shapes of a file's inputs as LiteRT has them.

    :raises InvalidArgumentError: if it cannot have them.
    """
    main = contents.graphs[0]
    if len(given) != len(main.inputs):
        raise InvalidArgumentError(
            f"{len(given)} inputs for {main.label}, which has {len(main.inputs)}"
        )
    own = []
    for operand, index in zip(given, main.inputs, strict=True):
        shape, tensor = operand.require_shape(), main.tensors[index]
        if _like(tensor.shape) != shape and len(tensor.shape) != len(shape):
            raise InvalidArgumentError(
                f"{tensor.label} of shape {list(tensor.shape)} cannot have "
                f"{list(shape)}"
            )
        own.append(tensor.shape if _like(tensor.shape) == shape else shape)
    return own


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
                f"of its graph {own[0]}{list(own[1])}"
            )
