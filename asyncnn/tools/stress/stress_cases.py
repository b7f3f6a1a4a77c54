"""The table of what stress tries. A new case is a row here, and its body."""

import msgspec

_BODIES = "asyncnn.tools.stress.bodies"
_DYING = "asyncnn.tools.stress.dying"


class Case(msgspec.Struct, frozen=True):
    """A case: its ``body`` is a coroutine function of a `Place`, as ``module:name``.

    As many processes as are asked for run it, or one that ``is_alone``. All but the
    first ``ends_early`` at will, or are killed at random moments (``kills_clients``),
    and are replaced. A remote device has one driver for all of them, unless the body
    ``starts_drivers`` of its own, which it may kill.
    """

    name: str
    about: str
    body: str
    is_alone: bool = False
    ends_early: bool = False
    kills_clients: bool = False
    starts_drivers: bool = False


_EACH = (
    Case(
        "threads",
        "models on all paths, in threads of one process",
        f"{_BODIES}:threads",
        is_alone=True,
    ),
    Case("processes", "models on all paths, in several processes", f"{_BODIES}:mixed"),
    Case(
        "early-exit",
        "clients that leave while runs of theirs are pending",
        f"{_DYING}:leaving",
        ends_early=True,
    ),
    Case(
        "terminations",
        "clients that are killed while they run models on all paths",
        f"{_BODIES}:mixed",
        kills_clients=True,
    ),
    Case(
        "loading",
        "files that several processes load, prepare and replace",
        f"{_BODIES}:loading",
    ),
    Case(
        "mapping",
        "files that are mapped, and then removed or replaced",
        f"{_BODIES}:mapping",
    ),
    Case(
        "random-graphs",
        "graphs that are drawn, beside the reference kernels",
        f"{_BODIES}:random_graphs",
    ),
    Case(
        "degradation",
        "how long runs take beside other clients, and alone",
        f"{_BODIES}:degradation",
    ),
    Case(
        "caching",
        "prepared models in a cache that is shared, damaged and killed over",
        f"{_BODIES}:caching",
        kills_clients=True,
    ),
    Case(
        "bursts",
        "bursts that are opened, cancelled in, and killed over",
        f"{_BODIES}:bursts",
        kills_clients=True,
    ),
    Case(
        "fences",
        "chains of fenced runs that are cut, or whose client is killed",
        f"{_DYING}:fences",
        kills_clients=True,
    ),
    Case(
        "sessions",
        "sessions on all paths, some of whose clients are killed",
        f"{_DYING}:sessions",
        kills_clients=True,
    ),
    Case(
        "cancels",
        "runs that are cancelled, or miss deadlines, at any moment",
        f"{_DYING}:cancels",
        is_alone=True,
    ),
    Case(
        "partitions",
        "divided models one of whose devices dies",
        f"{_DYING}:partitions",
        starts_drivers=True,
    ),
    Case(
        "restarts",
        "supervised drivers that are killed again and again",
        f"{_DYING}:restarts",
        starts_drivers=True,
    ),
)

CASES = {case.name: case for case in _EACH}
"""All cases by name, but for the soak."""

SOAK = Case(
    "soak",
    "mixed work for long, beside clients that come and die; nothing may grow",
    "asyncnn.tools.stress.soak:soaking",
    kills_clients=True,
)
