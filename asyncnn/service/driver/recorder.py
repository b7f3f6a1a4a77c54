"""The flight recorder: what a driver notes of its last calls.

All of it lies in a memory file of a fixed size (`asyncnn.service.recorded_memory`),
which others may read while the driver works, and after it has died. `CallRecorder` owns
that. Each connection notes its calls by a `ClientRecorder`, and each of its bursts by a
`BurstRecorder`. All belong to the event loop; what takes long is done on a thread.

What a request or a model is of is written once, and a record of a call names it by
number. While it is in use it is carried over from one half of the memory into the
other.
"""

import itertools
import json
import logging
import time
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from asyncnn.burst.slots import IBurstNote
from asyncnn.hal.errors import MISSED, AsyncnnError
from asyncnn.hal.routes import Route
from asyncnn.hal.types import ErrorStatus, Memory, Model, Request, RequestArgument
from asyncnn.logs import SparseLogger
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.pools import view
from asyncnn.memory.shared import create_sealed
from asyncnn.offload import call_on_thread
from asyncnn.service import wire
from asyncnn.service.driver.call_ring import CallNote, CallRing, flag, note_result
from asyncnn.service.limits import RecordingSettings
from asyncnn.service.recorded_memory import (
    BLOB,
    HEAD,
    HEAD_BYTES,
    MAGIC,
    MEMORY_NAME,
    MOST,
    RECORD_BYTES,
    TEMPLATE,
    BlobKind,
    CallFlag,
    CallKind,
    aligned,
    aligned_records,
    none_or,
    until,
)
from asyncnn.service.recording import (
    CallDetails,
    Pools,
    RecordedBuffer,
    RecordedDriver,
    RecordedModel,
    RecordedRequest,
    RecordedRoute,
    Tensors,
    digest_of,
    encode,
    encoded_model,
    pool_of,
    save_memory,
    tensors_of,
    whole,
)

log = SparseLogger(logging.getLogger(__name__))

_PAUSE_NS = 10**9
"""Between two files of missed deadlines."""

_Copy: TypeAlias = wire.CopyBufferTo | wire.CopyBufferFrom


class NotedBlob:
    """A blob in use: carried over as long as somebody has this object.

    ``template`` is for executions of a ``request``.
    """

    __slots__ = ("__weakref__", "at", "number", "request", "size", "template")

    def __init__(self, number: int) -> None:
        self.number = number
        self.at = self.size = 0
        self.template = b""
        self.request: Request | None = None


