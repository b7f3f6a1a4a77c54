import pytest

from asyncnn.cli.explaining import print_explanation
from asyncnn.runtime.explain import Cause, Explanation, OperationReport


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
