"""Floor 8: the command line. `main` is the entry point of the ``asyncnn`` script.

Every command ends with status 0 for success, 1 for a negative result (a check that
failed), and 2 for bad input, which is one line on standard error.
"""

from asyncnn.cli.app import main

__all__ = ("main",)
