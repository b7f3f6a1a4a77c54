from pathlib import Path

import pytest

from asyncnn.hal.operations import SIGNATURES
from docs import operations_page
from docs.operations_page import main, render


@pytest.fixture(scope="module")
def page(shared: Path) -> str:
    return render(shared / "vts")


def test_the_committed_page_is_up_to_date(shared: Path) -> None:
    assert main(["--check", "--vectors", str(shared / "vts")]) == 0


def section(page: str, name: str) -> list[str]:
    """Lines between the heading of an operation and the next one."""
    _, _, rest = page.partition(f"\n## {name}\n")
    return rest.partition("\n## ")[0].splitlines()


@pytest.mark.parametrize("signature", SIGNATURES.values(), ids=lambda s: s.type.name)
def test_each_operation_has_a_section_and_a_link_to_it(signature, page: str) -> None:
    name = signature.type.name
    assert f"[{name}](#{name.lower()})" in page
    lines = section(page, name)
    assert lines[1].startswith(f"Code {int(signature.type)}, since ")
    tested = [line for line in lines if line.endswith(("| vectors |", "| derived |"))]
    assert len(tested) == len(signature.rows)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("DIV", "| `TENSOR_INT32` | 1.3 | derived |"),
        (
            "CONV_2D",
            "| `TENSOR_QUANT8_ASYMM` | `TENSOR_QUANT8_SYMM_PER_CHANNEL` "
            "| `TENSOR_INT32` | 1.2 | vectors |",
        ),
        ("CONV_2D", "With 10, 11 or 13 inputs:"),
        ("CONV_2D", "| 7 | `nchw` | `BOOL` | since 1.2 |"),
        ("SVDF", "| 3 | `bias` | `T` | may be omitted |"),
        ("CONCATENATION", "| 0 | `input` | `T` | rank 1 to 4; 1 or more of them |"),
        ("RNN", "2 outputs: `state_out` `T`, `output` `T`."),
        (
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            "2 outputs, since 1.3: `output` `T`, `state_out` `T`.",
        ),
        (
            "LOGISTIC",
            "1 output: `output` `T` (`TENSOR_QUANT8_ASYMM`: scale 0.00390625, "
            "zero point 0; `TENSOR_QUANT8_ASYMM_SIGNED`: scale 0.00390625, "
            "zero point -128).",
        ),
        (
            "WHILE",
            "Code 97, since 1.3. Computed by `asyncnn.engine.control_flow`, tested in "
            "`tests/engine/test_control_flow.py`.",
        ),
        (
            "ADD",
            "Code 0, since 1.0. Computed by `asyncnn.kernels.arithmetic`, "
            "tested in `tests/kernels/elementwise/test_arithmetic.py`.",
        ),
    ],
)
def test_sections_say_what_the_table_says(name: str, line: str, page: str) -> None:
    assert line in section(page, name)


def test_a_page_that_differs_is_reported_and_rewritten(
    shared: Path,
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "operations.md"
    monkeypatch.setattr(operations_page, "PAGE", copy)
    vectors = ["--vectors", str(shared / "vts")]
    assert main(["--check", *vectors]) == 1
    assert "run `make docs`" in capsys.readouterr().err
    assert not copy.exists()
    assert main(vectors) == 0
    assert copy.read_text() == page
    assert main(["--check", *vectors]) == 0


def test_missing_vectors_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--vectors", str(tmp_path / "nowhere")])
