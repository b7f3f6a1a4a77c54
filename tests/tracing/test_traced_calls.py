"""What a recording says of calls, in one process and in two."""

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
import asyncnn.fences
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.tracing import Span, recording, recording_to
from tests.networks import addition
from tests.runtime.stateful import counting

X = np.ones(4, np.float32)
STAGES = {"validate", "wait-fence", "queue", "prepare", "execute", "reply"}


async def use(device: asyncnn.Device) -> None:
    """Run twice, the second time behind a fence that is signalled later."""
    prepared = await device.prepare(addition(4))
    await prepared.run([X, X])
    gate, source = asyncnn.fences.SyncFence.pair()
    run = prepared.run_fenced([X, X], wait_for=[gate])
    source.signal()
    await run


async def test_every_stage_of_a_call_is_a_span() -> None:
    spans: list[Span] = []
    settings = asyncnn.DeviceSettings(inline_below_us=0)
    with recording_to(spans.extend):
        async with asyncnn.open_device(settings=settings) as device:
            await use(device)
    whole = {"run", "execution", "preparation"}
    assert {span.name for span in spans} == STAGES | whole | {"0: ADD"}
    assert all(span.started_ns <= span.ended_ns for span in spans)
    groups: dict[int, dict[str, Span]] = defaultdict(dict)
    for span in spans:
        groups[span.group][span.name] = span
    executions = [group for group in groups.values() if "execution" in group]
    assert len(executions) == 2
    for group in executions:
        whole = group["execution"]
        assert whole.started_ns <= group["queue"].started_ns
        assert group["queue"].ended_ns <= group["execute"].started_ns
        assert group["execute"].started_ns <= group["0: ADD"].started_ns
        assert group["0: ADD"].ended_ns <= group["execute"].ended_ns
        assert group["execute"].ended_ns <= group["reply"].started_ns
        assert group["reply"].ended_ns <= whole.ended_ns


async def test_a_failure_is_named_on_its_span() -> None:
    spans: list[Span] = []
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(addition(4))
        with recording_to(spans.extend):
            status, _, _ = await prepared.hal.execute_synchronously_1_3(
                Request((), (), ()), MeasureTiming.NO, None, None
            )
    assert status is ErrorStatus.INVALID_ARGUMENT
    assert [(span.name, span.failure) for span in spans] == [
        ("validate", "INVALID_ARGUMENT")
    ]


@pytest.mark.parametrize("opening", [asyncnn.open_device, asyncnn.connect])
async def test_lengths_that_come_again_are_not_validated_again(
    opening: Callable[[], AbstractAsyncContextManager[asyncnn.Device]],
) -> None:
    spans: list[Span] = []
    async with opening() as device:
        prepared = await device.prepare(addition(0))
        arrays = [np.arange(length, dtype=np.float32) for length in (3, 5)]
        for x in arrays * 2:
            await prepared.run([x, x])
        with recording_to(spans.extend):
            for x in arrays:
                outputs = await prepared.run([x, x])
                np.testing.assert_array_equal(outputs[0], x + x)
    assert "validate" not in {span.name for span in spans}


async def test_runs_of_models_with_state_are_validated_once() -> None:
    spans: list[Span] = []
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(counting())
        await prepared.run([X])
        with recording_to(spans.extend):
            outputs = await prepared.run([X])
    np.testing.assert_array_equal(outputs["y"], 2 * X)
    assert "validate" not in {span.name for span in spans}


async def test_a_driver_process_is_on_the_same_timeline(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with recording(path, "application"):
        async with asyncnn.connect() as device:
            await use(device)
    events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    pids = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M"}
    assert sorted(pids) == ["application", "asyncnn serve"]
    stages = {
        (e["pid"], e["name"].partition("]")[2]) for e in events if e["ph"] in "Xb"
    }
    driver = pids["asyncnn serve"]
    # The fence may have signalled before the driver was asked to wait for it.
    known = STAGES - {"wait-fence"} | {"receive"}
    assert {name for pid, name in stages if pid == driver} >= known
    assert (pids["application"], "run") in stages

    def times(pid: int, name: str) -> list[float]:
        return [
            e["ts"]
            for e in events
            if e["pid"] == pid and e["ph"] in "be" and e["name"].endswith(f"]{name}")
        ]

    began, ended = times(pids["application"], "run")
    first = times(driver, "execute")[:2]
    assert began < first[0] < first[1] < ended
