"""Ways to run a model: devices by transport and path, and runtimes of others.

A `Contender` is one of them with one model, ready to run. What they cost to make is
measured on the way.
"""

import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.runtime.device import Device
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import NamedModel, open_model_file
from asyncnn.runtime.model_cache import ModelCache
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.translation import form_for
from asyncnn.tools.bench.processes import resident_kib
from asyncnn.tools.comparison import as_model_gives
from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE, opened_by
from asyncnn.tools.mlts.suite_models import SuiteModel
from asyncnn.tools.mlts.suite_records import Preparation, SuiteRow, rounded
from asyncnn.tools.mlts.trials import Trial
from asyncnn.tools.onnx_writer import OnnxRuntime, onnx_file
from asyncnn.tools.other_runtimes import (
    OtherRuntime,
    PeerRefusedError,
    open_file,
    taken,
)
from asyncnn.tools.samples import Sample

LITERT, ONNX_RUNTIME = "LiteRT", "ONNX Runtime"
PEERS = (LITERT, ONNX_RUNTIME)

CALL = "call"
"""The path of a runtime whose call returns when the outputs are there."""

SESSION = "session"
PATHS = ("async", "sync", "burst", "fenced", SESSION)

_PREPARATIONS = 3
_PREPARATIONS_US = 2e6
"""How often a model is prepared, and after how long no more."""


class Contender(msgspec.Struct, eq=False):
    """One way to run one model, ready; ``row`` says which, without figures.

    ``feed`` makes of a sample what ``call`` takes, ``outputs`` makes arrays by name of
    what that returns or its awaitable gives. ``reset`` makes state begin anew, where a
    call leaves some; ``keeps_state`` is whether one does. What ``reads_file`` computes
    what that says, all others what the HAL makes of it.
    """

    row: SuiteRow
    feed: Callable[[Sample], Any]
    call: Callable[[Any], Any]
    outputs: Callable[[Any], Sample]
    reset: Callable[[], Any] | None = None
    keeps_state: bool = False
    reads_file: bool = False

    async def run(self, sample: Sample) -> Sample:
        """Run once and return copies of the outputs.

        :raises AsyncnnError: if that fails.
        """
        result = self.call(self.feed(sample))
        return self.outputs(await result if isawaitable(result) else result)

    async def begin(self) -> None:
        """Let state begin anew.

        :raises AsyncnnError: if that fails.
        """
        if self.reset is not None:
            result = self.reset()
            if isawaitable(result):
                await result


class MeasuredDevice(msgspec.Struct, frozen=True, eq=False):
    """A device that is open."""

    name: str
    transport: str
    device: Device

    @property
    def pid(self) -> int | None:
        """The process of its driver, 0 if the kernel does not say; None in this one."""
        return getattr(self.device.hal, "pid", None)

    async def contenders(
        self, stack: AsyncExitStack, model: SuiteModel, paths: Sequence[str]
    ) -> tuple[list[Contender], list[SuiteRow]]:
        """Prepare a model, which the stack keeps; return a contender for each path.

        What refuses is a row that says why.
        """
        assert model.named is not None
        row = SuiteRow(
            model=model.name, system=self.name, transport=self.transport, path=""
        )
        try:
            prepared, preparation = await self._prepared(model)
        except AsyncnnError as error:
            return [], [replace(row, refusal=str(error))]
        found: list[Contender] = []
        refused: list[SuiteRow] = []
        for path in paths:
            if path == SESSION and not model.named.states:
                continue
            row = replace(row, path=path)
            try:
                call, reset = await self._runner(stack, prepared, path)
            except AsyncnnError as error:
                refused.append(replace(row, refusal=str(error)))
                continue
            found.append(
                Contender(
                    replace(row, preparation=preparation),
                    feed=dict,
                    call=call,
                    outputs=_copied,
                    reset=reset,
                    keeps_state=path == SESSION,
                )
            )
        return found, refused

    async def _runner(
        self, stack: AsyncExitStack, prepared: PreparedModel, path: str
    ) -> tuple[Callable[[Sample], Awaitable[Any]], Callable[[], Any] | None]:
        if path == SESSION:
            session = await stack.enter_async_context(prepared.session())
            return session.run, session.reset
        runner = prepared.runner(path)  # type: ignore[arg-type]  # one of `PATHS`
        return await stack.enter_async_context(runner), None

    async def _prepared(self, model: SuiteModel) -> tuple[PreparedModel, Preparation]:
        """Prepare a model, several times; run the first one for its memory.

        :raises AsyncnnError: if it cannot be prepared, or run.
        """
        assert model.trial is not None
        before = _resident_kib(pid=self.pid)
        us: list[float] = []
        with _timed(us):
            prepared = await self.device.prepare(load(model.path))
        first: list[float] = []
        with _timed(first):
            await prepared.run(model.trial.sequences[0][0])
        grown = _growth_kib(before, self.pid)
        while _is_worth_repeating(us):
            with _timed(us):
                await self.device.prepare(load(model.path))
        saving, cached, size = await self._through_cache(model)
        return prepared, Preparation(
            rounded(us),
            rounded(first)[0],
            rounded(saving),
            rounded(cached),
            size,
            grown,
        )

    async def _through_cache(
        self, model: SuiteModel
    ) -> tuple[list[float], list[float], int]:
        """Measure saving and loading; nothing where the device has no cache."""
        saving: list[float] = []
        cached: list[float] = []
        size = 0
        _, *counts = self.device.hal.get_number_of_cache_files_needed()
        while any(counts) and _is_worth_repeating(saving):
            with TemporaryDirectory(prefix="asyncnn-mlts-") as folder:
                cache = ModelCache(folder)
                with _timed(saving):
                    await self._prepare_in(cache, model.path)
                size = sum(each.stat().st_size for each in os.scandir(folder))
                with _timed(cached):
                    await self._prepare_in(cache, model.path)
        return saving, cached, size

    async def _prepare_in(self, cache: ModelCache, path: Path) -> None:
        form = await form_for(self.device.hal, load(path))
        await cache.prepare(self.device.hal, PrepareArguments(form.model))


