"""Sessions of ONNX Runtime, shared by all who run the same graph on lanes of one class.

A session is run by any number of threads at once. But they meet at the locks of its
memory, and a thread that makes way for all others would hold those for as long as it
has no processor: so work of the lowest priority has sessions of its own. So have runs
on several threads, whose pool a session comes with. Each is made when it is needed
first. Sessions of one thread last as long as the models that have them, whose runs may
each be for other lengths; the others go with the last who uses them.
"""

import ctypes
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary, ref

import numpy as np

from asyncnn.devices.compiled_graph import Array
from asyncnn.devices.onnxruntime.graph_rewriting import (
    Weight,
    make_inputs,
    rewritten,
    shape_in_file,
    take_weights,
)
from asyncnn.devices.onnxruntime.region_checks import CheckedGraph, check_graph
from asyncnn.devices.onnxruntime.runtime_api import SILENT, OnnxRuntimeLibrary
from asyncnn.engine.array_memory import address_of
from asyncnn.extensions.regions import BFLOAT16, ONNX_DTYPES
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
)
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.memory.pages import are_equal, is_final, owner_of

DTYPES = ONNX_DTYPES | {16: BFLOAT16}
"""Dtypes by ONNX's element types; bfloat16 is two bytes."""

ELEMENT_TYPES = {dtype: type_ for type_, dtype in DTYPES.items()}

_OPTIONS = {
    # Threads spin only while a run needs them.
    b"session.force_spinning_stop": b"1",
    # A thread that is late, as others have its processor, is not waited for.
    b"session.dynamic_block_base": b"4",
}

_MOST_LEARNT = 1024


class SessionPort(NamedTuple):
    """An input or output of a session; ``lengths`` are None if any rank will do."""

    name: bytes
    element_type: int
    lengths: Sequence[int] | None

    @property
    def known_shape(self) -> Shape | None:
        """The shape that operands for it have; None if a length is open."""
        if self.lengths is None or any(length < 0 for length in self.lengths):
            return None
        return tuple(self.lengths) or (1,)

    def shape_of(self, what: str, operand: BoundOperand) -> Shape:
        """Return the shape of a tensor for this port, which ``operand`` is.

        :raises InvalidArgumentError: if it does not fit.
        """
        self.check_type(what, operand)
        return self.fitting(what, operand.require_shape())

    def fitting(self, what: str, shape: Shape) -> Shape:
        """Return the shape that a tensor has of which the HAL has this one.

        :raises InvalidArgumentError: if it does not fit.
        """
        lengths = self.lengths
        if lengths is None:
            return shape
        if not lengths and shape == (1,):
            return ()
        if len(shape) != len(lengths) or any(
            open_ != length
            for open_, length in zip(lengths, shape, strict=True)
            if open_ >= 0
        ):
            raise InvalidArgumentError(
                f"{what} has shape {list(shape)}; {self.name.decode()} of the graph "
                f"has {[None if each < 0 else each for each in lengths]}"
            )
        return shape

    def check_type(self, what: str, operand: BoundOperand) -> None:
        """Raise `InvalidArgumentError` if the operand is of another type."""
        if ELEMENT_TYPES.get(operand.dtype) != self.element_type:
            found = DTYPES.get(self.element_type, f"type {self.element_type}")
            raise InvalidArgumentError(
                f"{what} is {operand.dtype}; {self.name.decode()} of the graph is "
                f"{found}"
            )


InputShapes: TypeAlias = tuple[Shape | None, ...]


class LearntShapes:
    """Shapes of the outputs of a graph, by its inputs', as runs have had them.

    The last `_MOST_LEARNT` are kept. There are none once values have been found to
    decide, too. Any thread uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: OrderedDict[InputShapes, tuple[Shape, ...]] = OrderedDict()
        self._doubted: set[InputShapes] = set()
        self._is_given_up = False

    def of(self, inputs: InputShapes) -> tuple[Shape, ...] | None:
        """Return the shapes for the inputs' own; None if they are not known."""
        with self._lock:
            return None if inputs in self._doubted else self._shapes.get(inputs)

    def learn(self, inputs: InputShapes, outputs: tuple[Shape, ...]) -> None:
        """Expect the shapes that a run has had of others like it."""
        with self._lock:
            if self._is_given_up or 0 in map(math.prod, outputs):
                return
            self._doubted.discard(inputs)
            if self._shapes.setdefault(inputs, outputs) != outputs:
                self._is_given_up = True
                self._shapes.clear()
            elif len(self._shapes) > _MOST_LEARNT:
                self._doubted.discard(self._shapes.popitem(last=False)[0])

    def doubts(self, inputs: InputShapes) -> bool:
        """Return whether the last run that expected any shapes has failed."""
        with self._lock:
            return inputs in self._doubted

    def doubt(self, inputs: InputShapes) -> None:
        """Expect nothing until the next run, as one that expected it has failed."""
        with self._lock:
            if len(self._doubted) >= _MOST_LEARNT:
                self._doubted.clear()
            self._doubted.add(inputs)


