"""What the tests of the benchmarks share."""

import sys

import pytest


@pytest.fixture
def without_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make LiteRT impossible to import, also where parts of it are imported already."""
    loaded = [name for name in sys.modules if name.split(".")[0] == "ai_edge_litert"]
    for name in {"ai_edge_litert", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
