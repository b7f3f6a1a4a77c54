"""Regions as kernels: graphs on sessions, for shapes that are declared and others.

Where all shapes are known, declared or from earlier runs, a region is a graph that a
job runs: ONNX Runtime reads and writes tensors that lie over the memory of the run.
Else it allocates the outputs itself, which are handed over. A run is ended by ONNX
Runtime's own means, a flag that it looks at before each node: it does not ask, so it is
set.
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from asyncnn.devices.compiled_graph import (
    Array,
    CompiledGraph,
    CompiledTensor,
    GraphKernel,
)
from asyncnn.devices.onnxruntime.runtime_api import (
    OnnxRunOptions,
    OnnxRuntimeLibrary,
    Values,
    words_of,
)
from asyncnn.devices.onnxruntime.sessions import (
    DTYPES,
    InputShapes,
    RegionSession,
    SessionPort,
    Sessions,
)
from asyncnn.engine.array_memory import address_of
from asyncnn.engine.job import (
    FLAG_BYTES,
    INTERRUPTED,
    JobSegment,
    PythonSegment,
    TensorCalls,
)
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError, StalePlanError
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape

_ALIGNMENT_BYTES = 16
"""Of arrays that ONNX Runtime is given: NumPy's own have no more."""


class RegionArgument(NamedTuple):
    """A tensor that ONNX Runtime is given."""

    port: SessionPort
    shape: Shape
    nbytes: int


class SessionSignature(NamedTuple):
    """What a region's operands are for a session: places of inputs that vary, too."""

    reads: tuple[int, ...]
    inputs: tuple[RegionArgument, ...]
    constants: tuple[tuple[RegionArgument, Array], ...]
    outputs: tuple[RegionArgument, ...]


def signature_of(operation: BoundOperation, session: RegionSession) -> SessionSignature:
    """Compare operands with the ports of a session.

    :raises InvalidArgumentError: if they are not the graph's.
    """
    operands = _operands_of(operation, session)
    reads: list[int] = []
    inputs: list[RegionArgument] = []
    constants: list[tuple[RegionArgument, Array]] = []
    for place, (port, operand) in enumerate(
        zip(session.inputs, operands, strict=True), 1
    ):
        if operand is None:
            raise InvalidArgumentError(f"input {place} of a region is omitted")
        argument = _argument(port, f"input {place}", operand)
        _check_elements(session, place, argument.port, argument.shape)
        if operand.value is None:
            reads.append(place)
            inputs.append(argument)
        else:
            constants.append((argument, np.require(operand.value, None, ["C", "A"])))
    outputs: list[RegionArgument] = []
    learnt = session.learnt.of(_shapes_of(operands))
    for number, (port, operand) in enumerate(
        zip(session.outputs, operation.outputs, strict=True)
    ):
        if operand.shape is None:
            port.check_type(f"output {number}", operand)
            continue
        if learnt and operand.shape == learnt[number] and port.lengths:
            port = port._replace(lengths=None)  # the graph may say another one
        outputs.append(_argument(port, f"output {number}", operand))
    return SessionSignature(
        tuple(reads), tuple(inputs), tuple(constants), tuple(outputs)
    )


def _operands_of(
    operation: BoundOperation, session: RegionSession
) -> Sequence[BoundOperand | None]:
    """Return the operands of a region's inputs, as many as its graph has."""
    operands, results = operation.inputs[1:], operation.outputs
    inputs, outputs = len(session.inputs), len(session.outputs)
    if len(operands) != inputs or len(results) != outputs:
        raise InvalidArgumentError(
            f"a region of {len(operands)} inputs and {len(results)} outputs; "
            f"the graph has {inputs} and {outputs}"
        )
    return operands


def _check_elements(
    session: RegionSession, place: int, port: SessionPort, shape: Shape
) -> None:
    axis = session.traits.needs_elements.get(port.name)
    if axis is not None and 0 in shape[axis:]:
        reason = "on which an operator of the graph may end the process"
        raise InvalidArgumentError(f"input {place} has no elements, {reason}")


def _argument(port: SessionPort, what: str, operand: BoundOperand) -> RegionArgument:
    shape = port.shape_of(what, operand)
    return RegionArgument(port, shape, operand.dtype.itemsize * math.prod(shape))


