"""Recordings repeated: the calls of a driver again, and what differs.

`repeating` makes the calls again at the HAL, `pinning` says what of them time has
decided and what they need of each other, `judging` compares, and `cutting` finds the
few calls that still fail. Knows nothing of how recordings come about.
"""

from asyncnn.tools.replay.replaying import ReplayReport, ReplayRequest, replayed

__all__ = ("ReplayReport", "ReplayRequest", "replayed")
