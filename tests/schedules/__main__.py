"""Tries schedules: ``python -m tests.schedules [--count N] [--seed S] [--only NAME]``.

A failure prints its seed, and ``--seed S --count 1 --only NAME`` tries that again.
"""

import os
import sys

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # What is in C has a clock of its own.
    "ASYNCNN_PURE_JOB": "1",
}

if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():
        os.environ.update(ENVIRONMENT)
        os.execv(
            sys.executable, [sys.executable, "-m", "tests.schedules", *sys.argv[1:]]
        )
    from tests.schedules.world import install

    install()
    from tests.schedules.trying import main

    sys.exit(main(sys.argv[1:]))
