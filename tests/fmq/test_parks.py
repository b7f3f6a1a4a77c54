"""A short run of ``parks``: no wake-up is lost on this machine, and many could be."""

import pytest

from tests.fmq.parks import count_lost

PARKS = 20_000


@pytest.mark.unrecorded
def test_no_wake_up_is_lost() -> None:
    parks, sleeps, lost = count_lost(PARKS)
    assert parks == PARKS
    assert lost == 0
    # Packets and announcements must have crossed for this to mean anything.
    assert 0 < sleeps < parks
