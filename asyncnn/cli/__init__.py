"""Floor 8: the command line. `main` is the entry point of the ``asyncnn`` script.

Every command ends with status 0 for success, 1 for a negative result (a check that
failed), and 2 for bad input, which is one line on standard error. The status is 130
after SIGINT and 143 after SIGTERM.
"""

import sys
from contextlib import suppress

__all__ = ("main",)

EXIT_INTERRUPTED = 130
"""Status of a command that SIGINT has ended, as shells give it: 128 + 2."""


def main() -> None:
    """Run the command line; the version alone imports none of it."""
    if sys.argv[1:] == ["--version"]:
        from asyncnn import __version__

        # What cannot be written is reported below.
        with suppress(OSError):
            sys.stdout.write(f"{__version__}\n")
            sys.stdout.flush()
            return
    try:
        from asyncnn.cli.app import main as run

        run()
    except KeyboardInterrupt:  # importing takes a moment, too
        sys.exit(EXIT_INTERRUPTED)