class RegionSession:
    """A graph that is ready to run on ``threads`` threads, or the library's provider.

    All of one graph share what they have ``learnt``. Its last inputs are ``tables``,
    tensors that all runs are given, by their names.

    :raises AsyncnnError: if ONNX Runtime does not take it.
    """

    def __init__(
        self,
        library: OnnxRuntimeLibrary,
        content: Array | bytes,
        threads: int,
        graph: CheckedGraph,
        learnt: LearntShapes,
    ) -> None:
        self._library = library
        self.traits = graph.traits
        self.learnt = learnt
        self._released = _Released(library, content)
        self.handle = self._released.create(content, threads, graph)
        self.tables = self._released.tables
        self.outputs = self._ports("Output")
        inputs = self._ports("Input")
        self.inputs = inputs[: len(inputs) - len(self.tables)]
        # Of outputs, shapes that the file has where others follow from its inputs.
        self.wrong: tuple[Shape | None, ...] = ()
        if all(port.known_shape for port in self.inputs):
            pairs = zip(self.outputs, graph.model.graph.output, strict=False)
            self.wrong = tuple(
                None if port.known_shape else shape_in_file(info)
                for port, info in pairs
            )
        else:
            # What the file says of results may hold for one run only.
            self.outputs = tuple(
                port._replace(lengths=None) if port.lengths else port
                for port in self.outputs
            )

    def _ports(self, side: str) -> tuple[SessionPort, ...]:
        count = self._library.number(f"SessionGet{side}Count", self.handle)
        return tuple(self._port(side, number) for number in range(count))

    def _port(self, side: str, number: int) -> SessionPort:
        library = self._library
        name = library.text(f"SessionGet{side}Name", self.handle, number)
        type_ = library.create(f"SessionGet{side}TypeInfo", self.handle, number)
        try:
            tensor = ctypes.c_void_p()
            library.call("CastTypeInfoToTensorInfo", type_, ctypes.byref(tensor))
            if not tensor.value:
                raise InvalidArgumentError(
                    f"{side.lower()} {name.decode()} of the graph is no tensor"
                )
            return SessionPort(name, *library.described(tensor.value))
        finally:
            library.release("TypeInfo", type_)


_LARGE_BYTES = 1 << 20
"""Of tables; smaller ones are copied sooner than they are handed over at each run."""

_ELEMENT_BYTES = {number: dtype.itemsize for dtype, number in ELEMENT_TYPES.items()}


def _created(
    library: OnnxRuntimeLibrary,
    content: Array | bytes,
    threads: int,
    graph: CheckedGraph,
    values: list[int],
    tables: dict[bytes, int],
) -> int:
    """Return a new session of ONNX Runtime's.

    It copies large weights once, from where they lie: a file's are copied as
    that is read, and again. Of a file that nobody can change it copies those alone that
    kernels want in another order; the others, for which there are ``values`` then, it
    reads there. Large ``tables`` are inputs: all initializers are copied for a moment.
    """
    data = np.frombuffer(content, np.uint8)
    weights = take_weights(graph, data.data, _ELEMENT_BYTES)
    inputs: dict[bytes, Weight] = {}
    if library.provider is None and not isinstance(content, bytes):
        at = address_of(data)
        inputs = {
            each.name: each
            for each in weights
            if each.name in graph.tables
            and each.end - each.start >= _LARGE_BYTES
            and not (at + each.start) % _ELEMENT_BYTES[each.element_type]
        }
        if inputs:
            make_inputs(graph, inputs)
        weights = [each for each in weights if each.name not in inputs]
    rest = rewritten(graph)
    options = library.create("CreateSessionOptions")
    try:
        library.call("SetSessionLogSeverityLevel", options, SILENT)
        library.call("SetIntraOpNumThreads", options, threads)
        library.call("SetInterOpNumThreads", options, 1)
        for key, value in _OPTIONS.items():
            library.call("AddSessionConfigEntry", options, key, value)
        library.append_provider(options)
        for weight in (*inputs.values(), *weights):
            start, size = address_of(data) + weight.start, weight.end - weight.start
            kind = weight.lengths, weight.element_type
            values.append(library.tensor(start, size, *kind))
            if weight.name in inputs:
                tables[weight.name] = values[-1]
                continue
            is_aligned = not start % _ELEMENT_BYTES[weight.element_type]
            if is_aligned and not isinstance(content, bytes):
                library.call("AddInitializer", options, weight.name, values[-1])
        if weights:
            names = (ctypes.c_char_p * len(weights))(*[each.name for each in weights])
            given = (ctypes.c_void_p * len(weights))(*values[len(inputs) :])
            library.call("AddExternalInitializers", options, names, given, len(weights))
        file = library.environment, rest, len(rest)
        return library.create("CreateSessionFromArray", *file, options)
    finally:
        library.release("SessionOptions", options)


