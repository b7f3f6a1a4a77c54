"""Programs in processes of their own, which tests run to their end."""

import subprocess
import sys
from typing import Any

Process = subprocess.CompletedProcess[str]


def executed(*command: object, check: bool = False, **options: Any) -> Process:
    """Execute a command, keeping what it prints; ``options`` are `subprocess`'s."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=check, **options)


def python(*arguments: object, **options: Any) -> Process:
    """Execute this interpreter, keeping what it prints."""
    return executed(sys.executable, *arguments, **options)
