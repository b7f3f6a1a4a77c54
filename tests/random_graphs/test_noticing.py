"""Mistakes that random graphs must find, and keep in a form that can be replayed."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.cli import main
from asyncnn.engine import arena, control_flow, plan
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import OperationType
from asyncnn.kernels import activation
from asyncnn.pacing import Steps
from asyncnn.tools.conformance.random_graphs.dumping import FOLDER_VARIABLE
from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs
from tests.random_graphs.running import check_engine, check_formulas
from tests.random_graphs.trying import on_graphs


@pytest.fixture(autouse=True)
def dumps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that dumps go to."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def failure(
    check: Callable[[RandomGraph], None], *types: OperationType
) -> pytest.ExceptionInfo[Exception]:
    """Return how ``check`` fails on graphs of ``types``, or of all types."""
    drawn = graphs(set(types) or None)
    with pytest.raises((AssertionError, AsyncnnError)) as raised:
        on_graphs(strategy=drawn, shrinks=False)(check)()
    return raised


def replay(raised: pytest.ExceptionInfo[Exception], patch: pytest.MonkeyPatch) -> int:
    """Run the command that the failure tells; return its exit status."""
    notes = "\n".join(raised.value.__notes__)
    (command,) = re.findall("replay with: (.*)", notes)
    patch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_kernel_that_computes_something_else_is_found_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        wrong = activation.KERNELS[OperationType.RELU1]
        patch.setitem(activation.KERNELS, OperationType.RELU6, wrong)
        raised = failure(check_formulas, OperationType.RELU6)
        assert "RELU6" in str(raised.value)
        assert replay(raised, monkeypatch) == 1
    assert replay(raised, monkeypatch) == 0


def test_memory_that_is_given_away_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch, dumps: Path
) -> None:
    def laying_out(lifespans: list[arena.Lifespan]) -> Steps[arena.ArenaLayout]:
        return arena.laying_out(
            [
                arena.Lifespan(s.key, s.size_bytes, s.first, max(s.first, s.last - 1))
                for s in lifespans
            ]
        )

    with monkeypatch.context() as patch:
        patch.setattr(plan, "laying_out", laying_out)
        failure(check_engine)
    assert len(list(dumps.iterdir())) == 2


def test_a_loop_that_overwrites_what_it_was_given_is_found(
    monkeypatch: pytest.MonkeyPatch, dumps: Path
) -> None:
    begin = control_flow.While.__init__

    def init(self: control_flow.While, *arguments: object) -> None:
        begin(self, *arguments)
        self._owned = True

    with monkeypatch.context() as patch:
        patch.setattr(control_flow.While, "__init__", init)
        failure(check_engine, OperationType.WHILE)
    assert len(list(dumps.iterdir())) == 2