class OnnxRegions:
    """Kernels of the operation REGION."""

    def __init__(self, library: OnnxRuntimeLibrary) -> None:
        self._library = library
        self._sessions = Sessions(library)

    def shapes(self, operation: BoundOperation) -> tuple[Shape | None, ...]:
        """Return the shapes of the outputs; see `ShapeRule`.

        :raises AsyncnnError: as `prepare`: what is wrong with a graph is said at once.
        """
        session = self._sessions.of(operation)
        declared = tuple(output.shape for output in operation.outputs)
        if len(declared) != len(session.outputs):
            return declared  # of another number, it is refused
        for number, wrong in enumerate(session.wrong):
            if wrong and declared[number] == wrong:
                raise InvalidArgumentError(
                    f"output {number} of the graph has another shape than {list(wrong)}"
                )
        given = _shapes_of(operation.inputs[1:])
        found: tuple[Shape | None, ...] | None = session.learnt.of(given)
        if found is None:
            found = tuple(port.known_shape for port in session.outputs)
        if session.learnt.doubts(given):
            found = (None,) * len(declared)
        shapes = tuple(
            known or shape for known, shape in zip(declared, found, strict=True)
        )
        # Tensors without elements can only have ONNX Runtime's own memory.
        is_empty = any(0 in shape for shape in (*given, *shapes) if shape)
        return (None,) * len(shapes) if is_empty else shapes

    def prepare(self, operation: BoundOperation) -> GraphKernel:
        """Return the kernel of a region whose shapes are all known; see `Prepare`.

        :raises InvalidArgumentError: if its graph may not be run, or is another one.
        :raises AsyncnnError: if ONNX Runtime does not take the graph.
        """
        return _RegionKernel(self._library, self._sessions, operation)

    def prepare_open(self, operation: BoundOperation) -> GraphKernel:
        """Return the kernel of a region for inputs of any lengths; see `PrepareOpen`.

        :raises AsyncnnError: as `prepare`.
        """
        return _OpenKernel(self._library, self._sessions, operation)


class _RegionKernel(GraphKernel):
    """A region whose shapes are all known."""

    may_pause = False
    serves_all_lengths = True

    def __init__(
        self, library: OnnxRuntimeLibrary, sessions: Sessions, operation: BoundOperation
    ) -> None:
        session = sessions.of(operation)
        signature = signature_of(operation, session)
        self.reads = signature.reads
        shapes = _shapes_of(operation.inputs[1:])
        expected_for = None if session.learnt.doubts(shapes) else shapes
        self.is_foreseeable = not session.traits.may_loop

        def graph_on(session: RegionSession) -> CompiledGraph:
            return _SessionGraph(library, session, signature, expected_for)

        super().__init__(
            lambda threads: graph_on(sessions.of(operation, threads)), graph_on(session)
        )


class _OpenKernel(GraphKernel):
    """A region for inputs of any lengths."""

    may_pause = False
    serves_all_lengths = is_open = True

    def __init__(
        self, library: OnnxRuntimeLibrary, sessions: Sessions, operation: BoundOperation
    ) -> None:
        session = sessions.of(operation)
        operands = _operands_of(operation, session)
        self.reads = tuple(range(1, len(operation.inputs)))
        self.is_foreseeable = not session.traits.may_loop
        given = zip(self.reads, session.inputs, operands, strict=True)
        for place, port, operand in given:
            if operand is not None:
                port.check_type(f"input {place}", operand)
        results = zip(session.outputs, operation.outputs, strict=True)
        for number, (port, operand) in enumerate(results):
            port.check_type(f"output {number}", operand)

        super().__init__(
            lambda threads: _OpenGraph(library, sessions.of(operation, threads)),
            _OpenGraph(library, session),
        )


def _shapes_of(operands: Sequence[BoundOperand | None]) -> InputShapes:
    return tuple(None if operand is None else operand.shape for operand in operands)


class _SessionCall:
    """What all runs of a graph on a session have in common.

    ``inputs`` are the names of what is given, before the session's own tables.
    """

    def __init__(
        self,
        library: OnnxRuntimeLibrary,
        session: RegionSession,
        inputs: Iterable[bytes],
    ) -> None:
        self.session = session
        self.options = OnnxRunOptions(library)
        self._input_names = words_of([*inputs, *session.tables])
        self._output_names = words_of([port.name for port in session.outputs])

    def words(self, inputs: Any, outputs: Any) -> tuple[int, ...]:
        """Return the words to call ``Run`` with, for arrays of tensors."""
        return (
            *(self.session.handle, self.options.handle),
            *(ctypes.addressof(self._input_names), ctypes.addressof(inputs)),
            *(len(self._input_names), ctypes.addressof(self._output_names)),
            *(len(self._output_names), ctypes.addressof(outputs)),
        )


