"""Files whose inner graphs, functions and names ask for much time or memory."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from tests.runtime.onnx.files import imported, model, parsed, tensor, written

node = helper.make_node
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
YES = {"yes": np.bool_(True)}


def branch_with_much_beside_it(nodes: int) -> Any:
    """An If whose branch that is not taken has many nodes."""
    taken = helper.make_graph(
        [node("Abs", ["s"], ["a"])], "taken", [], [tensor("a", (2,))]
    )
    names = [f"b{index}" for index in range(nodes + 1)]
    chain = [node("Abs", ["s"], names[:1])]
    chain += [node("Abs", [name], [after]) for name, after in pairwise(names)]
    other = helper.make_graph(chain, "other", [], [tensor(names[-1], (2,))])
    return node("If", ["yes"], ["t"], then_branch=taken, else_branch=other)


def loop(
    inner: Sequence[Any],
    count: int,
    weights: Mapping[str, Any],
    initializer: Sequence[Any] = (),
) -> Any:
    """A loop of ``count`` steps whose body has ``t`` from ``s``."""
    ends = "int64 i, bool go, float[2] s => bool on, float[2] t"
    body = parsed(ends, "on = Identity(go)")
    body.node.extend(inner)
    body.initializer.extend(initializer)
    turns = node("Loop", ["count", "", "x"], ["y"], body=body)
    given = {"count": np.int64(count), **weights}
    return model([turns], [tensor("x", (2,))], ["y"], given)


def calls(inner: Sequence[Any], count: int) -> Any:
    """Many calls of a function that has ``t`` from ``s``."""
    function = helper.make_function("own", "F", ["s", "yes"], ["t"], inner, OPSETS)
    names = ["x", *(f"y{index}" for index in range(count))]
    return model(
        [
            node("F", [name, "yes"], [after], domain="own")
            for name, after in pairwise(names)
        ],
        [tensor("x", (2,))],
        names[-1:],
        YES,
        functions=[function],
    )


class TestNodesThatAreLookedAtAgainAndAgain:
    """Those of a branch are looked at, taken or not."""

    def test_by_calls_of_a_function(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("asyncnn.runtime.allowance.MAX_VISITS", 8000)
        imported(calls([branch_with_much_beside_it(100)], 10))
        with pytest.raises(InvalidArgumentError, match="nodes of inner graphs"):
            imported(calls([branch_with_much_beside_it(100)], 80))


def test_weights_that_are_put_in_place_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncnn.runtime.allowance.MAX_COPIED_BYTES", 1 << 16)
    weight = numpy_helper.from_array(np.ones((512, 2), np.float32), "w")
    inner = [
        node("Constant", [], ["v"], value=weight),
        node("ReduceMax", ["v"], ["m"], axes=[0], keepdims=0),
        node("Add", ["s", "m"], ["t"]),
    ]
    imported(calls(inner, 10))
    with pytest.raises(InvalidArgumentError, match="inner graphs of more than"):
        imported(calls(inner, 20))


@pytest.mark.timeout(30)
def test_many_names_cost_the_steps_of_a_loop_nothing() -> None:
    weights = {f"w{index}": np.float32(1) for index in range(30_000)}
    named = imported(loop([node("Abs", ["s"], ["t"])], 2500, weights))
    assert len(named.model.main.operations) == 1


@pytest.mark.timeout(30)
def test_many_inputs_of_bytes_are_read_in_little_time() -> None:
    names = [f"x{index}" for index in range(15_000)]
    proto = model(
        [
            *(node("Cast", [name], [f"r{name}"], to=1) for name in names[1:]),
            node("DequantizeLinear", ["x0", "scale", "zero"], ["y"]),
        ],
        [tensor(name, (2,), np.uint8) for name in names],
        ["y"],
        {"scale": np.float32(0.5), "zero": np.uint8(3)},
    )
    named = imported(proto)
    operand = named.model.main.operands[named.model.main.input_indexes[0]]
    assert (operand.scale, operand.zero_point) == (0.5, 3)


@pytest.mark.parametrize("location", ["a" * 300, "a/" * 3000, "loop/x"])
def test_a_file_beside_it_whose_name_the_system_refuses(
    location: str, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    proto = written(
        "float[2] x => float[] y", "y = Add(x, w)", {"w": np.float32([1, 2])}
    )
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidArgumentError):
        asyncnn.load(path)
