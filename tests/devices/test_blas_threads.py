"""BLAS has one thread while devices compute, and what it had before when none does."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.devices.process_wide import BlasLibrary, BlasThreads
from asyncnn.extensions import Argument, BoundOperation, Extension, stateless
from asyncnn.hal.types import Operand, OperandType
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import NamedModel
from tests.devices.process_facts import ANYTHING, NAME, blas_threads, facts, telling
from tests.forks import in_child_blocking

F32 = OperandType.TENSOR_FLOAT32
PATHS: tuple[AnyPath, ...] = ("async", "sync", "burst", "fenced")
SETTINGS = DeviceSettings(extensions=(facts,))

pytestmark = pytest.mark.skipif(
    max(blas_threads(), default=0) < 2, reason="BLAS has one thread here anyway"
)


@asynccontextmanager
async def opened(way: str) -> AsyncIterator[Device]:
    match way:
        case "framework":
            async with asyncnn.open_devices(
                "reference", "accelerated", settings=SETTINGS
            ) as device:
                yield device
        case "driver" | "supervised":
            async with asyncnn.connect(
                device="reference", extensions=[NAME], supervised=way == "supervised"
            ) as device:
                yield device
        case "isolated":
            async with asyncnn.open_device(
                "accelerated", extensions=[NAME], isolated=True
            ) as device:
                yield device
        case _:
            name, _, how = way.partition(", ")
            limit = {"inline": 1e6, "lane": 0.0}[how]
            settings = DeviceSettings(inline_below_us=limit)
            async with asyncnn.open_device(
                name, settings=settings, extensions=[facts]
            ) as device:
                yield device


@pytest.mark.parametrize(
    "way",
    [
        *("reference, lane", "reference, inline", "accelerated, lane"),
        *("accelerated, inline", "framework", "driver", "supervised", "isolated"),
    ],
)
async def test_kernels_find_one_thread_however_they_are_reached(way: str) -> None:
    before = blas_threads()
    async with opened(way) as device:
        prepared = await device.prepare(telling())
        for path in PATHS:
            async with prepared.runner(path) as run:
                for _ in range(3):
                    outputs = await run(ANYTHING)
                    assert outputs["facts"][1] == 1
                    assert blas_threads() == before
    assert blas_threads() == before


@pytest.mark.parametrize("wanted", [0, 2])
async def test_settings_ask_for_more(wanted: int) -> None:
    before = max(blas_threads())
    settings = DeviceSettings(blas_threads=wanted, extensions=(facts,))
    async with asyncnn.open_device("reference", settings=settings) as device:
        outputs = await (await device.prepare(telling())).run(ANYTHING)
    assert outputs["facts"][1] == (min(wanted, before) or before)


class Watched:
    """An extension that notes BLAS's threads, and waits for its turn to end."""

    def __init__(self) -> None:
        self.seen: list[set[int]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.extension = Extension("com.example.watched")
        self.operation = self.extension.operation(
            "WATCHED",
            0,
            inputs=[Argument("x", F32)],
            outputs=[Argument("y", F32)],
            shape=lambda operation: ((1,),),
            prepare=self._prepare,
        )

    def _prepare(self, _: BoundOperation) -> PreparedKernel:
        self.seen.append(blas_threads())
        return stateless(self._run)

    def _run(self, _: Inputs, outputs: Outputs) -> None:
        self.begun.release()
        self.may_end.acquire()
        self.seen.append(blas_threads())
        outputs[0][:] = 0

    def model(self) -> NamedModel:
        builder = ModelBuilder()
        x = builder.input("x", F32, (1,))
        builder.output(builder.operation(self.operation, [x], Operand(F32, (1,))), "y")
        return builder.build()


async def test_it_has_while_models_are_prepared_and_until_the_last_lane_is_done() -> (
    None
):
    before, watched = blas_threads(), Watched()
    settings = DeviceSettings(lanes=2, inline_below_us=0)
    extensions = [watched.extension]
    async with asyncnn.open_device(
        "reference", settings=settings, extensions=extensions
    ) as device:
        prepared = await device.prepare(watched.model())
        assert watched.seen == [{1}]
        runs = [asyncio.ensure_future(prepared.run(ANYTHING)) for _ in range(2)]
        for _ in runs:
            await asyncio.to_thread(watched.begun.acquire)
        for _ in runs:
            assert blas_threads() == {1}
            watched.may_end.release()
            await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            runs = [run for run in runs if not run.done()]
        assert watched.seen == [{1}] * 3
        assert blas_threads() == before


class Library:
    """A library with so many threads, and who has set them to what."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.set_to: list[int] = []

    def set(self, threads: int) -> None:
        self.threads = threads
        self.set_to.append(threads)

    @property
    def limits(self) -> BlasThreads:
        limits = BlasThreads(lambda: (BlasLibrary(lambda: self.threads, self.set),))
        limits.look()
        return limits


class TestLimits:
    def test_the_least_counts_in_any_order(self) -> None:
        library = Library(8)
        limits = library.limits
        for begin, most, then in [
            *((True, 3, 3), (True, 2, 2), (True, 5, 2), (True, 2, 2)),
            *((False, 2, 2), (False, 3, 2), (False, 2, 5), (True, 16, 5)),
            *((False, 5, 8), (False, 16, 8), (True, 1, 1), (False, 1, 8)),
        ]:
            (limits.begin if begin else limits.end)(most)
            assert library.threads == then

    def test_nothing_is_set_that_is_so_already(self) -> None:
        library = Library(1)
        limits = library.limits
        for most in (1, 1, 4):
            limits.begin(most)
        for most in (1, 4, 1):
            limits.end(most)
        assert library.set_to == []

    @pytest.mark.parametrize("others", [2, 6])
    def test_what_others_set_meanwhile_stays(self, others: int) -> None:
        library = Library(8)
        limits = library.limits
        limits.begin(1)
        library.threads = others
        limits.end(1)
        assert library.threads == others
        limits.begin(1)
        assert library.threads == 1
        limits.end(1)
        assert library.threads == others

    def test_a_forked_child_begins_anew_and_puts_back_what_there_was(self) -> None:
        library = Library(8)
        limits = library.limits
        limits.begin(1)
        limits.renew()  # as the child does
        limits.end(1)  # of a block that it has inherited
        assert library.threads == 8
        limits.begin(1)
        assert library.threads == 1
        limits.end(1)
        assert library.threads == 8


async def test_a_child_forked_while_a_device_computes_has_its_own_limit() -> None:
    before, watched = blas_threads(), Watched()
    settings = DeviceSettings(inline_below_us=0)
    async with asyncnn.open_device(
        "reference", settings=settings, extensions=[watched.extension]
    ) as device:
        prepared = await device.prepare(watched.model())
        run = asyncio.ensure_future(prepared.run(ANYTHING))
        await asyncio.to_thread(watched.begun.acquire)

        def child() -> tuple[float, set[int]]:
            async def main() -> float:
                async with asyncnn.open_device(
                    "reference", settings=SETTINGS
                ) as device:
                    outputs = await (await device.prepare(telling())).run(ANYTHING)
                return float(outputs["facts"][1])

            return asyncio.new_event_loop().run_until_complete(main()), blas_threads()

        in_there = in_child_blocking(child)
        watched.may_end.release()
        await run
    assert in_there == (1, before)
    assert blas_threads() == before
