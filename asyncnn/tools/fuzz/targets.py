"""What is fuzzed: a table of targets, each a function of bytes and a corpus for it."""

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from itertools import islice
from random import Random
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst.packets import (
    DATUM_BYTES,
    PacketError,
    RequestShape,
    decode_request,
    decode_result,
    without_deadline,
)
from asyncnn.devices.cache_files import closed, content_of
from asyncnn.devices.cache_format import CacheKey, CacheRecord, unsealed
from asyncnn.devices.caching import ModelCaches
from asyncnn.hal.refusals import CacheArguments
from asyncnn.hal.slices import joined
from asyncnn.hal.validate.request import RequestRules
from asyncnn.http_server import LOOPBACK, HttpServer
from asyncnn.input_files import decoding
from asyncnn.memory.handles import FIXED_SIZE, seal
from asyncnn.memory.mapping import Mapper
from asyncnn.memory.pools import from_buffer, view
from asyncnn.pacing import completed
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.translation import translating
from asyncnn.service import wire
from asyncnn.service.channel import Channel, ChannelBounds
from asyncnn.service.decoding import decode_to_client, decode_to_driver
from asyncnn.tools.fuzz import corpora, mutators, twins
from asyncnn.tools.fuzz.driver_calls import driven, scripts
from asyncnn.tools.watched_processes import descriptors_of

Try: TypeAlias = Callable[[bytes], object]
"""Is fed with bytes, and raises if it does not like them."""


class FuzzTarget(msgspec.Struct, frozen=True):
    """Something that is fed with bytes.

    ``corpus`` makes the originals, and ``opened`` what takes bytes, on a device of that
    name if it ``takes_device``. What it raises of ``answers`` is as it has to be; all
    else is a finding. ``mutate`` makes others of bytes.
    """

    title: str
    corpus: Callable[[], Iterable[bytes]]
    opened: Callable[[str], AbstractContextManager[Try]]
    answers: tuple[type[Exception], ...] = (hal.AsyncnnError,)
    mutate: Callable[[bytes, Random], bytes] = mutators.damaged
    takes_device: bool = False


def _always(function: Try) -> Callable[[str], AbstractContextManager[Try]]:
    return lambda _: nullcontext(function)


def _tflite(data: bytes) -> None:
    with suppress(hal.AsyncnnError), decoding("TFLite"):  # as `load` says it
        twins.same_file(data)
    completed(translating(load(data)))


def _file(data: bytes) -> None:
    completed(translating(load(data)))


def _strictly(data: bytes) -> None:
    _file(data)
    load(data, strict=True)


_MOST_INPUT_BYTES = 1 << 28
"""Of a model that is run."""


@contextmanager
def _regions(own: str, device: str) -> Iterator[Try]:
    """Yield what prepares a file on an engine, and runs it with ones."""

    async def run(data: bytes) -> None:
        named = load(data)
        prepared = await opened.prepare(named, timeout=4)
        inputs = {  # each a single number, in as many places as may be
            each.name: np.broadcast_to(
                np.ones((), each.dtype), [length or 1 for length in each.dimensions]
            )
            for each in prepared.inputs
        }
        if sum(each.nbytes for each in inputs.values()) <= _MOST_INPUT_BYTES:
            await prepared.run(inputs, timeout=4)

    with asyncio.Runner() as runner, ExitStack() as stack:
        opened = _entered(open_device(device or own), runner, stack)
        yield lambda data: runner.run(run(data))


def _to_driver(data: bytes) -> None:
    message: Any = decode_to_driver(data)
    if not isinstance(message, wire.MESSAGES_WITH_MODELS):
        encoded = wire.encode(message)
        again: Any = decode_to_driver(encoded)
        twins.same("message", encoded, wire.encode(again))


_INLINE = ChannelBounds(max_message_bytes=2**20, max_fds=4, max_unread_bytes=2**20)


