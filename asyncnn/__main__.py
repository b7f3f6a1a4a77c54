"""``python -m asyncnn`` is the ``asyncnn`` command."""

from asyncnn.cli import main

main()
