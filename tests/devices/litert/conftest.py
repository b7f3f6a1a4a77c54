"""Engines of both kinds, on one verdict for all tests of a process."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import Array, Engine, load_engine
from asyncnn.engine.workspace import aligned_bytes

LINKS, ROWS, WIDTH = 6, 4, 32

LITERT = importlib.util.find_spec("ai_edge_litert")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the package where it is not installed."""
    if LITERT is None:
        mark = pytest.mark.skip(reason="ai-edge-litert is not installed")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(mark)


@pytest.fixture(scope="session", autouse=True)
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory for verdicts, which are not those of this user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder / "asyncnn"


@pytest.fixture(params=["c_api", "interpreter"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return load_engine(request.param)


@pytest.fixture
def c_api() -> Engine:
    return load_engine("c_api")


@pytest.fixture(scope="session")
def chain() -> Chain:
    return Chain(LINKS, ROWS, WIDTH)


class Case:
    """Arrays for a chain: an input, what comes out of it, and space for that."""

    def __init__(self, chain: Chain, shape: tuple[int, int] = (ROWS, WIDTH)) -> None:
        self.x = np.random.default_rng(0).integers(-8, 9, shape).astype(np.float32)
        self.expected = chain.expected(self.x)
        self.outputs = [np.full_like(self.x, np.nan) for _ in self.expected]

    def assert_right(self, outputs: Any = None) -> None:
        found = self.outputs if outputs is None else outputs
        for output, right in zip(found, self.expected, strict=True):
            np.testing.assert_array_equal(output, right)


@pytest.fixture
def case(chain: Chain) -> Case:
    return Case(chain)


def at_offset(like: Array, offset: int) -> Array:
    """Return a copy that begins ``offset`` bytes after an aligned address."""
    memory = aligned_bytes(like.nbytes + offset + 64)[offset : offset + like.nbytes]
    array: Array = np.ndarray(like.shape, like.dtype, memory)
    array[...] = like
    return array
