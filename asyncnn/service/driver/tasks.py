"""Tasks that a connection owns: they end with it."""

import asyncio
from collections.abc import Coroutine

from asyncnn.errors import ResourceExhaustedTransientError


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
            raise ResourceExhaustedTransientError("too many calls are pending")

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Start a task, whether there is room or not."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in self._tasks:
            task.cancel()
