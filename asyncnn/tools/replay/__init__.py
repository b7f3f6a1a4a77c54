"""Recordings repeated: the calls of a driver again, and what differs.

`repeating` makes the calls again at the HAL, `pinning` says what of them time has
decided, what they need of each other, and which few still fail, and
`differing_calls` compares.
Knows nothing of how recordings come about.
"""

from asyncnn.tools.replay.differing_calls import ReplayReport
from asyncnn.tools.replay.replaying import ReplayRequest, replayed

__all__ = ("ReplayReport", "ReplayRequest", "replayed")
