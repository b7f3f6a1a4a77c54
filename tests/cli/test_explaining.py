import pytest

from asyncnn.cli.explaining import print_explanation
from asyncnn.runtime.explain import Cause, Explanation, OperationReport


def test_each_operation_has_a_line_with_its_reason(
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
    assert ["1", "IF", "", "", "no, subgraph: it runs 2"] in lines
    assert ["0 of 1", "FLOOR", "", "", "no, kernel: none"] in lines
    assert out.splitlines()[-1] == "reference supports 1 of 3 operations"


def test_a_rule_that_the_model_breaks_comes_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_explanation(Explanation("reference", "no operand 7 [M8]", ()))
    assert capsys.readouterr().out.startswith("the model is refused: no operand 7 [M8]")
