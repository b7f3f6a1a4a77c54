"""What is to be tried, and what came of it."""

from fnmatch import fnmatchcase

import msgspec

from asyncnn.tools.conformance.running import IN_PROCESS, REMOTE
from asyncnn.tools.conformance.vectors import Case


class Plan(msgspec.Struct, frozen=True):
    """Which mutants to try, and where.

    ``limit`` is how many of each row and case, None for all; the choice is the same
    every time. ``pattern`` is a glob that the name of a case or of its file matches.
    With ``socket``, the driver that serves it is asked: once by a client that checks
    like any other, once by one that does not. Else it is a device in this process,
    which has ``extensions``.
    """

    limit: int | None = 1
    pattern: str = "*"
    socket: str | None = None
    extensions: tuple[str, ...] = ()

    @property
    def transport(self) -> str:
        """The way to the device, by its name on the command line."""
        return IN_PROCESS if self.socket is None else REMOTE

    def includes(self, case: Case) -> bool:
        """Tell whether mutants are made of ``case``."""
        names = (case.name, case.spec)
        return any(fnmatchcase(name, self.pattern) for name in names)


class Tally(msgspec.Struct, frozen=True):
    """How the mutants of one row fared that were made of one case.

    ``problems`` has a line for each wrong answer, of which a failed mutant may have
    got several. ``skipped`` counts the mutants that may be legal, by the reason.
    """

    spec: str
    case: str
    row: str
    transport: str
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = {}
    problems: tuple[str, ...] = ()
