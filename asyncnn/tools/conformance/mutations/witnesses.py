"""Callbacks that remember every notification, so that a second one is seen."""

import asyncio
from typing import Any

from asyncnn.callbacks import IExecutionCallback, IPreparedModelCallback
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, OutputShape, Timing


class Testimony:
    """What a callback was told, each time."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, ...]] = []
        self._told = asyncio.Event()

    def add(self, *outcome: Any) -> None:
        """Remember a notification."""
        self.outcomes.append(outcome)
        self._told.set()

    async def complete(self) -> None:
        """Wait for the first notification, and a round of the loop for a second."""
        await self._told.wait()
        await asyncio.sleep(0)


class PreparationWitness(IPreparedModelCallback):
    """Testifies how often, and of what, a preparation notified its callback."""

    def __init__(self) -> None:
        super().__init__()
        self.testimony = Testimony()

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        """Remember the outcome."""
        self.testimony.add(status, prepared_model)


class ExecutionWitness(IExecutionCallback):
    """Testifies how often, and of what, an execution notified its callback."""

    def __init__(self) -> None:
        super().__init__()
        self.testimony = Testimony()

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Remember the outcome."""
        self.testimony.add(status, output_shapes, timing)
