"""Mistakes that random graphs must find, and say how to replay."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.conformance.dumping import FOLDER_VARIABLE
from asyncnn.engine import arena, control_flow, plan
from asyncnn.hal.types import OperationType
from asyncnn.kernels import registry
from tests.random_graphs.running import check_engine, check_formulas
from tests.random_graphs.strategies import Graph
from tests.random_graphs.trying import on_graphs

Break = Callable[[pytest.MonkeyPatch], None]


def one_operation_too_short(patch: pytest.MonkeyPatch) -> None:
    """Let the memory of a value go before the last operation that reads it."""

    def lay_out(lifespans: list[arena.Lifespan]) -> arena.ArenaLayout:
        return arena.lay_out(
            [
                arena.Lifespan(s.key, s.size_bytes, s.first, max(s.first, s.last - 1))
                for s in lifespans
            ]
        )

    patch.setattr(plan, "lay_out", lay_out)


def overwriting_inputs(patch: pytest.MonkeyPatch) -> None:
    """Let a loop write to arrays that are not its own."""
    begin = control_flow.While.__init__

    def init(self: control_flow.While, *arguments: object) -> None:
        begin(self, *arguments)
        self._owned = True

    patch.setattr(control_flow.While, "__init__", init)


def wrong_kernel(patch: pytest.MonkeyPatch) -> None:
    """Clamp to 1 instead of 6."""
    wrong = registry._PREPARE[OperationType.RELU1]
    patch.setitem(registry._PREPARE, OperationType.RELU6, wrong)


@pytest.mark.parametrize(
    ("break_", "check"),
    [
        (one_operation_too_short, check_engine),
        (overwriting_inputs, check_engine),
        (wrong_kernel, check_formulas),
    ],
)
def test_a_mistake_is_found_and_its_graph_dumped(
    break_: Break,
    check: Callable[[Graph], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with monkeypatch.context() as patch:
        break_(patch)
        t0 = time.time()
        with pytest.raises(Exception) as raised:
            on_graphs()(check)()
    print(time.time() - t0)
    print(*raised.value.__notes__)
