"""Models as Graphviz text that can be read: constants are told in their operations."""

import re
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.types import DataLocation, Operand, OperandLifeTime, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.dot import dot
from asyncnn.runtime.explain import Cause, Explanation, OperationReport
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.mutations.mutant import with_operand
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE
from tests.hal.validate.samples import extension_model, nested_model, q8_model
from tests.networks import addition, chain


def labels(text: str) -> dict[str, list[str]]:
    """Return the lines of the label of each node."""
    found = re.findall(r'^ *(\w+) \[(?:shape=box )?label="(.*?)"[\] ]', text, re.M)
    return {name: label.split("\\n") for name, label in found if name != "edge"}


def edges(text: str) -> list[tuple[str, str, str]]:
    """Return source, target and label of each edge."""
    found = re.findall(r'^ *(\w+) -> (\w+)(?: \[label="(.*?)"\])?;$', text, re.M)
    return [(source, target, label) for source, target, label in found]


def drawn(model: NamedModel) -> str:
    return dot(model, folded=True)


def convolutions(count: int) -> NamedModel:
    """Return a chain of convolutions, each with a filter, a bias and seven scalars."""
    builder = ModelBuilder()
    value = builder.input("image", F32, (1, 8, 8, 4))
    for _ in range(count):
        filter_ = builder.constant(np.zeros((4, 3, 3, 4), np.float32))
        bias = builder.constant(np.zeros(4, np.float32))
        scalars = [builder.scalar(n) for n in (1, 1, 1, 1, 1, 1, 3)]
        value = builder.operation(
            OperationType.CONV_2D,
            [value, filter_, bias, *scalars],
            Operand(F32, (1, 8, 8, 4)),
        )
    builder.output(value, "y")
    return builder.build()


def test_weights_have_types_and_shapes_and_scalars_their_names() -> None:
    text = drawn(convolutions(2))
    assert labels(text) == {
        "d0": ["image", "0: TF32 1x8x8x4"],
        "d8": ["y", "8: TF32 1x8x8x4"],
        **{
            f"n{n}": [
                f"{n}: CONV_2D",
                "filter: TF32 4x3x3x4",
                "bias: TF32 4",
                "padding_left=1, padding_right=1,",
                "padding_top=1, padding_bottom=1,",
                "stride_width=1, stride_height=1,",
                "activation=RELU6",
            ]
            for n in range(2)
        },
    }
    assert edges(text) == [
        ("d0", "n0", ""),
        ("n0", "n1", "TF32 1x8x8x4"),
        ("n1", "d8", ""),
    ]


def test_a_hundred_operations_have_a_node_each_and_lines_that_are_short() -> None:
    text = drawn(convolutions(100))
    nodes = labels(text)
    assert len(nodes) == 102
    assert len(edges(text)) == 101
    assert max(len(line) for lines in nodes.values() for line in lines) <= 40
    assert len(labels(dot(convolutions(100)))) > 400


def test_edges_of_several_say_which_input_they_are() -> None:
    text = drawn(addition(3))
    assert edges(text)[:2] == [("d0", "n0", "first"), ("d1", "n0", "second")]
    assert labels(text)["n0"] == ["0: ADD", "activation=NONE"]


def test_outputs_of_one_operation_are_numbered() -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (2, 4))
    axis, two = builder.scalar(1), builder.scalar(2)
    halves = builder.operation(
        OperationType.SPLIT, [x, axis, two], [Operand(F32, (2, 2))] * 2
    )
    none = builder.scalar(0)
    y = builder.operation(
        OperationType.SUB, [halves[1], halves[0], none], Operand(F32, (2, 2))
    )
    builder.output(y, "y")
    text = drawn(builder.build())
    assert labels(text)["n0"] == ["0: SPLIT", "axis=1, count=2"]
    assert edges(text)[1:3] == [
        ("n0", "n1", r"output 1\nTF32 2x2\nfirst"),
        ("n0", "n1", r"output 0\nTF32 2x2\nsecond"),
    ]


