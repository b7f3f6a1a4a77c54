"""Floor 8: the command line. `main` is the entry point of the ``asyncnn`` script.

Every command ends with status 0 for success, 1 for a negative result (a check that
failed), 2 for bad input, which is one line on standard error, and 130 for an interrupt.
"""

import sys

__all__ = ("main",)

_INTERRUPTED = 130
"""As shells have it of what SIGINT has ended."""


def main() -> None:
    """Run the command line; the version alone is told without importing all of it."""
    if sys.argv[1:] == ["--version"]:
        from asyncnn import __version__

        sys.stdout.write(f"{__version__}\n")
        return
    try:
        from asyncnn.cli.app import main as run

        run()
    except KeyboardInterrupt:  # importing takes a moment, too
        sys.exit(_INTERRUPTED)
