"""What is admitted: how much may pend, of each client and in all, and how late."""

import threading
import time
from collections.abc import Callable

from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import (
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
    too_many,
)
from asyncnn.qos.work import Client, Job, JobState, User, Work


class Admission:
    """Counts what is pending and refuses what exceeds the bounds.

    ``filled_or_freed`` is called when the last place is taken and when it is free
    again, on the thread that does that. ``left`` counts, though it was reported: a lane
    has it until it has `stopped`. Thread-safe.
    """

    def __init__(
        self, max_pending: int, filled_or_freed: Callable[[], None] = lambda: None
    ) -> None:
        self._max_pending = max_pending
        self._filled_or_freed = filled_or_freed
        self._pending = 0
        self._lock = threading.Lock()
        self._of: dict[Client | User, int] = {}
        self.left: set[Work] = set()

    @property
    def is_full(self) -> bool:
        """Whether nobody is admitted."""
        return self._pending >= self._max_pending

    def admit(self, client: Client) -> None:
        """Count one more.

        :raises ResourceExhaustedTransientError: if a bound is reached.
        """
        with self._lock:
            if self._pending >= self._max_pending:
                raise _exhausted("", "DeviceSettings.max_pending", self._pending)
            user, counts = client.user, self._of
            # Both before anything is counted: a refusal leaves no count behind.
            of_client, of_user = counts.get(client, 0), counts.get(user, 0)
            for owner, count in (client, of_client), (user, of_user):
                most = owner.max_pending
                if most is not None and count >= most:
                    raise _exhausted(f" of {owner.name}", owner.limit, most)
            counts[client], counts[user] = of_client + 1, of_user + 1
            self._pending += 1
            has_filled = self._pending == self._max_pending
        if has_filled:
            self._filled_or_freed()

    def release(self, client: Client) -> None:
        """Count one less."""
        with self._lock:
            was_full = self._pending == self._max_pending
            self._pending -= 1
            counts = self._of
            for owner in (client, client.user):
                left = counts[owner] - 1
                if left:
                    counts[owner] = left
                else:  # or a client that has gone would be kept
                    del counts[owner]
        if was_full:
            self._filled_or_freed()

    def leave(self, work: Work, pending: set[Work]) -> bool:
        """Move work from ``pending`` to what is left; False if it ends otherwise.

        That is what no lane has, what a lane has come to the end of, and what a lane
        was given up with.
        """
        with self._lock:  # in one step, as it may stop at once
            if work.state is not JobState.RUNNING or not work.decides():
                return False
            try:
                pending.remove(work)
            except KeyError:
                return False
            work.is_left = True
            self.left.add(work)
            return True

    def stopped(self, work: Work) -> bool:
        """Count work no more that was left; False if it was not."""
        with self._lock:
            if work not in self.left:
                return False
            self.left.remove(work)
        self.release(work.client)
        return True


def check_can_end(work: Job) -> None:
    """Check that work with a deadline is not too late to begin now.

    :raises MissedDeadlinePersistentError: if the deadline has passed already, or would
        have when the work could end at the earliest.
    """
    now_ns, deadline_ns = time.monotonic_ns(), work.deadline_ns
    if deadline_ns is None or not work.cannot_meet_deadline(now_ns):
        return
    if now_ns >= deadline_ns:
        raise MissedDeadlinePersistentError("the deadline has passed already")
    raise MissedDeadlinePersistentError(
        f"the deadline is in {format_duration((deadline_ns - now_ns) / 1000)}, "
        f"but it takes at least {format_duration(work.min_runtime_ns / 1000)}"
    )


def _exhausted(whose: str, limit: str, most: int) -> ResourceExhaustedTransientError:
    return too_many(
        f"pending calls{whose}", limit, most, hint="await some of them first"
    )
