"""MLPerf's LoadGen, with this project and what users would write as systems under test.

LoadGen decides when queries come, measures, and judges whether a run is valid; nothing
of that is changed here. `judge` runs it, `systems` and `ways` are this project's
and what users would write, `comparing` holds one against the other.

Needs mlcommons-loadgen: pip install asyncnn[loadgen].
"""

from enum import StrEnum
from typing import Any

import msgspec

from asyncnn.tools.bench.environment import peer_module


class Scenario(StrEnum):
    """How LoadGen sends queries: its `TestScenario`."""

    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"
    SERVER = "Server"
    OFFLINE = "Offline"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What LoadGen is given; what is left open here stays as LoadGen has it.

    ``target_qps`` is the rate of a Server run, and what is expected of an Offline run,
    which is as long as that takes. ``expected_s`` is about how long a query takes.
    """

    scenario: Scenario
    queries: int = 100
    seconds: float = 10.0
    target_qps: float | None = None
    latency_bound_s: float | None = None
    expected_s: float | None = None
    accuracy: bool = False


class LoadGenVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What LoadGen has found, as its log says it.

    ``rate`` is in samples per second; latencies are of queries, in microseconds.
    ``reasons`` are the rules that were broken, if it is not ``valid``. An accuracy run
    has no figures.
    """

    scenario: str
    valid: bool
    reasons: tuple[str, ...] = ()
    queries: int = 0
    rate: float = 0.0
    target_qps: float | None = None
    p50_us: float = 0.0
    p90_us: float = 0.0
    p99_us: float = 0.0


def loadgen_module() -> Any:
    """Import LoadGen.

    :raises PeerMissingError: if it is not installed.
    """
    return peer_module("mlperf_loadgen", "LoadGen", "asyncnn[loadgen]")
