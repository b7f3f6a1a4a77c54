"""The table of what stress tries. A new case is a row here, and its body."""

import msgspec

_BODIES = "asyncnn.tools.stress.bodies"
_DYING = "asyncnn.tools.stress.dying"


class Case(msgspec.Struct, frozen=True, kw_only=True):
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


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            name="threads",
            about="models on all paths, in threads of one process",
            body=f"{_BODIES}:threads",
            is_alone=True,
        ),
        Case(
            name="processes",
            about="models on all paths, in several processes",
            body=f"{_BODIES}:mixed",
        ),
        Case(
            name="early-exit",
            about="clients that leave while runs of theirs are pending",
            body=f"{_DYING}:leaving",
            ends_early=True,
        ),
        Case(
            name="terminations",
            about="clients that are killed while they run models on all paths",
            body=f"{_BODIES}:mixed",
            kills_clients=True,
        ),
        Case(
            name="loading",
            about="files that several processes load, prepare and replace",
            body=f"{_BODIES}:loading",
        ),
        Case(
            name="mapping",
            about="files that are mapped, and then removed or replaced",
            body=f"{_BODIES}:mapping",
        ),
        Case(
            name="random-graphs",
            about="graphs that are drawn, beside the reference kernels",
            body=f"{_BODIES}:random_graphs",
        ),
        Case(
            name="degradation",
            about="how long runs take beside other clients and alone",
            body=f"{_BODIES}:degradation",
        ),
        Case(
            name="caching",
            about="prepared models in a cache that is shared, damaged and killed over",
            body=f"{_BODIES}:caching",
            kills_clients=True,
        ),
        Case(
            name="bursts",
            about="bursts that are opened, cancelled in, and killed over",
            body=f"{_BODIES}:bursts",
            kills_clients=True,
        ),
        Case(
            name="fences",
            about="chains of fenced runs that are cut, or whose client is killed",
            body=f"{_DYING}:fences",
            kills_clients=True,
        ),
        Case(
            name="sessions",
            about="sessions on all paths, some of whose clients are killed",
            body=f"{_DYING}:sessions",
            kills_clients=True,
        ),
        Case(
            name="cancels",
            about="runs that are cancelled, or miss deadlines, at any moment",
            body=f"{_DYING}:cancels",
            is_alone=True,
        ),
        Case(
            name="partitions",
            about="divided models one of whose devices dies",
            body=f"{_DYING}:partitions",
            starts_drivers=True,
        ),
        Case(
            name="restarts",
            about="supervised drivers that are killed again and again",
            body=f"{_DYING}:restarts",
            starts_drivers=True,
        ),
    )
}
"""All cases by name, but for the soak."""

SOAK = Case(
    name="soak",
    about="mixed work for long, beside clients that come and die; nothing may grow",
    body="asyncnn.tools.stress.soak:soaking",
    kills_clients=True,
)
