"""The JSON document of ``asyncnn bench responsiveness``, and its goals."""

from collections.abc import Sequence
from statistics import median

import msgspec

from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.responsiveness.heartbeat import Pulse
from asyncnn.tools.bench.responsiveness.workloads import LAYOUTS

IDLE = "idle"
PREPARE = "prepare"
QUERY = "query"
SAVE = "save"
LOAD = "load"
FIRST_RUN = "first_run"
FIRST_RUN_LOADED = "first_run_loaded"
RELEASE = "release"


def input_activity(layout: str) -> str:
    """Return the name of running inputs of a layout."""
    return f"input_{layout}"


DESCRIPTIONS = {
    IDLE: "nothing",
    PREPARE: "a long model: prepared",
    QUERY: "which operations are supported",
    SAVE: "prepared and saved in a cache",
    LOAD: "loaded from the cache",
    FIRST_RUN: "first run",
    FIRST_RUN_LOADED: "first run after loading",
    RELEASE: "released",
    **{input_activity(layout): f"a large input: {layout}" for layout in LAYOUTS},
}
"""Activities in the order in which they are reported."""

IN_PROCESS = "in_process"
APPLICATION = "application"
DRIVER = "driver"

SIDES = {
    IN_PROCESS: "device in the process",
    APPLICATION: "application of a driver",
    DRIVER: "the driver itself",
}
"""The loops whose heart beats."""

P99_BELOW_MS = 5.0
LONGEST_MS = 20.0


class Heard(msgspec.Struct, frozen=True):
    """The beats of one loop beside one activity; ``pulses`` are those of the rounds.

    ``p50_ms`` and ``p99_ms`` are medians of the rounds', ``longest_ms`` is that of all.
    """

    activity: str
    side: str
    pulses: tuple[Pulse, ...]
    p50_ms: float
    p99_ms: float
    longest_ms: float
    met: bool


class ResponsivenessReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench responsiveness --json``.

    ``repeated`` counts the attempts that the machine disturbed, by activity.
    """

    environment: Environment
    placement: str
    rounds: int
    operations: int
    input_bytes: int
    heard: tuple[Heard, ...]
    repeated: dict[str, int]

    @property
    def met(self) -> bool:
        """Whether the goals were met beside every activity; idling has none."""
        return all(heard.met for heard in self.heard if heard.activity != IDLE)


def judge(activity: str, side: str, pulses: Sequence[Pulse]) -> Heard:
    """Hold the pulses of all rounds against the goals."""
    p99_ms = median(pulse.p99_ms for pulse in pulses)
    longest_ms = max(pulse.longest_ms for pulse in pulses)
    return Heard(
        activity,
        side,
        tuple(pulses),
        median(pulse.p50_ms for pulse in pulses),
        p99_ms,
        longest_ms,
        meets_goals(p99_ms, longest_ms),
    )


def meets_goals(p99_ms: float, longest_ms: float) -> bool:
    """Tell whether a loop that was so late is responsive."""
    return p99_ms < P99_BELOW_MS and longest_ms <= LONGEST_MS
