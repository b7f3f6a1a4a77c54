import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asyncnn.tracing import Layer, Phase, Span, active, recording, recording_to, span
from asyncnn.tracing.active import FLUSH_SPANS, OpenTelemetrySink

CHILD = """
import os, sys, time
from asyncnn.tracing import Layer, Phase, active, join_recording
join_recording("driver")
now = time.monotonic_ns()
active.recorder.add("receive", Layer.IPC, Phase.EXECUTION, now, now + 2000)
if "die" in sys.argv:
    active.recorder.flush()
    os.kill(os.getpid(), 9)
"""


def events_in(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(path.read_bytes())
    assert trace.keys() == {"traceEvents", "displayTimeUnit"}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert event["ph"] in "MXbe"
        if event["ph"] == "M":
            continue
        assert event.keys() >= {"name", "cat", "tid", "ts"}
        assert ("dur" in event) is (event["ph"] == "X")
        assert ("id2" in event) is (event["ph"] in "be")
    return trace["traceEvents"]


def test_nothing_records_unless_it_is_asked_for() -> None:
    assert active.recorder is None
    spans: list[Span] = []
    with recording_to(spans.extend) as recorder:
        assert active.recorder is recorder
        recorder.add("queue", Layer.DRIVER, Phase.EXECUTION, 10, 20)
    assert active.recorder is None
    assert [span.label for span in spans] == ["[NN_LD_PE]queue"]


def test_a_process_records_once_at_a_time() -> None:
    with (
        recording_to(list),
        pytest.raises(RuntimeError, match="already"),
        recording_to(list),
    ):
        pass


def test_spans_of_many_threads_all_arrive() -> None:
    spans: list[Span] = []
    count = FLUSH_SPANS
    with recording_to(spans.extend) as recorder:

        def work() -> None:
            for k in range(count):
                recorder.add("execute", Layer.CPU, Phase.COMPUTATION, k, k + 1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(spans) >= 3 * FLUSH_SPANS  # handed on meanwhile
    assert len(spans) == 4 * count
    assert set(Counter(span.thread for span in spans).values()) == {count}


@pytest.mark.parametrize("name", ["trace.json", "trace[1]*.json"])
def test_a_trace_has_groups_on_rows_and_other_spans_on_threads(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    with recording(path, "application") as recorder:
        group = recorder.new_group()
        recorder.add("queue", Layer.DRIVER, Phase.EXECUTION, 3000, 5000, group)
        recorder.add(
            "prepare", Layer.CPU, Phase.PREPARATION, 1000, 4000, 0, "GENERAL_FAILURE"
        )
    named, prepare, begin, end = events_in(path)
    assert named["args"] == {"name": "application"}
    assert prepare["ph"] == "X"
    assert (prepare["ts"], prepare["dur"]) == (1.0, 3.0)
    assert prepare["args"] == {"failure": "GENERAL_FAILURE"}
    assert (begin["ph"], end["ph"]) == ("b", "e")
    assert (begin["ts"], end["ts"]) == (3.0, 5.0)
    assert begin["id2"] == end["id2"]
    assert begin["name"] == "[NN_LD_PE]queue"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("end", ["exit", "die"])
def test_processes_that_are_started_meanwhile_are_on_the_same_timeline(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "trace.json"
    before = time.monotonic_ns() / 1000
    with recording(path, "application"):
        child = subprocess.run([sys.executable, "-c", CHILD, end], check=False)
        assert (child.returncode == 0) is (end == "exit")
    after = time.monotonic_ns() / 1000
    assert active.VARIABLE not in os.environ
    events = events_in(path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(names.values()) == ["application", "driver"]
    (received,) = [event for event in events if event["ph"] == "X"]
    assert names[received["pid"]] == "driver"
    assert before < received["ts"] < after


def test_a_line_that_a_killed_process_left_unfinished_is_skipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.json"
    with recording(path, "application"):
        (tmp_path / "trace.json.1.part").write_bytes(b'[]\n[{"ph": "X", "na')
    assert [event["ph"] for event in events_in(path)] == ["M"]


def test_an_old_trace_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with recording(path, "application"), span("work", Layer.OTHER, Phase.OVERALL):
        assert path.read_text() == "old"
    assert "traceEvents" in path.read_text()
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_trace_that_does_not_end_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    code = (
        "import os, sys\n"
        "from asyncnn.tracing import recording\n"
        "with recording(sys.argv[1], 'killed'):\n"
        "    os._exit(3)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert ran.returncode == 3
    assert path.read_text() == "old"


def test_a_disk_that_fills_up_fails_the_trace_and_not_what_is_traced(
    tmp_path: Path,
) -> None:
    """The most that a file may have stands for the disk."""
    path = tmp_path / "trace.json"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    done = 0

    def work() -> None:
        nonlocal done
        with recording(path, "application"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (FLUSH_SPANS, before[1]))
            for _ in range(2 * FLUSH_SPANS + 1):
                with span("work", Layer.OTHER, Phase.OVERALL):
                    done += 1

    try:
        with pytest.raises(OSError, match="File too large") as caught:
            work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done == 2 * FLUSH_SPANS + 1
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["trace.json"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        recording(tmp_path / "no" / "trace.json", "application"),
    ):
        pytest.fail("was not refused")


def test_spans_go_to_opentelemetry_with_times_of_the_wall_clock() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = time.monotonic_ns()
    with recording_to(OpenTelemetrySink(provider.get_tracer("test"))) as recorder:
        recorder.add("execute", Layer.CPU, Phase.COMPUTATION, now, now + 5000)
        recorder.add("reply", Layer.IPC, Phase.RESULTS, now, now, 7, "INVALID_ARGUMENT")
    execute, reply = exporter.get_finished_spans()
    assert execute.start_time is not None
    assert execute.end_time == execute.start_time + 5000
    assert abs(execute.start_time - time.time_ns()) < 10**10
    assert execute.status.is_unset
    assert not reply.status.is_ok
    assert reply.status.description == "INVALID_ARGUMENT"
    assert reply.attributes is not None
    assert reply.attributes["asyncnn.layer"] == "IPC"
