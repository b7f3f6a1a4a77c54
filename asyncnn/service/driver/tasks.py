"""Tasks that a connection owns: they end with it."""

import asyncio
from collections.abc import Coroutine

from asyncnn.errors import too_many


class OwnedTasks:
    """Up to ``most`` tasks at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    def check_room(self) -> None:
        """Check that another one may be started.

        :raises ResourceExhaustedTransientError: if there are too many.
        """
        if len(self._tasks) >= self._most:
            raise too_many("pending calls", "ServiceLimits.max_executions", self._most)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task, whether there is room or not, and return it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_ended(self) -> None:
        """Wait until there are none."""
        while self._tasks:
            await asyncio.wait(self._tasks)
