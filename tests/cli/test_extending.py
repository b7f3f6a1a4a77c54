"""Commands that are given extensions by name."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import TensorInfo
from asyncnn.service.process import driver_process
from asyncnn.tools.samples import Tolerance, compare, random_sample
from tests.cli.conftest import Ran
from tests.extensions import vendor as declared
from tests.extensions.installing import install
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE, RGB, vendor

Command = Callable[..., Ran]
PLACE = f"{declared.__name__}:vendor"
X = np.array([3 + 4j, 0, -1j], np.complex64)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """``y = |x|``, and pixels that pass by."""
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (3,))
    builder.input("pixels", RGB, (2,))
    builder.output(builder.operation(MAGNITUDE, [x], Operand(F32, (3,))), "y")
    asyncnn.save(builder.build(), tmp_path / "magnitude.asyncnn")
    return tmp_path / "magnitude.asyncnn"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    pixels = np.zeros(2, np.dtype("V3"))
    arrays = {"input_0.x": X, "input_0.pixels": pixels, "output_0": np.abs(X)}
    np.savez(tmp_path / "samples.npz", **arrays)
    return tmp_path / "samples.npz"


class TestRun:
    """``asyncnn run``."""

    def test_a_model_runs_with_an_extension_by_its_place(
        self, asyncnn_command: Command, model: Path, samples: Path
    ) -> None:
        options = ("--input", samples, "--check", samples)
        ran = asyncnn_command("run", model, "--extension", PLACE, *options)
        assert ran.status == 0, ran.err
        assert "all within tolerance" in ran.out

    def test_a_model_runs_with_an_extension_that_is_installed(
        self,
        asyncnn_command: Command,
        model: Path,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        install(monkeypatch, tmp_path / "site")
        ran = asyncnn_command("run", model)
        assert ran.status == 0, ran.err

    def test_a_model_runs_in_a_driver_that_has_the_extension(
        self, asyncnn_command: Command, model: Path, samples: Path
    ) -> None:
        with driver_process(extensions=[PLACE]) as driver:
            options = ("--extension", PLACE, "--input", samples, "--check", samples)
            ran = asyncnn_command("run", model, "--socket", driver.path, *options)
        assert ran.status == 0, ran.err

    def test_an_extension_that_is_not_known_is_asked_for(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("run", model)
        assert ran.status == 2
        assert "com.example.vendor/TENSOR_COMPLEX64" in ran.err
        assert "--extension" in ran.err

    def test_what_differs_is_found_beyond_operations_of_an_extension(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        builder = ModelBuilder()
        x = builder.input("x", COMPLEX, (3,))
        y = builder.operation(MAGNITUDE, [x], Operand(F32, (3,)))
        relu = asyncnn.OperationType.RELU
        builder.output(builder.operation(relu, [y], Operand(F32, (3,))), "y")
        asyncnn.save(builder.build(), tmp_path / "model")
        np.savez(
            tmp_path / "samples.npz",
            input_0=X,
            output_0=-np.abs(X),
            pre_relu_0=np.abs(X),
        )
        options = ("--input", tmp_path / "samples.npz", "--extension", PLACE)
        check = ("--check", tmp_path / "samples.npz")
        ran = asyncnn_command("run", tmp_path / "model", *options, *check)
        assert ran.status == 1
        assert "first differing operation: 1 (RELU)" in ran.out


class TestExplain:
    """``asyncnn run --explain``."""

    def test_operations_are_shown_by_name(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("run", model, "--explain", "--json", "--extension", PLACE)
        assert ran.status == 0, ran.err
        (operation,) = json.loads(ran.out)["operations"]
        assert operation["type"] == "com.example.vendor/MAGNITUDE"
        assert operation["cause"] is None

    def test_an_extension_that_is_not_there_is_the_reason(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("run", model, "--explain", "--json")
        assert ran.status == 1
        (operation,) = json.loads(ran.out)["operations"]
        assert operation["type"] == "com.example.vendor/MAGNITUDE"
        assert operation["main_type"] == "com.example.vendor/TENSOR_COMPLEX64"
        assert operation["cause"] == "extension"
        assert "does not have the extension com.example.vendor" in operation["reason"]

    @pytest.mark.parametrize("has_extension", [True, False])
    def test_a_driver_is_asked_for_what_is_not_known_here(
        self, asyncnn_command: Command, model: Path, has_extension: bool
    ) -> None:
        with driver_process(extensions=[PLACE] if has_extension else []) as driver:
            ran = asyncnn_command("run", model, "--explain", "--socket", driver.path)
        assert ran.status == (0 if has_extension else 1), ran.err


class TestGraph:
    """``asyncnn graph``."""

    def test_operations_and_operands_are_drawn_by_name(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("graph", model, "--extension", PLACE)
        assert ran.status == 0, ran.err
        assert "com.example.vendor/MAGNITUDE" in ran.out
        assert "on reference" in ran.out
        assert "com.example.vendor/TENSOR_RGB 2" in ran.out

    def test_what_is_missing_is_marked(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("graph", model)
        assert ran.status == 0
        assert r"com.example.vendor/MAGNITUDE\nnot supported: extension" in ran.out


def test_a_conformance_run_has_extensions(
    asyncnn_command: Command,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, tmp_path / "site")
    ran = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", "--filter", "floor*"),
        *("--transport", "inprocess,remote", "--extension", vendor.name),
        *("--workers", 1),
    )
    assert ran.status == 0, ran.out + ran.err


@pytest.mark.parametrize(
    "command",
    [("run",), ("run", "--explain"), ("graph",), ("conformance",), ("serve",)],
)
def test_an_extension_that_does_not_exist_is_an_error(
    asyncnn_command: Command, model: Path, command: tuple[str, ...]
) -> None:
    subject = {
        "serve": ("--socket", model.parent / "s"),
        "conformance": (model.parent,),
    }
    arguments = subject.get(command[0], (model,))
    ran = asyncnn_command(*command, *arguments, "--extension", "no.such:thing")
    assert ran.status == 2
    assert "no.such:thing" in ran.err


OPAQUE = np.array([b"abc", b"def"], "V3")


@pytest.mark.parametrize(
    ("actual", "expected", "differing"),
    [
        (X, X * (1 + 1e-7), 0),
        (X, X.conj(), 2),
        (OPAQUE, OPAQUE.copy(), 0),
        (OPAQUE, OPAQUE[::-1], 2),
    ],
)
def test_elements_of_extensions_are_compared(
    actual: Array, expected: Array, differing: int
) -> None:
    result = compare("y", actual, expected.astype(actual.dtype), Tolerance())
    assert result.differing == differing
    assert result.passed == (not differing)


@pytest.mark.parametrize("type_", [COMPLEX, RGB])
def test_random_inputs_have_elements_of_the_extension(type_: int) -> None:
    (array,) = random_sample([TensorInfo("x", type_, (2, 0))]).values()
    assert array.dtype == type_.dtype
    assert array.shape == (2, 1)
    assert array.tobytes().strip(b"\0")