@contextmanager
def _frames(_: str) -> Iterator[Try]:
    """Yield what sends packets through a socket to a channel, with descriptors.

    Bytes are divided by the first of each packet: what it is said to have beside it,
    and what it has.
    """

    def look(_: object, fds: list[int] | None) -> None:
        for fd in fds or ():
            os.fstat(fd)

    async def run(data: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        ours.setblocking(False)  # what finds no room is left out
        ended = asyncio.Event()
        with closing(ours):
            channel = Channel(
                theirs, decode_to_driver, look, lambda _: ended.set(), _INLINE
            )
            try:
                _send(ours, data)
                ours.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(4):
                    await ended.wait()
            finally:
                channel.close()
                await channel.wait_ended()
        for _ in range(100):
            if len(descriptors_of(os.getpid())) <= most:
                return
            gc.collect()
            await asyncio.sleep(0.02)
        raise AssertionError("descriptors are left over")

    most = 1 << 20
    with asyncio.Runner() as runner:
        runner.run(run(b""))
        # A socket may be closed in the next turn of the loop.
        most = len(descriptors_of(os.getpid())) + 4
        yield lambda data: runner.run(run(data))


def _framed() -> Iterator[bytes]:
    """Yield messages as packets: what is beside each, its length, and its bytes."""
    for data in corpora.messages_to_driver():
        packet = b"\0" + data[:250]
        yield bytes((0, len(packet))) + packet
        yield bytes((0o11, len(packet))) + packet


def _send(ours: socket.socket, data: bytes) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    try:
        os.write(file, data)
        seal(file, FIXED_SIZE)
        while data:
            head, end = data[0], 2 + sum(data[1:2])
            packet, data = data[2:end], data[end:]
            with suppress(ConnectionError, BlockingIOError):
                if head & 7:
                    ours.send(b"\2" + bytes((head & 7,)))
                fds = [file, null, file, null][: head >> 3 & 3]
                socket.send_fds(ours, [packet or b"\0"], fds)
    finally:
        os.close(null)
        os.close(file)


def _packet(data: bytes) -> None:
    """Take packets apart, and have what is made of them again be the same."""
    with suppress(PacketError):
        decode_result(data, had_deadline=bool(data[-1:] == b"\1"))
    if data[DATUM_BYTES:]:
        without_deadline(data)
    inputs, outputs, slots, measure = decode_request(data)
    again = RequestShape.of(inputs, outputs, len(slots)).encode(slots, measure)
    omitted = any(each.has_no_value for each in (*inputs, *outputs))
    if not omitted:
        twins.same("request", decode_request(again), decode_request(data))


_VERSIONS = tuple(hal.HalVersion)
_POOLS = tuple(from_buffer(bytearray(size)) for size in (4096, 64))


def _model(data: bytes) -> None:
    """Validate a model in all versions of the HAL, by both twins."""
    message = decode_to_driver(data)
    if not isinstance(message, wire.MESSAGES_WITH_MODELS):
        return
    model: hal.Model = replace(message.model, pools=_POOLS[: len(message.pools)])
    for version in _VERSIONS if len(data) % 4 == 0 else _VERSIONS[-2:]:
        said, is_known = twins.same_verdict(model, version)
        twins.same("answer", not said, is_known)


@contextmanager
def _requests(_: str) -> Iterator[Try]:
    rules = [RequestRules(each) for each in corpora.models()]

    def check(data: bytes) -> None:
        message = decode_to_driver(data)
        if not isinstance(message, wire.BindRequest | wire.Execute):
            return
        pools = tuple(_POOLS[each % 2] for each in message.pools)
        request = hal.Request(message.inputs, message.outputs, pools)
        for each in rules:
            for is_open in (False, True):
                with suppress(hal.InvalidArgumentError):
                    each.check(request, allow_unspecified_output=is_open)

    yield check


_TOKEN = bytes(hal.BYTE_SIZE_OF_CACHE_TOKEN)


def _known_key() -> CacheKey:
    key = CacheKey()
    key._secret = _TOKEN
    return key


@contextmanager
def _cache_files() -> Iterator[tuple[CacheArguments, int]]:
    """Yield empty files of a cache, and the descriptor of the model's."""
    with ExitStack() as stack:
        fds = [os.memfd_create(name) for name in ("model", "data")]
        for fd in fds:
            stack.callback(os.close, fd)
        model, data = ((hal.Handle((fd,)),) for fd in fds)
        yield CacheArguments(model, data, _TOKEN), fds[0]


def _caches() -> Iterator[bytes]:
    """Yield model caches as they are, and what is sealed in them, after a byte."""
    for model in islice(corpora.models(), 8):
        caches = ModelCaches("", may_map=False)
        caches.key = _known_key()
        with _cache_files() as (files, fd):
            how = hal.ExecutionPreference.FAST_SINGLE_ANSWER, hal.Priority.MEDIUM
            completed(caches.preparation(model, *how, files)())
            data = os.pread(fd, 1 << 24, 0)
        yield b"\0" + data
        yield b"\1" + content_of(memoryview(data), _TOKEN)


def _cache(data: bytes) -> None:
    """Load a cache: with a tag as it is, and what it seals as if it were right."""
    if data[:1] == b"\1":
        whole = closed((data[1:],), _TOKEN, _known_key().tag)
        # Nobody without the key comes so far: a decoder's error is an answer.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            record, slices = unsealed(
                CacheRecord, memoryview(whole), _TOKEN, _known_key()
            )
            joined(record.model, slices[: record.model_bytes])
        return
    caches = ModelCaches("", may_map=False)
    caches.key = _known_key()
    with _cache_files() as (files, fd):
        os.pwrite(fd, data[1:], 0)
        completed(caches.loading(files)())


def _handle_corpus() -> Iterator[bytes]:
    for number, (name, ints) in enumerate(
        (
            ("ashmem", ()),
            ("mmap_fd", (3, 0, 0)),
            ("hardware_buffer_blob", (4096, 1, 1, 0x21, 0x33, 0)),
            ("hardware_buffer", (1,)),
        )
    ):
        yield msgspec.msgpack.encode((name, 4096, (number,), ints))


_Described: TypeAlias = tuple[str, int, tuple[int, ...], tuple[int, ...]]
_handles = msgspec.msgpack.Decoder(_Described)


