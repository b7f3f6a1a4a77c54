"""The table of what stress tries. A new case is a row here, and its body."""

from collections.abc import Iterator, Sequence

import msgspec

from asyncnn.hal.errors import InvalidArgumentError

_TABLE = """
threads       | bodies:threads       | is_alone       | models on all paths, in threads
processes     | bodies:mixed         |                | the same in several processes
early-exit    | dying:leaving        | ends_early     | clients that leave runs pending
terminations  | bodies:mixed         | kills_clients  | clients that are killed
loading       | bodies:loading       |                | files that others replace
mapping       | bodies:mapping       |                | files mapped, then removed
random-graphs | bodies:random_graphs |                | drawn, beside the kernels
degradation   | bodies:degradation   |                | times beside others and alone
caching       | bodies:caching       | kills_clients  | a cache shared and damaged
bursts        | bodies:bursts        | kills_clients  | opened, cancelled, killed over
fences        | dying:fences         | kills_clients  | chains, cut and killed over
sessions      | dying:sessions       | kills_clients  | states, copied and reset
cancels       | dying:cancels        | is_alone       | at any moment, on each path
partitions    | dying:partitions     | starts_drivers | devices that die below models
restarts      | dying:restarts       | starts_drivers | supervised drivers killed
soak          | soak:soaking         | kills_clients ends_early is_measured | for long
"""
"""A name, a body in this folder, what is true of the case, and what it tries."""


class StressCase(msgspec.Struct, frozen=True):
    """A case: its ``body`` is a coroutine function of a place, as ``module:name``.

    As many processes as are asked for run it, or one that ``is_alone``. All but the
    first ``ends_early`` at will, or are killed at random moments (``kills_clients``),
    and are replaced. A remote device has one driver for all of them, unless the body
    ``starts_drivers`` of its own, which it may kill. It keeps its last calls, unless
    its memory ``is_measured``, which these fill first.
    """

    name: str
    about: str
    body: str
    is_alone: bool = False
    ends_early: bool = False
    kills_clients: bool = False
    starts_drivers: bool = False
    is_measured: bool = False


def _read() -> Iterator[tuple[str, StressCase]]:
    for line in _TABLE.strip().splitlines():
        name, body, truths, about = (each.strip() for each in line.split("|"))
        true = dict.fromkeys(truths.split(), True)
        yield name, StressCase(name, about, f"{__package__}.{body}", **true)


CASES = dict(_read())
"""All cases by name, but for the soak."""

ALL = "all"
SOAK = CASES.pop("soak")


def chosen_cases(names: str) -> Sequence[StressCase]:
    """Return the cases of names with commas, or all of them.

    :raises InvalidArgumentError: if there is none of a name.
    """
    if names == ALL:
        return [*CASES.values()]
    known = {**CASES, SOAK.name: SOAK}
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in known:
            hint = f"known: {', '.join(known)}, or {ALL} but the soak"
            raise InvalidArgumentError(f"there is no case {name!r}", hint=hint)
    return [known[name] for name in found]
