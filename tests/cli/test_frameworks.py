"""Devices that are made of others, on the command line."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import asyncnn
from tests.cli.conftest import Ran
from tests.runtime.framework.mixed import mixed

Command = Callable[..., Ran]
DEVICE = "framework:sample-float-fast,sample-quant"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.asyncnn"
    asyncnn.save(mixed((768, 768)), path)
    return path


def test_all_devices_are_listed(asyncnn_command: Command) -> None:
    ran = asyncnn_command("devices", "--json")
    devices = {each["name"]: each for each in json.loads(ran.out)}
    assert {*asyncnn.device_names()} == devices.keys()
    assert devices["sample-quant"]["performance"]["TENSOR_QUANT8_ASYMM"] == 0.5
    problems = {name: each["problem"] for name, each in devices.items()}
    if find_spec("ai_edge_litert") is None:
        assert "not installed" in problems.pop("accelerated")
    assert not any(problems.values())
    assert "sample-minimal" in asyncnn_command("devices").out


@pytest.mark.parametrize("is_built", [True, False])
def test_it_is_told_which_lanes_engines_have(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    monkeypatch.setattr("asyncnn.engine.job.LanePort", object if is_built else None)
    told = "native lanes" if is_built else "lanes of Python: nothing was compiled"
    assert f"alone runs on {told}" in asyncnn_command("devices").out


def test_a_device_that_is_broken_is_a_line(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncnn.runtime.framework import device_registry

    monkeypatch.setitem(device_registry.BUILT_IN, "sample-all", "asyncnn.logs:absent")
    ran = asyncnn_command("devices")
    assert ran.status == 0
    assert "device 'sample-all' of asyncnn cannot be used" in ran.out
    assert "sample-quant" in ran.out


def test_partitions_are_explained(asyncnn_command: Command, model: Path) -> None:
    ran = asyncnn_command("run", model, "--explain", "--device", DEVICE, "--json")
    assert ran.status == 0
    explanation = json.loads(ran.out)
    partitions = explanation["partitions"]
    assert [each["device"] for each in partitions][:2] == [
        "sample-float-fast",
        "sample-quant",
    ]
    assert all(each["expected_us"] > 0 for each in partitions)
    for operation in explanation["operations"]:
        assert operation["device"]
        assert operation["choice"]
    out = asyncnn_command("run", model, "--explain", "--device", DEVICE).out
    assert "partition 0: sample-float-fast, 3 operations, about " in out


def test_a_run_tells_who_has_computed_if_not_the_device_named(
    asyncnn_command: Command, model: Path
) -> None:
    named = ("run", model, "--device", "framework:sample-quant")
    assert " on reference" in asyncnn_command(*named).out
    (path,) = json.loads(asyncnn_command(*named, "--json").out)["paths"]
    assert "reference" in {step["device"] for step in path["route"]}
    assert path["fell_back"] is False


def test_partitions_are_drawn(asyncnn_command: Command, model: Path) -> None:
    out = asyncnn_command("graph", model, "--device", DEVICE).out
    colors = {
        device: line.partition("fillcolor=")[2].split()[0]
        for line in out.splitlines()
        for device in ("sample-float-fast", "sample-quant")
        if f"\\n{device}" in line and "fillcolor=" in line
    }
    assert len(set(colors.values())) == 2
    assert "0: sample-float-fast, 3 operations" in out


def test_a_model_runs_on_all_paths(asyncnn_command: Command, model: Path) -> None:
    paths = "async,sync,burst,fenced"
    ran = asyncnn_command("run", model, "--device", DEVICE, "--path", paths, "--json")
    assert ran.status == 0
    assert [each["path"] for each in json.loads(ran.out)["paths"]] == paths.split(",")


def test_the_environment_is_heard(
    asyncnn_command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCNN_PARTITION", "0")
    out = asyncnn_command("run", model, "--explain", "--device", DEVICE).out
    assert "partition 0: reference, 6 operations" in out
    monkeypatch.setenv("ASYNCNN_PARTITION", "x")
    ran = asyncnn_command("run", model, "--device", DEVICE)
    assert ran.status == 2
    assert "ASYNCNN_PARTITION" in ran.err


# What all vectors have on all paths, `tests.tools.conformance` has without a framework.
@pytest.mark.parametrize(
    ("folder", "pattern", "paths"),
    [
        pytest.param(
            *("V1_0", "relu*", "async,sync,burst,fenced"), marks=pytest.mark.exhaustive
        ),
        ("V1_3", "if_constant*", "async,sync,burst,fenced"),
        pytest.param("", "*", "async", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.timeout(1200)
def test_conformance_vectors_pass_on_a_framework(
    asyncnn_command: Command, shared: Path, folder: str, pattern: str, paths: str
) -> None:
    ran = asyncnn_command(
        *("conformance", shared / "vts" / folder, "--filter", pattern),
        *("--device", DEVICE, "--path", paths),
        *("--transport", "inprocess,remote" if folder else "inprocess"),
    )
    assert ran.status == 0, ran.out
    passed, failed = ran.out.splitlines()[-1].split()[0:3:2]
    assert int(passed) > 30
    assert int(failed) == 0


def test_mutants_are_for_the_reference_device(
    asyncnn_command: Command, shared: Path
) -> None:
    ran = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", "--device", DEVICE, "--mutate")
    )
    assert ran.status == 2
    unknown = asyncnn_command("conformance", shared / "vts", "--device", "nobody")
    assert unknown.status == 2
    assert "no device 'nobody'" in unknown.err