@contextmanager
def _handles_of(_: str) -> Iterator[Try]:
    """Yield what maps pools that a handle leads to: files of many kinds."""
    with ExitStack() as stack:
        fds = []
        for seals in (None, FIXED_SIZE, 0):
            fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
            os.truncate(fd, 4096)
            if seals:
                seal(fd, seals)
            fds.append(fd)
        fds += [*os.pipe(), os.open(os.devnull, os.O_RDWR), os.open("/", os.O_RDONLY)]
        for fd in fds:
            stack.callback(os.close, fd)

        def map_pool(data: bytes) -> None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                name, size, numbers, ints = _handles.decode(data)
                known = tuple(
                    fds[each % len(fds)] if each < 100 else each % 2**40 - 2
                    for each in numbers
                )
                memory = hal.Memory(name, size, hal.Handle(known, ints))
                with Mapper() as mapper:
                    whole = view(mapper.map(memory))
                    twins.same("size", len(whole), size)
                    if size:
                        whole[0], whole[-1]

        yield map_pool


@contextmanager
def _http(_: str) -> Iterator[Try]:
    """Yield what sends a request to a server, and checks that its answer is one."""
    from asyncnn.devices import ReferenceDevice
    from asyncnn.metrics import MetricsEndpoint

    async def run(data: bytes) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
        try:
            writer.write(data)
            with suppress(ConnectionError):
                writer.write_eof()
            async with asyncio.timeout(4):
                answer = await reader.read()
        except ConnectionError:
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        status = answer[9:12]
        if answer and (answer[:9] != b"HTTP/1.1 " or status not in _HTTP_STATUSES):
            raise AssertionError(f"no answer: {answer[:80]!r}")

    with asyncio.Runner() as runner, ExitStack() as stack:
        device = _entered(ReferenceDevice(), runner, stack)
        endpoint = MetricsEndpoint(device)
        server = HttpServer(endpoint._answer, only_for_names=())
        _entered(server, runner, stack)
        yield lambda data: runner.run(run(data))


def _entered(manager: Any, runner: asyncio.Runner, stack: ExitStack) -> Any:
    """Enter an asynchronous context for as long as ``stack`` lasts."""
    entered = runner.run(manager.__aenter__())
    stack.callback(lambda: runner.run(manager.__aexit__(None, None, None)))
    return entered


_HTTP_STATUSES = {b"200", b"400", b"404", b"405", b"421", b"431", b"503"}

_HTTP = (
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /metrics HTTP/1.0\r\nHost: [::1]:80\r\nAccept: text/plain;q=0.5\r\n\r\n",
    b"POST /x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
)


_OfFiles = partial(FuzzTarget, mutate=mutators.damaged_file)
_OfEngines = partial(_OfFiles, takes_device=True)
_OfValues = partial(FuzzTarget, mutate=mutators.damaged_values)
_REFUSED = (hal.InvalidArgumentError,)
_RINGS = bytes(range(256)), bytes(range(255, -1, -1))

TARGETS = {
    "tflite": _OfFiles(
        "TFLite files: the scan beside its twin in Python, loading, translating",
        *(corpora.tflite_files, _always(_tflite)),
    ),
    "onnx": _OfFiles(
        "ONNX files: loading, translating", corpora.onnx_files, _always(_strictly)
    ),
    "container": _OfFiles(
        "the project's own model files", corpora.containers, _always(_file)
    ),
    "litert": _OfEngines(
        "TFLite files as LiteRT gets them, which then run",
        *(corpora.tflite_files, partial(_regions, "accelerated")),
    ),
    "onnxruntime": _OfEngines(
        "ONNX files as ONNX Runtime gets them, which then run",
        *(corpora.onnx_files, partial(_regions, "onnxruntime")),
    ),
    "wire": _OfValues(
        "messages to a driver",
        *(corpora.messages_to_driver, _always(_to_driver), _REFUSED),
    ),
    "answers": _OfValues(
        "messages to a client",
        *(corpora.messages_to_client, _always(decode_to_client), _REFUSED),
    ),
    "frames": FuzzTarget(
        "packets of a socket, with descriptors beside them", _framed, _frames
    ),
    "packets": FuzzTarget(
        "requests and results of bursts",
        *(corpora.packets, _always(_packet), (PacketError,)),
    ),
    "ring": FuzzTarget(
        "both rings of queues, with a peer that writes anything to the words",
        *(lambda: _RINGS, _always(twins.same_ring), ()),
    ),
    "cache": FuzzTarget(
        "caches of models, and records in them", _caches, _always(_cache)
    ),
    "handles": _OfValues(
        "handles of memory, and the files that they lead to",
        *(_handle_corpus, _handles_of),
    ),
    "models": FuzzTarget(
        "validation of models: the prescan beside its twin in Python",
        *(corpora.messages_to_driver, _always(_model)),
    ),
    "requests": _OfValues("validation of requests", corpora.requests, _requests),
    "http": FuzzTarget("what is asked of metrics and pages", lambda: _HTTP, _http, ()),
    "driver": FuzzTarget(
        "a driver behind its socket, by calls",
        *(scripts, driven, ()),
        takes_device=True,
    ),
}
"""All of them by name."""
