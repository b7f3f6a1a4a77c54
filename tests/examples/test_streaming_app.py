"""The pipelines of examples/streaming, within this process and as a command."""

import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

import asyncnn
from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "streaming"
IMPORTED = (
    "voice", "synthesis", "recordings", "framing", "models", "events", "network",
    "report", "train", "camera", "pacing", "switchboard", "lookout", "view",
)  # fmt: skip


class Example(NamedTuple):
    """The modules that this file is about."""

    synthesis: ModuleType
    framing: ModuleType
    models: ModuleType
    events: ModuleType
    report: ModuleType
    camera: ModuleType
    pacing: ModuleType
    switchboard: ModuleType
    lookout: ModuleType
    view: ModuleType


@pytest.fixture(scope="module")
def example() -> Example:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for name in IMPORTED:
            importlib.import_module(name)
        modules = Example(*(sys.modules[name] for name in Example._fields))
        for name in IMPORTED:
            sys.modules.pop(name)
    return modules


@pytest.fixture(params=["inprocess", "remote"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[asyncnn.Device]:
    remote = request.param == "remote"
    async with asyncnn.connect() if remote else asyncnn.open_device() as device:
        yield device


class FakeClock:
    """Stands in for asyncio where time is told and slept."""

    def __init__(self) -> None:
        self.now = 100.0

    def get_running_loop(self) -> "FakeClock":
        return self

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class TestPacing:
    @pytest.fixture
    def clock(self, example: Example, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
        clock = FakeClock()
        monkeypatch.setattr(example.pacing, "asyncio", clock)
        return clock

    async def test_items_come_when_they_are_due(
        self, example: Example, clock: FakeClock
    ) -> None:
        times = [clock.now async for _ in example.pacing.paced("abc", 0.5)]
        assert times == [100.5, 101.0, 101.5]

    async def test_late_items_come_at_once(
        self, example: Example, clock: FakeClock
    ) -> None:
        items = example.pacing.paced("abcd", 0.5)
        await anext(items)
        clock.now += 1.25
        assert [(item, clock.now) async for item in items] == [
            ("b", 101.75),
            ("c", 101.75),
            ("d", 102.0),
        ]

    def test_chunks_make_up_the_recording(self, example: Example) -> None:
        samples = np.arange(1000, dtype=np.int16)
        chunks = list(example.pacing.chunks(samples, 8000))
        assert {len(chunk) for chunk in chunks[:-1]} == {80}
        assert np.array_equal(np.concatenate(chunks), samples)

    def test_frames_that_got_lost_are_forgotten(self, example: Example) -> None:
        arrivals = example.pacing.Arrivals()
        for item in "abcd":
            arrivals.enter(item)
        assert [arrivals.leave(0), arrivals.leave(3)] == ["a", "d"]
        assert len(arrivals.seconds) == arrivals.lost == 2


class TestSwitchboard:
    async def test_a_stream_gives_the_keys_of_the_recording(
        self, example: Example, device: asyncnn.Device
    ) -> None:
        recording = example.synthesis.record(0, seconds=5)
        line = await example.switchboard.Switchboard.on(device)
        found = example.events.presses(await self.heard(example, line, recording))
        assert line.keys == "".join(press.key for press in recording.presses)
        score = example.events.judge(recording.presses, found)
        assert score == example.events.Score(len(recording.presses), 0, 0)
        assert line.held is None
        assert list(line.stages) == ["features", "recurrent", "decision"]
        assert line.frames == len(recording.samples) // example.framing.HOP

    async def test_the_next_line_starts_afresh(
        self, example: Example, device: asyncnn.Device
    ) -> None:
        line = await example.switchboard.Switchboard.on(device)
        first, second = (example.synthesis.record(seed, seconds=4) for seed in (3, 4))
        expected = await self.heard(example, line, second)
        await self.heard(example, line, first)
        assert await self.heard(example, line, second) == expected

    async def test_one_may_hang_up_at_any_time(
        self, example: Example, device: asyncnn.Device
    ) -> None:
        recording = example.synthesis.record(0, seconds=5)
        line = await example.switchboard.Switchboard.on(device)
        chunks = example.pacing.chunks(recording.samples, 8000)
        async with aclosing(line.listen(example.pacing.paced(chunks, 0))) as events:
            event = await anext(events)
        assert event.key == line.held == recording.presses[0].key
        assert (await self.heard(example, line, recording))[0] == event

    async def heard(
        self, example: Example, line: object, recording: object
    ) -> list[object]:
        chunks = example.pacing.chunks(recording.samples, 8000)
        return [event async for event in line.listen(example.pacing.paced(chunks, 0))]


class TestLookout:
    async def test_the_camera_is_watched_at_its_pace(
        self, example: Example, device: asyncnn.Device
    ) -> None:
        lookout = await example.lookout.Lookout.on(device)
        sights = itertools.islice(example.camera.sights(), 40)
        await lookout.watch(example.pacing.paced(sights, 0.01))
        report = lookout.report()
        assert 0 < report.read <= report.frames
        assert report.read + report.skipped == 40
        assert report.right > 0.7

    async def test_a_camera_that_is_too_fast_loses_old_frames(
        self, example: Example
    ) -> None:
        async with asyncnn.open_device() as device:
            lookout = await example.lookout.Lookout.on(device)
            sights = itertools.islice(example.camera.sights(), 200)
            await lookout.watch(example.pacing.paced(sights, 0))
            report = lookout.report()
        assert report.skipped > 0
        assert report.frames < 200


class TestView:
    async def test_it_shows_the_key_held_and_what_was_typed(
        self, example: Example
    ) -> None:
        async with asyncnn.open_device() as device:
            line = await example.switchboard.Switchboard.on(device)
            lookout = await example.lookout.Lookout.on(device)
        line.keys, line.held, line.loudness_db = "123", "3", -30.0
        console = Console(width=100, force_terminal=True)
        with console.capture() as capture:
            console.print(example.view.View(line, lookout))
        shown = capture.get()
        assert "\x1b[1;30;43m 3 \x1b[0m" in shown
        assert "123" in shown
        assert "#" * 12 + "." * 12 in shown
        assert "camera" in shown


class TestReport:
    @pytest.mark.parametrize(
        ("milliseconds", "error_rate", "is_good"),
        [(10, 0.01, True), (40, 0.01, False), (10, 0.02, False)],
    )
    def test_it_is_good_if_fast_and_right(
        self, example: Example, milliseconds: float, error_rate: float, is_good: bool
    ) -> None:
        report = example.report
        timing = report.Timing.of([milliseconds / 1e3] * 3, 0.016)
        score = example.events.Score(100, round(100 * error_rate), 0)
        held_out = report.HeldOutReport(1, score, error_rate, 10.0)
        whole = report.Report(report.LineReport(3, "1", timing, {}), None, held_out)
        assert whole.is_good == is_good
        assert f"error rate {error_rate:.2%}" in str(whole)

    def test_headroom_is_frame_time_by_processing_time(self, example: Example) -> None:
        timing = example.report.Timing.of([0.001, 0.002, 0.010], 0.016)
        assert (timing.median_ms, timing.worst_ms) == (2.0, 10.0)
        assert timing.headroom == 8.0


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return python(FOLDER / "app.py", *arguments, timeout=120)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="inprocess"), pytest.param(("--driver",), id="driver")],
)
def test_the_command_reports_in_json_and_traces_all_processes(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    done = command(
        "--json", "--seconds", 3, "--held-out", 2, "--trace", trace, *options
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(trace.read_bytes())["traceEvents"]
    traced = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert traced == {"app", *(["asyncnn serve"] if options else [])}
    report = json.loads(done.stdout)
    assert report["line"]["timing"]["headroom"] > 1
    assert report["line"]["keys"]
    camera = report["camera"]
    assert 0 < camera["read"] == 90 - camera["skipped"]
    assert report["held_out"]["error_rate"] < 0.02


def test_the_command_plays_a_wav_file(tmp_path: Path) -> None:
    path = tmp_path / "line.wav"
    write = [sys.executable, FOLDER / "recordings.py", path, "--seconds", "4"]
    subprocess.run(write, check=True, timeout=60)
    expected = [key for key, _, _ in json.loads(path.with_suffix(".json").read_text())]
    done = command("--headless", "--wav", path, "--no-camera", "--held-out", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines if "pressed" in line] == expected
    assert any("headroom" in line for line in lines)
