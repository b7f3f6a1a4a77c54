"""Processes that answer the one in which a benchmark measures, and what they take."""

import asyncio
import contextlib
import gc
import inspect
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

import asyncnn
from asyncnn.devices import OWN_PROCESS
from asyncnn.tools.bench.environment import pinned
from asyncnn.tools.bench.measured_models import inputs_of, random_inputs
from asyncnn.tools.other_runtimes import LiteRt

READY = b"ready"
"""What a process sends first."""

SPAWN = multiprocessing.get_context("spawn")
"""Nothing is shared with the process that measures."""

_ITERATIONS = 100_000
"""What a process computes between two looks for a message."""

Pipe: TypeAlias = "Connection[Any, Any]"


@contextlib.contextmanager
def process(
    cpu: int | None, serve: Callable[..., Any], *args: object
) -> Iterator[Pipe]:
    """Run ``serve`` with one end of a pipe in a process on a CPU; yield the other end.

    Without a CPU it runs on any. ``serve`` may be a coroutine function; it sends
    `READY` once it is ready, and may end with an EOFError.
    """
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_run, args=(serve, theirs, *args), daemon=True)
    with contextlib.nullcontext() if cpu is None else pinned(cpu):
        process.start()
    theirs.close()
    try:
        ours.recv_bytes()
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


async def until_closed(
    pipe: Pipe, obey: Callable[[bytes], None] = lambda order: None
) -> None:
    """Be ready; obey what the other end of a pipe sends until it goes."""
    closed = asyncio.Event()

    def take() -> None:
        try:
            obey(pipe.recv_bytes())
        except EOFError:
            closed.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), take)
    pipe.send_bytes(READY)
    await closed.wait()
    loop.remove_reader(pipe.fileno())


def _run(serve: Callable[..., Any], *args: object) -> None:
    with contextlib.suppress(EOFError):
        running = serve(*args)
        if inspect.iscoroutine(running):
            asyncio.run(running)


@contextlib.contextmanager
def hogs(cpus: Iterable[int]) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Have a process for each of the CPUs; yield a block that these compute in."""
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(process(cpu, _compute)) for cpu in cpus]

        @contextlib.contextmanager
        def computing() -> Iterator[None]:
            for pipe in pipes:
                pipe.send_bytes(READY)
            try:
                yield
            finally:
                for pipe in pipes:
                    pipe.send_bytes(READY)

        yield computing


def _compute(pipe: Pipe) -> None:
    """Compute without a pause from one message to the next."""
    pipe.send_bytes(READY)
    while True:
        pipe.recv_bytes()
        while not pipe.poll():
            sum(range(_ITERATIONS))
        pipe.recv_bytes()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Have a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="asyncnn-") as name:
        yield Path(name)


def memory_kib(*fields: str, pid: int | None = None) -> int:
    """Return memory of a process by what the system calls it; None is this one.

    :raises OSError: if the system does not say.
    """
    with open(f"/proc/{pid or 'self'}/smaps_rollup", encoding="ascii") as file:
        lines = [line.split() for line in file]
    return sum(int(line[1]) for line in lines if line[0] in fields)


resident_kib = partial(memory_kib, "Rss:")
"""Shared pages and all."""

private_kib = partial(memory_kib, "Private_Clean:", "Private_Dirty:")
"""What it shares with no other process."""

proportional_kib = partial(memory_kib, "Pss:")
"""With its share of what it has with others."""


@contextlib.contextmanager
def sending_growth(pipe: Pipe, kib: Callable[[], int] = private_kib) -> Iterator[None]:
    """Send by how many KiB this process grows in a block."""
    gc.collect()
    before = kib()
    yield
    gc.collect()
    pipe.send(kib() - before)


def reported(serve: Callable[..., Any], *args: object) -> Any:
    """Return what a process of its own sends once it is ready."""
    with process(None, serve, *args) as pipe:
        return pipe.recv()


async def hold_prepared(
    pipe: Pipe, path: Path, warming: Path, folder: Path | None = None
) -> None:
    """Send the memory for a model, and hold it for as long as the pipe is open."""
    pipe.send_bytes(READY)
    settings, cache = (OWN_PROCESS, None) if folder is None else cached_in(folder)
    opened = asyncnn.open_device("accelerated", settings=settings, cache_dir=cache)
    async with opened as device:

        async def held(model: Path) -> asyncnn.PreparedModel:
            # What is handed over as it is goes to no cache.
            named = asyncnn.load(model, strict=cache is not None)
            prepared = await device.prepare(named)
            await prepared.run(inputs_of(prepared))
            return prepared

        holding = [await held(warming)]
        with sending_growth(pipe):
            holding.append(await held(path))
        pipe.recv()


def cached_in(folder: Path) -> tuple[asyncnn.DeviceSettings, Path]:
    """Return settings of a device whose files all lie in a folder, and its cache."""
    cache = folder / "models"
    cache.mkdir(mode=0o700, exist_ok=True)
    settings = replace(
        OWN_PROCESS,
        cache_key_file=str(folder / "key"),
        packed_weights_dir=str(folder / "weights"),
        maps_cache_files=True,
    )
    return settings, cache


def hold_interpreters(
    pipe: Pipe, path: Path, warming: Path, count: int = 1, steps: int = 1
) -> None:
    """Do so with interpreters of LiteRT; the pipe need not stay open."""
    pipe.send_bytes(READY)
    first = LiteRt(warming)
    first.run(random_inputs(first.input_kinds()))
    with sending_growth(pipe):
        held = [LiteRt(path) for _ in range(count)]
        inputs = random_inputs(held[0].input_kinds())
        for _ in range(steps):
            for each in held:
                each.run(inputs)
