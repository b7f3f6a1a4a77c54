"""Floor 8: the command line. `main` is the entry point of the ``asyncnn`` script.

Every command ends with status 0 for success, 1 for a negative result (a check that
failed), and 2 for bad input, which is one line on standard error. It is 130 or 143 for
one that SIGINT or SIGTERM has ended.
"""

import sys
from contextlib import suppress

__all__ = ("main",)

_INTERRUPTED = 130
"""As shells have it of what SIGINT has ended."""


def main() -> None:
    """Run the command line; the version alone is told without importing all of it."""
    if sys.argv[1:] == ["--version"]:
        from asyncnn import __version__

        # What cannot be written is told below.
        with suppress(OSError):
            sys.stdout.write(f"{__version__}\n")
            sys.stdout.flush()
            return
    try:
        from asyncnn.cli.app import main as run

        run()
    except KeyboardInterrupt:  # importing takes a moment, too
        sys.exit(_INTERRUPTED)
