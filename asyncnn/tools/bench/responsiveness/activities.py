"""What a loop has to stay responsive beside.

An activity is a context: entering it makes what it needs, and it yields what is
watched. What that returns is kept for as long as the heart beats, since dropping it is
an activity of its own. Models are made anew, so that nothing is known of them from an
attempt before.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeAlias

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.responsiveness.report import (
    FIRST_RUN,
    FIRST_RUN_LOADED,
    IDLE,
    LOAD,
    PREPARE,
    QUERY,
    RELEASE,
    SAVE,
    input_activity,
)
from asyncnn.tools.bench.responsiveness.workloads import (
    LAYOUTS,
    Sizes,
    long_model,
    long_models_input,
    wide_model,
)

Watched: TypeAlias = Callable[[], Awaitable[object]]
"""What is done while the heart beats; its result is kept until it stops."""

Activity: TypeAlias = Callable[["Stage"], AbstractAsyncContextManager[Watched]]

_RUNS = 2
_SETTLING_S = 0.25
_numbers = count()


class Stage:
    """Where activities take place: a device without a cache and one with.

    Both are one device of this process, or one driver; ``folder`` is the cache's.
    """

    def __init__(
        self, plain: Device, cached: Device, folder: Path, sizes: Sizes
    ) -> None:
        self.plain = plain
        self.cached = cached
        self.folder = folder
        self.sizes = sizes

    def model(self, number: int | None = None) -> NamedModel:
        """Return a long model that is like no other, or like that of a ``number``."""
        chosen = next(_numbers) if number is None else number
        return long_model(self.sizes.operations, chosen)

    async def loaded(self, model: NamedModel) -> PreparedModel:
        """Load what was saved.

        :raises GeneralFailureError: if it was prepared anew instead.
        """
        before = self._files()
        prepared = await self.cached.prepare(model)
        if not before or self._files() != before:
            raise GeneralFailureError("a saved model was not loaded from the cache")
        return prepared

    async def settle(self) -> None:
        """Wait until what was dropped so far, models above all, has been released."""
        gc.collect()
        for device in (self.plain, self.cached):
            # What a driver was told before, it has done when it answers.
            await device.statistics()
        await asyncio.sleep(_SETTLING_S)

    def _files(self) -> set[int]:
        return {path.stat().st_ino for path in self.folder.iterdir()}


@asynccontextmanager
async def idling(stage: Stage) -> AsyncIterator[Watched]:
    """Do nothing."""

    async def act() -> None: ...

    yield act


@asynccontextmanager
async def preparing(stage: Stage) -> AsyncIterator[Watched]:
    """Prepare a long model."""
    yield partial(stage.plain.prepare, stage.model())


@asynccontextmanager
async def querying(stage: Stage) -> AsyncIterator[Watched]:
    """Ask which operations of a long model are supported."""
    model = stage.model().model

    async def act() -> tuple[bool, ...]:
        query = stage.plain.hal.get_supported_operations_1_3(model)
        status, supported = await query
        if status is not ErrorStatus.NONE or not all(supported):
            raise GeneralFailureError(f"operations are not supported: {status.name}")
        return supported

    yield act


@asynccontextmanager
async def saving(stage: Stage) -> AsyncIterator[Watched]:
    """Prepare a long model, and leave it in the cache."""
    yield partial(stage.cached.prepare, stage.model())


@asynccontextmanager
async def loading(stage: Stage) -> AsyncIterator[Watched]:
    """Prepare a long model that is in the cache."""
    yield partial(stage.loaded, await _saved(stage))


@asynccontextmanager
async def running_first(stage: Stage) -> AsyncIterator[Watched]:
    """Run a long model that was prepared."""
    prepared = await stage.plain.prepare(stage.model())
    yield partial(prepared.run, [long_models_input()])


@asynccontextmanager
async def running_loaded_first(stage: Stage) -> AsyncIterator[Watched]:
    """Run a long model that was loaded from the cache."""
    prepared = await stage.loaded(await _saved(stage))
    yield partial(prepared.run, [long_models_input()])


@asynccontextmanager
async def releasing(stage: Stage) -> AsyncIterator[Watched]:
    """Drop the last reference to a long model that has run."""
    held = [await stage.plain.prepare(stage.model())]
    await held[0].run([long_models_input()])

    async def act() -> None:
        held.clear()

    yield act


@asynccontextmanager
async def running_large(layout: str, stage: Stage) -> AsyncIterator[Watched]:
    """Run large inputs of a layout through one operation, one after the other."""
    shape = stage.sizes.input_shape
    x = LAYOUTS[layout](shape)
    prepared = await stage.plain.prepare(wide_model(shape))

    async def act() -> list[object]:
        return [await prepared.run([x]) for _ in range(_RUNS)]

    yield act


ACTIVITIES: dict[str, Activity] = {
    IDLE: idling,
    PREPARE: preparing,
    QUERY: querying,
    SAVE: saving,
    LOAD: loading,
    FIRST_RUN: running_first,
    FIRST_RUN_LOADED: running_loaded_first,
    RELEASE: releasing,
    **{input_activity(layout): partial(running_large, layout) for layout in LAYOUTS},
}


async def _saved(stage: Stage) -> NamedModel:
    """Leave a model in the cache and return one that equals it."""
    number = next(_numbers)
    await stage.cached.prepare(stage.model(number))
    return stage.model(number)