class _SessionGraph(JobSegment, CompiledGraph):
    """A region on a session, one run at a time.

    The shapes of its outputs may be what is ``expected_for`` the shapes of its inputs,
    as the graph says or runs have had them; None if there are no others.
    """

    def __init__(
        self,
        library: OnnxRuntimeLibrary,
        session: RegionSession,
        signature: SessionSignature,
        expected_for: InputShapes | None,
    ) -> None:
        self._flag = ctypes.create_string_buffer(FLAG_BYTES)
        self._library, self._learnt = library, session.learnt
        self._expected_for = expected_for
        constants = signature.constants
        named = *signature.inputs, *[argument for argument, _ in constants]
        values = Values(library)
        for argument, array in constants:
            about = argument.nbytes, argument.shape, argument.port.element_type
            values.add(address_of(array), *about)
        call = _SessionCall(library, session, [each.port.name for each in named])
        # The constants lie there.
        self._kept: object = call, values, [array for _, array in constants]
        self._options = call.options  # there may be a late word to these
        self.inputs = tuple(map(_tensor, signature.inputs))
        self.outputs = tuple(map(_tensor, signature.outputs))
        CompiledGraph.__init__(self)
        arguments = signature.inputs + signature.outputs
        none = [0] * len(arguments)
        given = *values.made, *session.tables.values()
        inputs = words_of([*none[: len(self.inputs)], *given])
        outputs = words_of(none[len(self.inputs) :])
        lengths = [
            (ctypes.c_int64 * len(each.shape))(*each.shape) for each in arguments
        ]
        self._places = inputs, outputs, lengths
        tensors = TensorCalls(
            call.words(inputs, outputs),
            library.address("CreateTensorWithDataAsOrtValue"),
            library.release_address("Value"),
            library.memory,
            (*_cells(inputs, len(self.inputs)), *_cells(outputs, len(self.outputs))),
            tuple(
                (ctypes.addressof(each), len(each), argument.port.element_type)
                for each, argument in zip(lengths, arguments, strict=True)
            ),
            _ALIGNMENT_BYTES,
        )
        address, ends = library.address("Run"), (self.inputs, self.outputs)
        stop_by = call.options.stop_calls()
        JobSegment.__init__(self, address, self._flag, *ends, stop_by, tensors)

    def _ended(self, status: int) -> None:
        """See `JobSegment`."""
        error = self._library.failure("Run", status)
        if self._flag[0] >= INTERRUPTED:
            return
        if self._expected_for is not None and type(error) is GeneralFailureError:
            # If the reason is another one, the run without a plan fails of it, too.
            self._learnt.doubt(self._expected_for)
            raise StalePlanError(error.message) from error
        raise error

    def _free(self) -> None:
        self.forget()
        self._kept = None


class _OpenGraph(PythonSegment, CompiledGraph):
    """A region on a session for any lengths; ONNX Runtime allocates outputs."""

    def __init__(self, library: OnnxRuntimeLibrary, session: RegionSession) -> None:
        self._flag = ctypes.create_string_buffer(FLAG_BYTES)
        self._library = library
        names = [port.name for port in session.inputs]
        self._call = call = _SessionCall(library, session, names)
        CompiledGraph.__init__(self)
        address, stop_by = library.address("Run"), call.options.stop_calls()
        PythonSegment.__init__(self, address, self._flag, (), (), stop_by)

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Put what is computed into the list of outputs; see `PythonSegment`."""
        call, library = self._call, self._library
        session, values = call.session, Values(library)
        arrays = [each if _is_usable(each) else each.copy() for each in inputs]
        for place, (port, array) in enumerate(
            zip(session.inputs, arrays, strict=True), 1
        ):
            if array is None:
                raise InvalidArgumentError(f"input {place} of a region is omitted")
            shape = port.fitting(f"input {place}", array.shape)
            _check_elements(session, place, port, shape)
            values.add(address_of(array), array.nbytes, shape, port.element_type)
        # The words of the call are addresses: what they are of has to last.
        given = words_of([*values.made, *session.tables.values()])
        made = words_of([0] * len(session.outputs))
        status = self._function(*call.words(given, made))
        # Each by itself: who keeps one output is not to keep all others.
        own = [Values(library, each) for each in made if each]
        if status:
            error = library.failure("Run", status)
            if self._flag[0] < INTERRUPTED:
                raise error
            return False
        assert isinstance(outputs, list)
        results = zip(session.outputs, own, strict=True)
        outputs[:] = [_array_of(library, *each) for each in results]
        shapes = [tuple([each.shape for each in side]) for side in (inputs, outputs)]
        session.learnt.learn(*shapes)
        return True

    def _free(self) -> None: ...


def _is_usable(array: Array | None) -> bool:
    return array is None or (array.flags.c_contiguous and array.flags.aligned)


def _tensor(argument: RegionArgument) -> CompiledTensor:
    return CompiledTensor(
        DTYPES[argument.port.element_type], argument.shape, argument.nbytes
    )


def _cells(words: Any, count: int) -> range:
    """Return the addresses of the first of some pointers."""
    start, size = ctypes.addressof(words), ctypes.sizeof(words._type_)
    return range(start, start + count * size, size)


def _array_of(library: OnnxRuntimeLibrary, port: SessionPort, values: Values) -> Array:
    """Return the elements of a tensor of ONNX Runtime's own, which the array keeps."""
    (value,) = values.made
    shape, dtype = library.shape_of(value) or (1,), DTYPES[port.element_type]
    if 0 in shape:
        return np.empty(shape, dtype)
    address = library.create("GetTensorMutableData", value)
    place = {"data": (address, False), "shape": shape, "typestr": dtype.str}
    about = {"__array_interface__": place | {"version": 3}, "values": values}
    return np.asarray(SimpleNamespace(**about))