class _Released:
    """Releases a session when the last reference has gone, weak ones included.

    What the session reads of memory goes then, too. With a `__del__` of its own, a
    `RegionSession` could be found by its weak references while ONNX Runtime releases
    it, which takes a while without the interpreter lock.
    """

    def __init__(self, library: OnnxRuntimeLibrary, content: Array | bytes) -> None:
        self._library = library
        # Not the array itself: who has that has the session, not the other way round.
        self._memory = None if isinstance(content, bytes) else owner_of(content)
        self._session = 0
        self._values: list[int] = []
        self.tables: dict[bytes, int] = {}

    def create(self, content: Array | bytes, threads: int, graph: CheckedGraph) -> int:
        """Create the session; return it."""
        given = self._library, content, threads, graph, self._values, self.tables
        self._session = _created(*given)
        if self._memory is None:
            self._release_values()
        return self._session

    def _release_values(self) -> None:
        while self._values:
            self._library.release("Value", self._values.pop())

    def __del__(self) -> None:
        if self._session:
            self._library.release("Session", self._session)
        self._release_values()


class RegionSessions:
    """A graph, and the sessions that it has by now.

    There is a ``digest`` if whoever has the file may change it.
    """

    def __init__(
        self, library: OnnxRuntimeLibrary, digest: bytes | None = None
    ) -> None:
        self._library = library
        self._learnt = LearntShapes()
        self._digest = digest
        self._lock = threading.Lock()
        self._sessions: WeakValueDictionary[tuple[int, bool], RegionSession]
        self._sessions = WeakValueDictionary()

    def session(
        self,
        source: Array | bytes,
        threads: int = 1,
        *,
        makes_way: bool = False,
        graph: CheckedGraph | None = None,
    ) -> RegionSession:
        """Return the session for so many threads, made of ``source`` if there is none.

        ``graph`` is what it was found to be, and is not used again.

        :raises GeneralFailureError: if it cannot be made, or the file has changed.
        """
        with self._lock:
            found = self._sessions.get((threads, makes_way))
            if found is not None:
                return found
            content = source
            if self._digest is not None and not isinstance(source, bytes):
                content = source.tobytes()
                if digest_of(content) != self._digest:
                    changed = "the graph has changed since it was prepared"
                    raise GeneralFailureError(changed)
            about = graph or check_graph(_bytes_of(content)), self._learnt
            made = RegionSession(self._library, content, threads, *about)
            self._sessions[threads, makes_way] = made
            return made


class Sessions:
    """All graphs of a process that are in use, each of them once."""

    def __init__(self, library: OnnxRuntimeLibrary) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._regions: WeakValueDictionary[bytes, RegionSessions] = (
            WeakValueDictionary()
        )
        # By the identity of the array that a graph was found in: whoever has that has
        # looked at it before, and a plan for other lengths need not once more. The
        # session stays for them, too.
        self._known: dict[int, _Known] = {}
        self._is_forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that loaded it."""
        self._is_forked = True

    def of(self, operation: BoundOperation, threads: int = 1) -> RegionSession:
        """Return the session for an operation REGION, whose graph is its first input.

        What is checked is what ONNX Runtime gets, whatever a client writes meanwhile.

        :raises InvalidArgumentError: if it is none that may be run.
        :raises AsyncnnError: if ONNX Runtime does not take it.
        """
        if self._is_forked:
            raise forked_error("an engine")
        source: Array | None = operation.input(0).value
        if source is None:
            raise OperationFailedError("the graph of a region has to be a constant")
        makes_way = operation.makes_way
        known = self._known.get(id(source))
        if known is not None and known.source() is source:
            return known.region.session(source, threads, makes_way=makes_way)
        is_kept = is_final(source)
        content: Array | bytes = source.reshape(-1) if is_kept else source.tobytes()
        graph = check_graph(_bytes_of(content))
        number, regions = id(source), self._known
        gone = ref(source, lambda _: regions.pop(number, None))
        with self._lock:
            region = self._region(content)
            # Now: it is found by who comes while the session is made.
            known = regions[number] = _Known(gone, region)
        known.session = region.session(
            content, threads, makes_way=makes_way, graph=graph
        )
        return known.session

    def _region(self, content: Array | bytes) -> RegionSessions:
        """Return the graph of a file; a copy is of one that may be changed.

        The lock is held.
        """
        if isinstance(content, bytes):
            digest = digest_of(content)
            region = self._regions.get(digest)
            if region is None:
                region = RegionSessions(self._library, digest)
                self._regions[digest] = region
            return region
        for known in self._known.copy().values():
            other = known.source()
            if other is None or not is_final(other):
                continue
            if are_equal(other.reshape(-1), content):
                return known.region
        return RegionSessions(self._library)


class _Known:
    """An array with a file, the graph, and the session that stays for it."""

    def __init__(self, source: ref[Array], region: RegionSessions) -> None:
        self.source = source
        self.region = region
        self.session: RegionSession | None = None


def _bytes_of(content: Array | bytes) -> memoryview:
    return np.frombuffer(content, np.uint8).data


def digest_of(content: bytes) -> bytes:
    """Return what no other content has."""
    return hashlib.blake2b(content, digest_size=16).digest()