class CallRecorder:
    """Notes the last calls of a driver, which says of itself what ``driver`` has.

    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """

    def __init__(self, settings: RecordingSettings, driver: RecordedDriver) -> None:
        self.settings = settings
        records = aligned_records(settings.calls)
        self._half = settings.max_bytes // 16 * 8
        self.most_bytes = self._half // 4
        size = HEAD_BYTES + records + 2 * self._half
        fd, memory = create_sealed(size, MEMORY_NAME)
        self._file: Descriptor | None = Descriptor(fd)
        started = time.time_ns(), time.monotonic_ns()
        HEAD.pack_into(memory, 0, MAGIC, settings.calls, self._half, *started)
        words = json.dumps(msgspec.to_builtins(driver)).encode()
        words = words[: HEAD_BYTES - HEAD.size - 1]
        memory[HEAD.size : HEAD.size + len(words)] = words
        end = HEAD_BYTES + settings.calls * RECORD_BYTES
        self.records = memory[HEAD_BYTES:end]
        self.records[:] = bytes(len(self.records))  # so that its pages are there
        self.ring = CallRing(self.records)
        self._blobs = memory[HEAD_BYTES + records :]
        self._numbers = itertools.count(1)
        self._connections = itertools.count(1)
        self._in_use: weakref.WeakValueDictionary[int, NotedBlob]
        self._in_use = weakref.WeakValueDictionary()
        self._start = self._at = 0
        self._written_ns = 0
        self._is_writing = False

    @property
    def fd(self) -> int:
        """The descriptor of the memory, until it is closed."""
        assert self._file is not None
        return self._file.fd

    def close(self) -> None:
        """Let go of the memory; whoever has opened it keeps it."""
        self._in_use.clear()
        self._file = None

    def of_client(self, pid: int) -> "ClientRecorder":
        """Return what notes the calls of a new connection of a process."""
        return ClientRecorder(self, pid, next(self._connections))

    def keep(self, kind: BlobKind, content: object) -> NotedBlob:
        """Write a blob; one that there is no room for is left out."""
        kept = NotedBlob(next(self._numbers))
        self.write(kept, kind, encode(content))
        return kept

    def write(self, kept: NotedBlob, kind: BlobKind, data: bytes) -> None:
        """Write the bytes of a blob, and carry them over while it is in use."""
        size = aligned(len(data))
        if size > self.most_bytes:
            return
        if not self._has_room(size):
            self._turn_over()
        if self._has_room(size):
            head = kept.number, kind, len(data), zlib.crc32(data), 0
            kept.at, kept.size = self._at, size
            at = self._at + BLOB.size
            self._blobs[at : at + len(data)] = data
            self._put_head(*head)
            self._in_use[kept.number] = kept

    def ended(self, status: ErrorStatus) -> None:
        """Write a file if a deadline was missed, and that was asked for."""
        path = self.settings.missed_deadlines_to
        if status not in MISSED or not path or self._is_writing:
            return
        now_ns = time.monotonic_ns()
        if now_ns - self._written_ns >= _PAUSE_NS:
            self._written_ns, self._is_writing = now_ns, True
            if call_on_thread(self._write_file) is None:
                self._is_writing = False

    def _write_file(self) -> None:
        path, file = self.settings.missed_deadlines_to, self._file
        try:
            if file is not None:
                save_memory(file.fd, path)
        except (AsyncnnError, OSError) as error:
            log.log(logging.WARNING, "%s is not written: %s", path, error)
        finally:
            self._is_writing = False

    def _has_room(self, size: int) -> bool:
        return self._at + size + BLOB.size <= self._start + self._half

    def _put_head(self, *head: int) -> None:
        """End the list after a blob that is whole, then have it be the last one."""
        end = self._at + aligned(head[2])
        BLOB.pack_into(self._blobs, end, 0, 0, 0, 0, 0)
        BLOB.pack_into(self._blobs, self._at, *head)
        self._at = end

    def _turn_over(self) -> None:
        """Go on in the other half, with what is in use, as far as half of it."""
        self._start = self._at = self._half - self._start
        BLOB.pack_into(self._blobs, self._at, 0, 0, 0, 0, 0)
        for kept in list(self._in_use.values()):
            if self._at + kept.size > self._start + self._half // 2:
                del self._in_use[kept.number]
                continue
            old = self._blobs[kept.at : kept.at + kept.size]
            self._blobs[self._at + 8 : self._at + kept.size] = old[8:]
            head = BLOB.unpack_from(old)
            kept.at = self._at
            self._put_head(*head)


