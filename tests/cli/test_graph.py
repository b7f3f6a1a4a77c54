"""What a device makes of a model, as a table and as Graphviz text."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import asyncnn
from asyncnn import kernels
from asyncnn.cli.graph import print_explanation
from asyncnn.devices import support
from asyncnn.devices.device_buffers import HAL_HINTS
from asyncnn.hal.types import OperationType
from asyncnn.runtime.explain import Cause, Explanation, OperationReport
from tests.cli.conftest import Ran
from tests.networks import chain
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, T, write

Command = Callable[..., Ran]


def test_each_operation_has_a_line_and_what_is_not_supported_a_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    reports = (
        OperationReport(None, 0, "ADD", "TENSOR_FLOAT32", "V1_0"),
        OperationReport(None, 1, "IF", cause=Cause.SUBGRAPH, reason="it runs 2"),
        OperationReport(1, 0, "FLOOR", cause=Cause.KERNEL, reason="none"),
    )
    print_explanation(Explanation("reference", "", reports))
    out = capsys.readouterr().out
    lines = [[cell.strip() for cell in x.split("│")[1:-1]] for x in out.splitlines()]
    assert ["0", "ADD", "TENSOR_FLOAT32", "V1_0", "yes"] in lines
    assert ["1", "IF", "", "", "no, subgraph"] in lines
    assert ["0 of 1", "FLOOR", "", "", "no, kernel"] in lines
    assert out.splitlines()[-3:] == [
        "operation 1: it runs 2",
        "operation 0 of referenced subgraph 1: none",
        "reference supports 1 of 3 operations",
    ]


def test_names_of_extensions_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, tensor = "com.example.spectral/MAGNITUDE", "com.example.spectral/COMPLEX64"
    report = OperationReport(
        None, 0, name, tensor, "V1_2", cause=Cause.EXTENSION, reason="it is missing"
    )
    print_explanation(Explanation("reference", "", (report,)))
    out = capsys.readouterr().out
    assert out.count("com.example.spectral/ ") == 2
    for word in (
        "MAGNITUDE",
        "COMPLEX64",
        "no, extension",
        "operation 0: it is missing",
    ):
        assert word in out


def test_a_rule_that_the_model_breaks_comes_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_explanation(Explanation("reference", "no operand 7 [M8]", ()))
    assert capsys.readouterr().out.startswith("the model is refused: no operand 7 [M8]")


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
    assert r'label="1: ADD\nsecond: TF32 1\nactivation=NONE"' in ran.out
    assert 'label="on reference";' in ran.out


def test_all_of_a_model_is_drawn_if_that_is_asked_for(
    asyncnn_command: Command, model: Path
) -> None:
    ran = asyncnn_command("graph", model, "--full")
    assert ran.status == 0, ran.err
    assert r'label="1: ADD\nreference"' in ran.out
    assert '"1: COPY TF32 1"' in ran.out


class TestFiles:
    """Graphs that are written to files, drawn by a ``dot`` of the test's own."""

    @pytest.fixture
    def graphviz(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[str], None]:
        """Return a function that makes a script the only command there is."""
        folder = tmp_path / "bin"
        folder.mkdir()
        monkeypatch.setenv("PATH", str(folder))

        def install(script: str) -> None:
            (folder / "dot").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "dot").chmod(0o755)

        return install

    @pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
    def test_graphviz_draws_a_model(
        self, asyncnn_command: Command, model: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "model.svg"
        ran = asyncnn_command("graph", model, "-o", path)
        assert (ran.status, ran.out, ran.err) == (0, "", "")
        drawn = ElementTree.parse(path).getroot()
        texts = [text for each in drawn.iter() if (text := (each.text or "").strip())]
        assert {"0: ADD", "1: ADD", "TF32 4", "on reference"} <= set(texts)

    @pytest.mark.parametrize("suffix", [".dot", ".gv"])
    def test_text_needs_no_graphviz(
        self,
        asyncnn_command: Command,
        model: Path,
        tmp_path: Path,
        suffix: str,
        graphviz: Callable[[str], None],
    ) -> None:
        path = tmp_path / f"model{suffix}"
        assert asyncnn_command("graph", model, "--output", path).status == 0
        assert path.read_text() == asyncnn_command("graph", model).out

    def test_where_it_is_missing_a_line_says_what_to_install(
        self, asyncnn_command: Command, graphviz: Callable[[str], None], tmp_path: Path
    ) -> None:
        path = tmp_path / "model.svg"
        ran = asyncnn_command("graph", "none.tflite", "-o", path)
        assert ran.status == 2
        assert ran.err.splitlines() == [
            f"asyncnn: {path} is drawn by Graphviz, which is not installed "
            "(apt install graphviz, brew install graphviz, or write a .dot file)"
        ]

    @pytest.mark.parametrize(
        ("script", "line"),
        [
            ("echo Error: no memory >&2; echo more >&2; exit 1", "Error: no memory"),
            ("exit 3", "status 3"),
            ("kill -9 $$", "status -9"),
        ],
    )
    def test_a_failure_is_one_line(
        self,
        asyncnn_command: Command,
        model: Path,
        graphviz: Callable[[str], None],
        script: str,
        line: str,
        tmp_path: Path,
    ) -> None:
        graphviz(script)
        path = tmp_path / "model.svg"
        ran = asyncnn_command("graph", model, "-o", path)
        assert ran.status == 2
        (said,) = ran.err.splitlines()
        assert said.startswith(f"asyncnn: Graphviz failed: {line} (")
        assert not path.exists()

    def test_it_may_not_take_forever(
        self,
        asyncnn_command: Command,
        model: Path,
        graphviz: Callable[[str], None],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr("asyncnn.cli.graph.GRAPHVIZ_TIMEOUT", 0.2)
        graphviz("exec /bin/sleep 60")
        for options, hint in (((), "(a .dot"), (("--full",), "(it is simpler without")):
            output = "-o", tmp_path / "model.svg"
            ran = asyncnn_command("graph", model, *output, *options)
            assert ran.status == 2
            (said,) = ran.err.splitlines()
            assert f"Graphviz has not drawn it in 0.2 seconds {hint}" in said

    def test_a_name_has_to_say_what_to_write(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        ran = asyncnn_command("graph", model, "-o", "model.pdf")
        assert ran.status == 2
        (said,) = ran.err.splitlines()
        assert "names end in .svg, or in .dot or .gv for text" in said


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
    assert ran.out.splitlines()[-3:] == [
        *(f"reference: the hint {hint} is {told}" for hint, told in HAL_HINTS.items()),
        "reference supports 2 of 2 operations",
    ]


def test_a_model_that_is_not_supported_is_explained(
    asyncnn_command: Command, model: Path, without_add: None
) -> None:
    ran = asyncnn_command("run", model, "--explain", "--json")
    assert ran.status == 1
    explanation = json.loads(ran.out)
    assert {o["cause"] for o in explanation["operations"]} == {"kernel"}
    assert "ADD" in explanation["operations"][0]["reason"]


def unsupported_file(folder: Path) -> Path:
    """Return a file of three operators, two of which cannot be imported."""
    a, b, c, d = f32(3), f32(3), f32(3), f32(3)
    operators = [
        Op("TwistTensor", [a], [b]),
        Op("ABS", [b], [c]),
        Op("UNIQUE", [c], [d, T(np.int32, (3,))]),
    ]
    path = folder / "model.tflite"
    path.write_bytes(write(operators, [a], [d]))
    return path


def test_what_cannot_be_imported_is_explained(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("run", unsupported_file(tmp_path), "--explain")
    assert ran.status == 1
    lines = ran.out.splitlines()
    assert lines[0].startswith("operator 0 (CUSTOM TwistTensor), which computes ")
    assert lines[1].startswith("operator 2 (UNIQUE), which computes ")
    assert lines[1].endswith(": the shape of its result depends on the data")
    assert lines[2:] == [
        "no model can be made of the file: it has 1 x CUSTOM TwistTensor, 1 x UNIQUE "
        "(give the one that has: --extension)"
    ]


def test_what_cannot_be_imported_is_explained_to_programs(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("run", unsupported_file(tmp_path), "--explain", "--json")
    assert ran.status == 1
    found = json.loads(ran.out)
    assert found["operations"] == []
    names = [each["name"] for each in found["unsupported"]]
    assert names == ["CUSTOM TwistTensor", "UNIQUE"]


def test_a_file_that_cannot_be_imported_does_not_run(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("run", unsupported_file(tmp_path))
    assert ran.status == 2
    assert "2 operators cannot be imported" in ran.err
