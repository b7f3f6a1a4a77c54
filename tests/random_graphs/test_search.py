"""``asyncnn conformance --random``: what is right, and mistakes it must find."""

import asyncio
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model_file import load
from asyncnn.service.process import driver_process
from asyncnn.tools.conformance import random_graphs
from asyncnn.tools.conformance.random_graphs import checking
from asyncnn.tools.conformance.random_graphs.checking import Judge
from asyncnn.tools.conformance.suite import Selection, opened
from tests.cli.conftest import Ran, asyncnn_command

Command = Callable[..., Ran]

__all__ = ("asyncnn_command",)

ON_REFERENCE = ("--device", "reference", "--path", "sync")


@pytest.fixture(params=[True, False], ids=["bit by bit", "by operation"])
def apart(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.MonkeyPatch]:
    """Kernels that add otherwise than the device does, until that is undone."""

    computed = checking.evaluate

    def evaluate(operation: BoundOperation) -> list[Array]:
        results = computed(operation)
        if operation.type is OperationType.ADD:
            results = [np.zeros_like(each) for each in results]
        return results

    async def judge(device: Device, path: AnyPath) -> Judge:
        return Judge(device, path, is_exact=request.param)

    monkeypatch.setattr(random_graphs, "_judge", judge)
    with monkeypatch.context() as patch:
        patch.setattr(checking, "evaluate", evaluate)
        yield patch


@pytest.mark.parametrize("device", ["reference", "accelerated", "onnxruntime"])
def test_devices_compute_what_the_kernels_do(
    asyncnn_command: Command, device: str, tmp_path: Path
) -> None:
    pytest.importorskip({"accelerated": "ai_edge_litert"}.get(device, "onnxruntime"))
    report = tmp_path / "report.json"
    ran = asyncnn_command(
        *("conformance", "--random", 20, "--device", device, "--json", report),
        *("--path", "sync,burst,fenced", "--dump", tmp_path / "dumps"),
    )
    assert ran.status == 0, ran.out + ran.err
    tried = json.loads(report.read_bytes())
    assert [each["path"] for each in tried] == ["sync", "burst", "fenced"]
    assert {each["problem"] for each in tried} == {""}
    assert all(each["graphs"] >= 20 for each in tried)
    assert not (tmp_path / "dumps").exists()


def test_drivers_are_tried_as_well(asyncnn_command: Command, tmp_path: Path) -> None:
    with driver_process(tmp_path / "d.sock", device="reference") as driver:
        ran = asyncnn_command(
            *("conformance", "--random", 20, "--path", "async"),
            *("--socket", driver.path),
        )
    assert ran.status == 0, ran.out + ran.err
    assert "20 graphs [async, remote]" in ran.out
    assert ran.out.splitlines()[-1] == "20 passed, 0 failed, 0 skipped"


def test_a_mistake_is_found_made_small_written_and_tried_again(
    asyncnn_command: Command, apart: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = (
        *("conformance", "--random", 200, "--seed", 5, *ON_REFERENCE),
        *("--dump", tmp_path),
    )
    ran = asyncnn_command(*command)
    assert ran.status == 1, ran.out
    (written,) = tmp_path.glob("*.asyncnn")
    assert f"failed: {written} [sync, inprocess]: " in ran.out
    (operation,) = load(written).model.main.operations
    assert operation.type == OperationType.ADD
    assert asyncnn_command(*command).out == ran.out  # the same graphs, again
    (again,) = re.findall("try it again with: asyncnn (.*)", ran.out)
    replayed = asyncnn_command(*shlex.split(again))
    assert replayed.status == 1
    assert "failed: " in replayed.out
    apart.undo()
    replayed = asyncnn_command(*shlex.split(again))
    assert replayed.status == 0, replayed.out
    assert replayed.out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_a_device_that_is_gone_ends_it_at_once(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    async def check(self: Judge, *graph: object) -> None:
        calls.append(graph)
        if len(calls) == 3:
            raise DeviceUnavailableError("it has died")

    monkeypatch.setattr(Judge, "check", check)

    @asynccontextmanager
    async def opened_once(selection: Selection) -> AsyncIterator[Device]:
        if calls:
            raise DeviceUnavailableError("it cannot be opened")
        async with opened(selection) as device:
            yield device

    monkeypatch.setattr(random_graphs, "opened", opened_once)
    report = tmp_path.with_suffix(".json")
    ran = asyncnn_command(
        *("conformance", "--random", 50, "--device", "reference", "--json", report),
        *("--path", "sync,async", "--dump", tmp_path, "--through", "framework"),
    )
    assert ran.status == 1
    assert "it has died" in ran.out
    (again,) = re.findall("try it again with: (.*)", ran.out)
    assert again.endswith("--device reference --through framework")
    assert "not tried [async, inprocess]: it cannot be opened" in ran.out
    (tried,) = json.loads(report.read_bytes())
    assert "it has died" in tried["problem"]
    assert ran.out.splitlines()[-1] == "2 passed, 1 failed, 0 skipped"
    assert len(calls) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_an_interrupt_of_a_graph_says_nothing_of_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def interrupted() -> None:
        begun = asyncio.Event()

        async def check(self: Judge, *graph: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Judge, "check", check)
        selection = Selection(device="reference")
        search = asyncio.create_task(
            random_graphs.search(selection, "sync", 9, 0, tmp_path)
        )
        await begun.wait()
        assert not search.done()

    asyncio.run(interrupted())
    assert not caplog.records
    assert not list(tmp_path.iterdir())


def test_a_folder_for_dumps_is_asked_for_first(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(random_graphs, "search", pytest.fail)
    file = tmp_path / "file"
    file.touch()
    ran = asyncnn_command("conformance", "--random", 9, "--dump", file / "dumps")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "Not a directory" in ran.err


def test_what_is_found_is_told_though_it_cannot_be_written(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def check(self: Judge, *graph: object) -> None:
        raise DeviceUnavailableError("it has died")

    def full(*graph: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Judge, "check", check)
    monkeypatch.setattr(random_graphs, "dump", full)
    ran = asyncnn_command("conformance", "--random", 9, *ON_REFERENCE)
    assert ran.status == 1
    assert re.search("it has died; it is not written, as .*No space", ran.out)
    assert "digraph" in ran.out
    assert "try it again" not in ran.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is nothing to run"),
        (("--random", 1, "--mutate"), "tried by themselves"),
        (("--random", 1, "vectors"), "tried by themselves"),
        (("--random", 1, "--replay", "f.asyncnn"), "tried by themselves"),
        (("--replay", "nowhere.asyncnn"), "nowhere.asyncnn"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    asyncnn_command: Command, options: tuple[object, ...], message: str
) -> None:
    ran = asyncnn_command("conformance", *options)
    assert ran.status == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_what_it_needs_is_named(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, random_graphs.__name__)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    ran = asyncnn_command("conformance", "--random", 1)
    assert ran.status == 2
    assert "hypothesis" in ran.err
    assert "pip install asyncnn[conformance]" in ran.err