def test_an_output_that_is_read_again_has_a_node_and_an_edge() -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (2,))
    y = builder.operation(OperationType.ABS, [x], Operand(F32, (2,)))
    builder.output(y, "y")
    builder.output(builder.operation(OperationType.FLOOR, [y], Operand(F32, (2,))), "z")
    assert edges(drawn(builder.build())) == [
        ("d0", "n0", ""),
        ("n0", "d1", ""),
        ("n0", "n1", "TF32 2"),
        ("n1", "d2", ""),
    ]


def test_short_vectors_are_attributes_and_long_ones_are_weights() -> None:
    def reshaped(*shape: int) -> list[str]:
        builder = ModelBuilder()
        x = builder.input("x", F32, shape)
        new = builder.constant(np.int32(shape))
        y = builder.operation(OperationType.RESHAPE, [x, new], Operand(F32, shape))
        builder.output(y, "y")
        return labels(drawn(builder.build()))["n0"]

    assert reshaped(1, 2) == ["0: RESHAPE", "shape=[1, 2]"]
    assert reshaped(*[1] * 9) == ["0: RESHAPE", "shape: TI32 9"]


def test_many_weights_are_counted_by_shape() -> None:
    builder = ModelBuilder()
    parts = [builder.constant(np.zeros((2, n), np.float32)) for n in (3, 3, 3, 5, 5)]
    x = builder.input("x", F32, (2, 1))
    axis = builder.scalar(1)
    y = builder.operation(
        OperationType.CONCATENATION, [x, *parts, axis], Operand(F32, (2, 20))
    )
    builder.output(y, "y")
    assert labels(drawn(builder.build()))["n0"] == (
        ["0: CONCATENATION", "3 weights: TF32 2x3", "2 weights: TF32 2x5", "axis=1"]
    )


def test_a_device_that_has_all_is_said_once() -> None:
    reports = tuple(OperationReport(None, n, "ADD") for n in range(2))
    model = chain(2, 4)
    text = dot(model, Explanation("reference", "", reports), folded=True)
    assert text.count("reference") == 1
    assert 'label="on reference";' in text
    mixed = (reports[0], OperationReport(None, 1, "ADD", engine="kernels"))
    text = dot(model, Explanation("reference", "", mixed), folded=True)
    assert labels(text)["n0"][:2] == ["0: ADD", "reference"]
    assert labels(text)["n1"][:2] == ["1: ADD", "reference: kernels"]


def test_what_is_not_supported_is_marked() -> None:
    reports = (
        OperationReport(None, 0, "ADD"),
        OperationReport(None, 1, "ADD", cause=Cause.KERNEL, reason="none"),
    )
    text = dot(chain(2, 4), Explanation("reference", "", reports), folded=True)
    assert labels(text)["n1"][1] == "not supported: kernel"
    assert "fillcolor=salmon" in text


def test_operations_refer_to_their_subgraphs() -> None:
    text = dot(nested_model(), folded=True)
    assert "n0 -> s0_n0 [style=dashed lhead=cluster_0];" in text
    assert "s0_n0 -> s1_n0 [style=dashed lhead=cluster_1];" in text
    assert any("subgraph 0" in line for line in labels(text)["n0"])


def test_inputs_of_extensions_have_numbers() -> None:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (2,))
    builder.output(builder.operation(MAGNITUDE, [x], Operand(F32, (2,))), "y")
    assert labels(drawn(builder.build()))["n0"] == ["0: com.example.vendor/MAGNITUDE"]
    assert "com.example.vision" in dot(extension_model(), folded=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"type": 77, "lifetime": 99},
        {"lifetime": OperandLifeTime.NO_VALUE},
        {"location": DataLocation(0, 9_999, 6)},
        {"dimensions": ()},
    ],
)
@pytest.mark.parametrize("index", range(7))
def test_one_that_is_not_valid_is_drawn(index: int, changes: dict[str, object]) -> None:
    text = dot(with_operand(q8_model(), index, **changes), folded=True)
    assert {"n0", "n1", "n2"} <= labels(text).keys()


def test_every_operation_of_trained_models_is_drawn(shared: Path) -> None:
    for path in sorted((shared / "models").glob("*.tflite")):
        model = asyncnn.load(path)
        text = drawn(model)
        operations = {name for name in labels(text) if name.startswith("n")}
        assert len(operations) == len(model.model.main.operations)
        assert "input 1" not in text
