"""What has not ended yet, counted in one pass for all records that tell of it."""

from collections import Counter
from collections.abc import Iterable

from asyncnn.qos.client import Client
from asyncnn.qos.job import JobState
from asyncnn.qos.roster import Roster
from asyncnn.qos.tally import Tally, WorkStatistics
from asyncnn.qos.work import Work


class Survey:
    """The state of so much ``pending`` work at the moment, by its tallies.

    ``tally`` is the one of all work of the scheduler.
    """

    def __init__(
        self, pending: Iterable[Work], tally: Tally, roster: Roster[Work]
    ) -> None:
        self._tally = tally
        self._roster = roster
        self._queued: Counter[Tally | None] = Counter()
        self._running: Counter[Tally | None] = Counter()
        for work in pending:
            is_queued = work.state is JobState.WAITING
            counter = self._queued if is_queued else self._running
            for each in (tally, work.account.tally, work.tally):
                counter[each] += 1

    def of_all(self) -> WorkStatistics:
        """Return what became of all work."""
        return self.of(self._tally)

    def of_client(self, client: Client) -> WorkStatistics:
        """Return what became of the work of a client."""
        return self.of(self._roster.account(client).tally)

    def of(self, tally: Tally) -> WorkStatistics:
        """Return what became of the work that has ``tally`` in common."""
        return tally.statistics(self._queued[tally], self._running[tally])
