import io
import re

import pytest

from asyncnn import logs
from asyncnn.hal.types import Model, Operand, OperandLifeTime, OperandType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.dot import dot, graph_dump
from asyncnn.runtime.explain import Cause, Explanation, OperationReport
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.mutations.mutant import with_operand
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE
from tests.hal.validate.samples import (
    extension_model,
    float_model,
    nested_model,
    q8_model,
)

HIGHLIGHT = "style=filled fillcolor=black fontcolor=white"


def named(model: Model, input_name: str = "x") -> NamedModel:
    return NamedModel.of(model, [input_name], ["y"])


def node(text: str, name: str) -> str:
    """The attributes of a node."""
    (line,) = re.findall(rf"^ *{name} \[(.*)\];$", text, re.MULTILINE)
    return line


def test_operands_show_lifetime_type_and_shape() -> None:
    text = dot(named(q8_model()))
    assert node(text, "d0") == rf'label="x\n0: TQ8A 2x3" {HIGHLIGHT}'
    assert node(text, "d1") == 'label="1: COPY TQ8A 2x3"'
    assert node(text, "d2") == 'label="2: COPY I32"'
    assert node(text, "d3") == 'label="3: TQ8A 2x3"'
    assert node(text, "d4") == 'label="4: REF TQ8A 2x3"'
    assert node(text, "d6") == rf'label="y\n6: TQ8A 2x3" {HIGHLIGHT}'


def test_open_shapes_and_omitted_operands_are_seen() -> None:
    assert "0: TF32 2x?" in node(dot(named(float_model(2, 0))), "d0")
    assert "0: TF32 any shape" in node(dot(named(float_model())), "d0")
    omitted = with_operand(q8_model(), 1, lifetime=OperandLifeTime.NO_VALUE)
    assert "1: NO TQ8A 2x3" in node(dot(named(omitted)), "d1")


def test_operations_are_boxes_with_numbered_edges() -> None:
    text = dot(named(q8_model()))
    assert node(text, "n0") == 'shape=box label="0: ADD"'
    edges = re.findall(r"\w+ -> \w+.*;", text)
    assert edges[:4] == [
        "d0 -> n0 [label=0];",
        "d1 -> n0 [label=1];",
        "d2 -> n0 [label=2];",
        "n0 -> d3;",
    ]
    assert edges[-2:] == ["d5 -> n2;", "n2 -> d6;"]


def test_support_is_marked() -> None:
    reports = (
        OperationReport(None, 0, "ADD"),
        OperationReport(None, 1, "ADD", cause=Cause.KERNEL, reason='no "kernel"'),
    )
    text = dot(named(q8_model()), Explanation("reference", "a rule", reports))
    assert node(text, "n0") == r'shape=box label="0: ADD\nreference"'
    unsupported = node(text, "n1")
    assert r"1: ADD\nnot supported: kernel" in unsupported
    assert r'tooltip="no \"kernel\""' in unsupported
    assert node(text, "n2") == 'shape=box label="2: RELU"'
    assert '  label="a rule";' in text


def test_referenced_subgraphs_are_clusters() -> None:
    text = dot(named(nested_model()))
    assert 'label="referenced subgraph 1";' in text
    assert node(text, "s1_n0") == 'shape=box label="0: FLOOR"'
    assert "d1 -> s0_n0 [style=dashed lhead=cluster_0];" in text
    assert "s0_d1 -> s1_n0 [style=dashed lhead=cluster_1];" in text


@pytest.mark.parametrize("name", ['a "b"', "back\\slash", "two\nlines"])
def test_names_are_quoted(name: str) -> None:
    text = dot(named(float_model(2), name))
    assert text.count('"') - text.count('\\"') == 2 * len(re.findall(r"label=\"", text))
    assert "\nlines" not in text


def test_types_of_extensions_are_shown_by_number_if_they_have_no_name() -> None:
    text = dot(named(extension_model()))
    assert "0: com.example.vision/1 2" in node(text, "d0")
    assert "0: com.example.vision/1" in node(text, "n0")


def test_types_of_extensions_are_shown_by_name() -> None:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (2,))
    builder.output(builder.operation(MAGNITUDE, [x], Operand(F32, (2,))), "y")
    text = dot(builder.build())
    assert "0: com.example.vendor/TENSOR_COMPLEX64 2" in node(text, "d0")
    assert "0: com.example.vendor/MAGNITUDE" in node(text, "n0")


@pytest.mark.parametrize("type_", OperandType)
def test_every_type_has_an_abbreviation(type_: OperandType) -> None:
    model = with_operand(float_model(2), 0, type=type_)
    is_short = type_ in (OperandType.OEM, OperandType.SUBGRAPH)
    assert (type_.name in node(dot(named(model)), "d0")) == is_short


class TestBareModels:
    """What speaks HAL has no names for inputs and outputs."""

    def test_is_drawn_as_it_is_with_names_but_for_these(self) -> None:
        text = dot(q8_model())
        assert node(text, "d0") == f'label="0: TQ8A 2x3" {HIGHLIGHT}'
        with_names = dot(named(q8_model()))
        for name in ("x", "y"):
            with_names = with_names.replace(rf'"{name}\n', '"')
        assert text == with_names

    def test_referenced_subgraphs_are_drawn(self) -> None:
        assert "subgraph cluster_0" in dot(nested_model())

    def test_types_of_extensions_that_nobody_knows_have_numbers(self) -> None:
        assert dot(extension_model())

    def test_one_that_is_not_valid_is_drawn(self) -> None:
        strange = with_operand(q8_model(), 1, type=77, lifetime=99)
        assert "d1 [" in dot(strange)


class TestGraphDump:
    def test_it_writes_to_a_stream(self, capsys: pytest.CaptureFixture[str]) -> None:
        model = float_model()
        stream = io.StringIO()
        graph_dump("two\nlines", model, stream)
        first, _, rest = stream.getvalue().partition("\n")
        assert (first, rest) == ("// two lines", dot(model))
        assert capsys.readouterr() == ("", "")

    def test_without_one_to_standard_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = float_model()
        graph_dump("model", model)
        assert capsys.readouterr() == ("", f"// model\n{dot(model)}")

    def test_or_to_the_log_that_is_on(
        self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        model = float_model()
        logs.MODEL.switch(True)
        try:
            graph_dump("model", model)
        finally:
            logs.MODEL.switch(False)
        assert caplog.messages == [f"// model\n{dot(model)}"]
        assert capsys.readouterr().err.count("digraph") <= 1
