"""The ways in which plans of engines run."""

import pytest

from asyncnn.engine.job import Job
from tests.engine.scripted import Way, engine

needs_compiled = pytest.mark.skipif(Job is None, reason="there is no compiled job")


@pytest.fixture(
    params=[pytest.param("job", marks=needs_compiled), "segments", "python"]
)
def way(request: pytest.FixtureRequest) -> Way:
    engine()
    found: Way = request.param
    return found