@asynccontextmanager
async def open_targets(
    devices: Sequence[str], transports: Sequence[str], chosen: Path | None = None
) -> AsyncIterator[tuple[list[MeasuredDevice], list[str]]]:
    """Open each device by each transport; also yield which are not there, and why.

    The driver that serves the ``chosen`` path comes first.

    :raises NoDriverError: if there is none.
    """
    async with AsyncExitStack() as stack:
        targets: list[MeasuredDevice] = []
        notes: list[str] = []
        if chosen is not None:
            device = await stack.enter_async_context(connect(chosen))
            targets.append(MeasuredDevice(device.name, REMOTE, device))
        for name in devices:
            for transport in transports:
                opening = opened_by(transport, name)
                try:
                    device = await stack.enter_async_context(opening)
                except AsyncnnError as error:
                    notes.append(f"{name}, {transport}: {error}")
                else:
                    targets.append(MeasuredDevice(name, transport, device))
        yield targets, notes


def peer_row(system: str, model: SuiteModel) -> SuiteRow:
    """Return the row, without figures, of another runtime in this process."""
    return SuiteRow(
        model=model.name, system=system, transport=IN_PROCESS, path=CALL, is_peer=True
    )


def peer_contender(row: SuiteRow, model: SuiteModel) -> Contender:
    """Load a model in the runtime of a `peer_row`.

    :raises PeerRefusedError: if it cannot, or does not read such files.
    :raises InvalidArgumentError: if it takes other inputs than the model.
    :raises PeerMissingError: if it is not installed.
    """
    named, trial = model.named, model.trial
    assert named is not None
    assert trial is not None
    kind = kind_of(open_model_file(model.path))
    is_litert = row.system == LITERT
    if is_litert and kind is not FileKind.TFLITE:
        raise PeerRefusedError(f"it does not read {kind.value} files")
    if is_litert or kind is FileKind.ONNX:
        sample = trial.sequences[0][0]
        opening = partial(
            open_file, model.path, named.inputs, sample, is_litert=is_litert
        )
        return _loaded(partial(_as_it_is, row, named), opening, trial)
    converting = partial(OnnxRuntime, named, onnx_file(named))
    return _loaded(partial(_converted, row, named), converting, trial)


def _loaded(
    make: Callable[[Any], Contender], opening: Callable[[], Any], trial: Trial
) -> Contender:
    """Load a model, several times; run the first one for its memory."""
    before = _resident_kib()
    us: list[float] = []
    with _timed(us):
        peer = opening()
    contender = make(peer)
    arrays = contender.feed(trial.sequences[0][0])
    first: list[float] = []
    with _timed(first):
        contender.call(arrays)
    grown = _growth_kib(before)
    while _is_worth_repeating(us):
        with _timed(us):
            opening()
    preparation = Preparation(rounded(us), rounded(first)[0], resident_kib=grown)
    contender.row = replace(contender.row, preparation=preparation)
    return contender


def _as_it_is(row: SuiteRow, named: NamedModel, peer: OtherRuntime) -> Contender:
    """Have a runtime run a file that it reads."""
    return Contender(
        row,
        feed=taken(peer, "it", named.inputs),
        call=peer.run,
        outputs=partial(_named, named),
        reset=peer.reset,
        keeps_state=True,
        reads_file=True,
    )


def _converted(row: SuiteRow, named: NamedModel, peer: OnnxRuntime) -> Contender:
    """Have ONNX Runtime run the graph of a file that it does not read."""
    return Contender(
        row,
        feed=lambda sample: peer.converted([sample[i.name] for i in named.inputs]),
        call=peer.run,
        outputs=lambda arrays: _named(named, peer.restored(arrays, named.outputs)),
    )


def _named(named: NamedModel, arrays: Sequence[Array]) -> Sample:
    if len(arrays) != len(named.outputs):
        raise PeerRefusedError(
            f"it gives {len(arrays)} outputs, and the model {len(named.outputs)}"
        )
    return {
        info.name: as_model_gives(np.array(array), info.dimensions, info.dtype)
        for info, array in zip(named.outputs, arrays, strict=True)
    }


def _copied(outputs: Any) -> Sample:
    # A burst gives the same arrays each time.
    return {name: np.array(array) for name, array in outputs.items()}


@contextmanager
def _timed(us: list[float]) -> Iterator[None]:
    """Add the microseconds that the block takes."""
    started = time.perf_counter_ns()
    yield
    us.append((time.perf_counter_ns() - started) / 1000)


def _is_worth_repeating(us: Sequence[float]) -> bool:
    return len(us) < _PREPARATIONS and sum(us) < _PREPARATIONS_US


def _resident_kib(pid: int | None = None) -> int | None:
    gc.collect()
    try:
        return resident_kib(pid=pid)
    except OSError:
        return None


def _growth_kib(before: int | None, pid: int | None = None) -> int | None:
    after = _resident_kib(pid=pid)
    return None if before is None or after is None else max(0, after - before)