class ClientRecorder:
    """Notes the calls of one connection, ``connection``, of process ``pid``."""

    def __init__(self, recorder: CallRecorder, pid: int, connection: int) -> None:
        self._recorder = recorder
        self._whose = pid & 0xFFFFFFFF, connection & 0xFFFFFFFF
        self._models: dict[int, tuple[NotedBlob, NotedBlob | None]] = {}
        self.ring = recorder.ring
        self.begin = recorder.ring.begin
        self.keeps_tensors = recorder.settings.tensors
        self.end = recorder.ring.end

    def model_of(self, model: Model) -> RecordedModel:
        """Return what is kept of a model whose pools are mapped. Takes long."""
        content, operations = encoded_model(model)
        pools = tuple([view(pool)[: pool.size] for pool in model.pools])
        size = len(content) + sum(map(len, pools))
        digest = digest_of(content, pools)
        settings = self._recorder.settings
        if not settings.models or size > settings.max_bytes // 8:
            return RecordedModel(digest, size, operations)
        kept = tuple(map(bytes, pools))
        return RecordedModel(digest, size, operations, content, kept)

    def prepare(self, message: wire.PrepareModel[Model], model: RecordedModel) -> int:
        """Note that a model is to be prepared; return the number of the call."""
        preference, priority = message.preference, message.priority
        model = replace(model, preference=preference, priority=priority)
        kept = self._recorder.keep(BlobKind.MODEL, model)
        self._models[message.prepared] = kept, None
        return self._begin(
            CallKind.PREPARE, subject=kept, limits=(message.deadline, None, None)
        )

    def prepared(self, number: int, route: Route | None) -> None:
        """Note how executions of a model usually go."""
        known = self._models.get(number)
        if known is not None and route is not None:
            content = RecordedRoute(known[0].number, route)
            kept = self._recorder.keep(BlobKind.ROUTE, content)
            self._models[number] = known[0], kept

    def release(self, number: int) -> None:
        """Let go of a model."""
        self._models.pop(number, None)

    def load(self) -> int:
        """Note that a model is to be loaded; return the number of the call."""
        return self._begin(CallKind.LOAD)

    def query(self, model: RecordedModel) -> int:
        """Note a question about a model; return the number of the call."""
        kept = self._recorder.keep(BlobKind.MODEL, model)
        return self._begin(CallKind.SUPPORTED, subject=kept)

    def allocate(self) -> int:
        """Note that a buffer is to be allocated; return the number of the call."""
        return self._begin(CallKind.ALLOCATE)

    def request(
        self,
        prepared: int,
        request: Request,
        kind: CallKind = CallKind.EXECUTE,
        measure: int = 0,
        number: int = 0,
    ) -> NotedBlob:
        """Keep a request for a prepared model of the client."""
        model, _ = self._models.get(prepared, (None, None))
        pools = tuple(map(pool_of, request.pools))
        arguments = request.inputs, request.outputs
        content = RecordedRequest(model.number if model else 0, *arguments, pools)
        kept = self._recorder.keep(BlobKind.REQUEST, content)
        kept.request = request
        given = measure, number
        kept.template = self._template(kind, *given, subject=kept)
        return kept

    def execution(
        self,
        order: wire.Execute | wire.ExecuteBound,
        kept: NotedBlob | None,
        fenced: wire.ExecuteFenced | None = None,
        foreign: int = 0,
    ) -> int:
        """Note an execution of a request; return the number of the call."""
        inputs = self._inputs(kept)
        details = CallDetails(inputs or ())
        kind, duration = CallKind.EXECUTE, None
        if fenced is not None:
            kind, duration = CallKind.FENCED, fenced.duration
            details = CallDetails(details.inputs, fenced.wait_for, foreign)
        call = self._begin(
            kind,
            measure=order.measure,
            number=order.execution,
            subject=kept,
            details=details,
            limits=(order.deadline, order.loop_timeout, duration),
        )
        return self._marked(call, inputs)

    def ended(
        self, call: int, status: ErrorStatus, kept: NotedBlob | None = None
    ) -> None:
        """Note the end of a call, with its outputs if they are to be kept."""
        if not call:
            return
        recorder = self._recorder
        if self.keeps_tensors and kept is not None and status is ErrorStatus.NONE:
            assert kept.request is not None
            self._keep_outputs(call, kept.request.pools, kept.request.outputs)
        self.end(call, status)
        if status is not ErrorStatus.NONE:
            recorder.ended(status)

    def cancelled(self, call: int) -> None:
        """Note that a call was cancelled."""
        flag(self._recorder.records, call, CallFlag.CANCELLED)

    def left(self, call: int) -> None:
        """Note that the client of a call has gone."""
        flag(self._recorder.records, call, CallFlag.LEFT)

    def burst(self, prepared: int, number: int) -> "BurstRecorder":
        """Return what notes the executions of a burst of a model."""
        return BurstRecorder(self, prepared, number)

    def allocated(self, call: int, message: wire.Allocate, token: int) -> NotedBlob:
        """Keep what a buffer is, which a call has allocated."""
        models = [self._models.get(each) for each in message.models]
        content = RecordedBuffer(
            message.dimensions,
            tuple([known[0].number if known else 0 for known in models]),
            message.input_roles,
            message.output_roles,
            token,
        )
        kept = self._recorder.keep(BlobKind.BUFFER, content)
        note_result(self._recorder.records, call, kept.number)
        return kept

    def copy(self, message: _Copy, token: int, pool: Memory) -> int:
        """Note a copy of a buffer; return the number of the call."""
        kind = CallKind.COPY_TO
        given: Tensors | None = ()
        dimensions: tuple[int, ...] = ()
        if isinstance(message, wire.CopyBufferFrom):
            kind, dimensions = CallKind.COPY_FROM, message.dimensions
            given = self._tensors((pool,), (whole(pool),))
        details = CallDetails(given or (), buffer=token, dimensions=dimensions)
        call = self._begin(kind, number=pool.size, details=details)
        return self._marked(call, given)

    def copied(
        self, call: int, message: _Copy, status: ErrorStatus, pool: Memory
    ) -> None:
        """Note the end of a copy."""
        is_given = status is ErrorStatus.NONE and self.keeps_tensors
        if is_given and isinstance(message, wire.CopyBufferTo):
            self._keep_outputs(call, (pool,), (whole(pool),))
        self.ended(call, status)

    def begin_burst(self, kept: NotedBlob, deadline: int | None) -> int:
        """Note an execution by a burst that is not as all others."""
        inputs = self._inputs(kept)
        details = CallDetails(inputs or ())
        template = list(TEMPLATE.unpack(kept.template))
        if details != _NO_DETAILS:
            template[6] = self._recorder.keep(BlobKind.DETAILS, details).number
        template[7] = until(deadline)
        return self._marked(self.begin(TEMPLATE.pack(*template)), inputs)

    def _inputs(self, kept: NotedBlob | None) -> Tensors | None:
        if kept is None or kept.request is None:
            return ()
        return self._tensors(kept.request.pools, kept.request.inputs)

    def _tensors(
        self, pools: Pools, arguments: Sequence[RequestArgument]
    ) -> Tensors | None:
        """Return what is to be kept of tensors; None if there is no room for them."""
        if not self.keeps_tensors:
            return ()
        return tensors_of(pools, arguments, self._recorder.most_bytes)

    def _keep_outputs(
        self, call: int, pools: Pools, arguments: Sequence[RequestArgument]
    ) -> None:
        outputs = self._tensors(pools, arguments)
        if outputs is not None:
            result = self._recorder.keep(BlobKind.TENSORS, outputs)
            note_result(self._recorder.records, call, result.number)

    def _marked(self, call: int, inputs: Tensors | None) -> int:
        """Note if there was no room for the inputs of a call; return its number."""
        if inputs is None:
            flag(self._recorder.records, call, CallFlag.PARTIAL)
        return call

    def _begin(self, kind: CallKind, **more: Any) -> int:
        return self.begin(self._template(kind, **more))

    def _template(
        self,
        kind: CallKind,
        measure: int = 0,
        number: int = 0,
        *,
        subject: NotedBlob | None = None,
        details: CallDetails | None = None,
        limits: Sequence[int | None] = (None, None, None),
    ) -> bytes:
        """Return what is noted of a call with a deadline, and two durations."""
        noted, (deadline, *durations) = 0, limits
        if details is not None and details != _NO_DETAILS:
            noted = self._recorder.keep(BlobKind.DETAILS, details).number
        return TEMPLATE.pack(
            kind,
            max(-(2**31), min(measure, 2**31 - 1)),
            *self._whose,
            number & MOST,
            0 if subject is None else subject.number,
            noted,
            until(deadline),
            *map(none_or, durations),
        )


