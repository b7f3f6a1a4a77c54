"""Fixtures that every part shares."""

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("ASYNCNN_SHARED", Path(__file__).parents[2] / "shared")
).resolve()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of conformance vectors and trained models beside the project."""
    if SHARED.is_dir():
        return SHARED
    if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
        pytest.fail(f"{SHARED} is missing but ASYNCNN_REQUIRE_SHARED=1")
    pytest.skip(f"{SHARED} is missing; set ASYNCNN_SHARED to the folder of the data")
