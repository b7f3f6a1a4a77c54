"""What must not happen is found, made small and kept; every target is tried."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model_file import load
from asyncnn.service.recording import read_record
from asyncnn.tools.fuzz import mutators, twins
from asyncnn.tools.fuzz.hunting import Hunted, hunt
from asyncnn.tools.fuzz.targets import TARGETS
from asyncnn.tools.fuzz.worker import WorkOrder
from tests.cli.conftest import Ran, asyncnn_command
from tests.tools.fuzz import planted
from tests.tools.fuzz.originals import GENERATED, files
from tests.tools.stress.lying import MOST, NAME, install_lying
from tests.waits import until

Command = Callable[..., Ran]
PLANTED = "tests.tools.fuzz.planted"
__all__ = ["asyncnn_command"]


def workers_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def hunted_by(target: str, folder: Path, **more: Any) -> Hunted:
    order = {"seconds": 0.1, **more}
    return hunt(WorkOrder(target=target, **order), folder)


@pytest.mark.parametrize(
    ("target", "kind", "problem", "size"),
    [
        pytest.param(
            *("crashing", "crash", "SIGSEGV", 1), marks=pytest.mark.exhaustive
        ),
        ("careless", "error", "IndexError: list index out of range", 1),
        pytest.param(
            *("chatty", "error", "not one line", 1), marks=pytest.mark.exhaustive
        ),
        pytest.param(
            *("failing_to_allocate", "error", "MemoryError on the way", 1),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("hungry", "error", "MiB of memory", None), marks=pytest.mark.exhaustive
        ),
        pytest.param(*("hanging", "hang", "5 s", None), marks=pytest.mark.exhaustive),
        pytest.param(*("stuck", "hang", "5 s", None), marks=pytest.mark.exhaustive),
    ],
)
def test_a_planted_fault_is_found_and_made_small(
    tmp_path: Path, target: str, kind: str, problem: str, size: int | None
) -> None:
    hunted = hunted_by(target, tmp_path, targets=PLANTED)
    assert hunted.executions >= 2
    finding = hunted.findings[0]
    assert finding.kind == kind
    assert problem in finding.problem
    kept = Path(finding.file).read_bytes()
    assert planted.MARK in kept
    assert size is None or len(kept) == size
    assert finding.command == f"asyncnn fuzz {target} --input {finding.file}"


@pytest.mark.exhaustive
def test_a_driver_that_lies_leaves_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_lying(monkeypatch, tmp_path)
    (finding,) = hunted_by("driver", tmp_path, device=NAME).findings
    assert "wrong result" in finding.problem
    wrong = read_record(finding.recording).calls[-1]
    assert np.frombuffer(wrong.details.inputs[0] or b"", np.float32)[0] > MOST


@pytest.mark.exhaustive
def test_a_place_that_is_known_is_told_once(tmp_path: Path) -> None:
    hunted = hunted_by("careless", tmp_path, targets=PLANTED, seconds=1.0)
    assert len(hunted.findings) == 1
    assert hunted.executions > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(tmp_path: Path, target: str) -> None:
    hunted = hunted_by(target, tmp_path, seconds=0.2)
    assert not hunted.problem
    assert hunted.executions
    assert hunted.findings == ()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", ["tflite", "onnx", "container"])
def test_more_originals_are_files_of_a_folder(
    shared: Path, tmp_path: Path, target: str
) -> None:
    folder = tmp_path / "originals"
    folder.mkdir()
    for name, data in files(shared / "models"):
        (folder / name).write_bytes(data)
    hunted = hunted_by(target, tmp_path, seconds=5.0, corpus=str(folder))
    assert hunted.findings == ()


@pytest.mark.exhaustive
async def test_a_worker_that_hangs_ends_with_who_watches_it(tmp_path: Path) -> None:
    order = f"WorkOrder(target='stuck', seconds=60.0, targets={PLANTED!r})"
    code = f"""
from pathlib import Path
from asyncnn.tools.fuzz.hunting import hunt
from asyncnn.tools.fuzz.worker import WorkOrder
hunt({order}, Path({str(tmp_path)!r}))
"""
    watcher = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await until(lambda: workers_of(watcher.pid), 120)
    (worker,) = workers_of(watcher.pid)
    watcher.kill()
    await watcher.wait()
    await until(lambda: not Path(f"/proc/{worker}").exists())


def test_more_packets_than_a_socket_holds_block_nobody() -> None:
    with TARGETS["frames"].opened("") as run:
        run(bytes(2000))


class TestCommand:
    def test_it_reports(self, tmp_path: Path, asyncnn_command: Command) -> None:
        report = tmp_path / "report.json"
        options = ["--seconds", 0.2, "--no-guide", "--json", report]
        ran = asyncnn_command("fuzz", "packets", *options)
        assert ran.status == 0
        assert "packets" in ran.out
        assert "not guided: 0 findings" in ran.out
        (hunted,) = msgspec.json.decode(report.read_bytes(), type=list[Hunted])
        assert hunted.executions > 100

    def test_it_tries_one_file(self, tmp_path: Path, asyncnn_command: Command) -> None:
        file = tmp_path / "input"
        file.write_bytes(b"anything")
        ran = asyncnn_command("fuzz", "packets", "--input", file)
        assert (ran.status, ran.out) == (0, "packets: answered\n")

    def test_it_lists(self, asyncnn_command: Command) -> None:
        listed = asyncnn_command("fuzz", "--list").out.splitlines()
        assert [line.split()[0] for line in listed] == [*TARGETS]

    @pytest.mark.parametrize(
        "words",
        [
            *(["nothing"], ["all", "--input", "x"], ["ring", "--input", "x"]),
            ["driver,tflite", "--device", "reference"],
        ],
    )
    def test_what_cannot_be_is_refused(
        self, asyncnn_command: Command, words: list[str]
    ) -> None:
        ran = asyncnn_command("fuzz", *words)
        assert ran.status == 2
        assert ran.err.count("\n") == 1


class TestMutators:
    def test_every_kind_of_file_is_among_the_originals(self) -> None:
        kinds = {kind_of(memoryview(data)) for _, data in files(None)}
        assert kinds == set(FileKind)

    @pytest.mark.parametrize("name", GENERATED)
    def test_originals_load(self, name: str) -> None:
        load(GENERATED[name]())

    @pytest.mark.parametrize("name", GENERATED)
    def test_damage_is_the_same_for_a_seed_and_gets_past_checks(
        self, name: str
    ) -> None:
        data = GENERATED[name]()
        mutants = [mutators.damaged_file(data, Random(seed)) for seed in range(100)]
        again = [mutators.damaged_file(data, Random(seed)) for seed in range(100)]
        assert mutants == again
        assert len(set(mutants)) > 80
        assert sum(mutant[:8] == data[:8] for mutant in mutants) > 50


def test_rings_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    twins.same_ring(bytes(range(256)))
    monkeypatch.setattr(twins.PythonRing, "available_to_write", lambda _: 3)
    with pytest.raises(twins.TwinsDifferError, match="step 1: C says"):
        twins.same_ring(bytes((4, 0, 0, 0, 5, 0, 0, 0)))