class BurstRecorder:
    """Notes the executions of burst ``number``; see `IBurstRecorder`."""

    def __init__(self, client: ClientRecorder, prepared: int, number: int) -> None:
        self._client = client
        self._prepared = prepared
        self._number = number

    def request(self, request: Request, measure: int) -> NotedBlob:
        """Keep a request that packets stand for."""
        kind = CallKind.BURST, measure, self._number
        return self._client.request(self._prepared, request, *kind)

    def note(self, about: Any, deadline: int | None = None) -> IBurstNote:
        """Return what notes executions of a request."""
        if deadline is None and not self._client.keeps_tensors:
            return CallNote(self._client.ring, about.template)
        return BurstNote(self._client, about, deadline)

    def cancelled(self, call: int) -> None:
        """Note that an execution was cancelled."""
        self._client.cancelled(call)


class BurstNote:
    """Notes executions with a deadline, or with tensors; see `CallNote`."""

    def __init__(
        self, client: ClientRecorder, about: NotedBlob, deadline: int | None
    ) -> None:
        self._client = client
        self._about = about
        self._deadline = deadline
        self.call = 0

    def begin(self, began_ns: int, /) -> None:
        """Note that one begins."""
        self.call = self._client.begin_burst(self._about, self._deadline)

    def end(self, status: int, /) -> None:
        """Note that it has ended."""
        self._client.ended(self.call, ErrorStatus(status), self._about)


_NO_DETAILS = CallDetails()
