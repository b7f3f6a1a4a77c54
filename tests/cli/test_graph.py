import json
from collections.abc import Callable
from pathlib import Path

import pytest

import asyncnn
from asyncnn import kernels
from asyncnn.devices import support
from asyncnn.hal.types import OperationType
from tests.cli.conftest import Ran
from tests.networks import chain

Command = Callable[..., Ran]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.asyncnn"
    asyncnn.save(chain(2, 4), path)
    return path


@pytest.fixture
def without_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernel of ADD away from devices."""
    rest = kernels.supported_operations() - {OperationType.ADD}
    monkeypatch.setattr(support.kernels, "is_supported", rest.__contains__)


def test_a_model_is_drawn(asyncnn_command: Command, model: Path) -> None:
    ran = asyncnn_command("graph", model)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("digraph model {")
    assert ran.out.endswith("}\n")
    assert r'label="1: ADD\nreference"' in ran.out


def test_a_tflite_model_is_drawn(asyncnn_command: Command, shared: Path) -> None:
    ran = asyncnn_command("graph", shared / "models" / "hello_world_int8.tflite")
    assert ran.status == 0, ran.err
    assert "FULLY_CONNECTED" in ran.out


def test_what_is_not_supported_is_marked(
    asyncnn_command: Command, model: Path, without_add: None
) -> None:
    ran = asyncnn_command("graph", model)
    assert ran.status == 0
    assert "not supported: kernel" in ran.out


def test_a_model_is_explained(asyncnn_command: Command, model: Path) -> None:
    ran = asyncnn_command("run", model, "--explain")
    assert ran.status == 0, ran.err
    assert ran.out.splitlines()[-1] == "reference supports 2 of 2 operations"


def test_a_model_that_is_not_supported_is_explained(
    asyncnn_command: Command, model: Path, without_add: None
) -> None:
    ran = asyncnn_command("run", model, "--explain", "--json")
    assert ran.status == 1
    explanation = json.loads(ran.out)
    assert {o["cause"] for o in explanation["operations"]} == {"kernel"}
    assert "ADD" in explanation["operations"][0]["reason"]
