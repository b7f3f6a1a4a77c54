"""ONNX Runtime never sees what reads files, other memory, or code."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from asyncnn import Device, load, open_device
from asyncnn.devices.onnxruntime.graph_rewriting import (
    Weight,
    make_inputs,
    rewritten,
    take_weights,
)
from asyncnn.devices.onnxruntime.region_checks import check_graph
from asyncnn.devices.onnxruntime.sessions import ELEMENT_TYPES
from tests.devices.onnxruntime.graphs import (
    FLOAT,
    graph,
    number_of,
    port,
    refused,
    region,
)

F32 = np.float32


def ends() -> Any:
    return [("x", FLOAT, [2])], [("y", FLOAT, [2])]


async def is_refused(content: bytes, words: str) -> None:
    model = region(content, [port(F32, 2)], [port(F32, 2)])
    async with open_device("onnxruntime") as device:
        await refused(device, model, words)


@pytest.mark.parametrize("location", ["/etc/passwd", "*/_ORT_MEM_ADDR_/*"])
@pytest.mark.parametrize("is_attribute", [False, True])
async def test_weights_are_in_the_graph(location: str, is_attribute: bool) -> None:
    weights = numpy_helper.from_array(np.zeros(2, F32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if is_attribute:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    content = graph(nodes, *ends(), [] if is_attribute else [weights])
    await is_refused(content, "weights that are not in it")


async def test_functions_may_have_names_of_operators(device: Device) -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    add = helper.make_node("Add", ["a", "b"], ["c"])
    body = helper.make_function("own", "STFT", ["a", "b"], ["c"], [add], opsets[:1])
    call = helper.make_node("STFT", ["x", "x"], ["y"], domain="own")
    content = graph([call], *ends(), functions=[body], opset_imports=opsets)
    made = region(content, [port(F32, 2)], [port(F32, 2)])
    (y,) = (await (await device.prepare(made)).run([F32([1, 2])])).values()
    np.testing.assert_array_equal(y, [2, 4])


@pytest.mark.parametrize(
    ("domain", "type_"),
    [("com.microsoft", "EPContext"), ("ai.onnx.contrib", "PyOp"), ("x", "Relu")],
)
@pytest.mark.parametrize("depth", [0, 1])
async def test_operators_are_those_of_the_engine(
    domain: str, type_: str, depth: int
) -> None:
    node = helper.make_node(type_, ["x"], ["y"], domain=domain)
    if depth:
        inner = helper.make_graph(
            [node], "then", [], [helper.make_tensor_value_info("y", FLOAT, [2])]
        )
        node = helper.make_node(
            "If", ["c"], ["y"], then_branch=inner, else_branch=inner
        )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    content = graph([node], *ends(), opset_imports=opsets)
    await is_refused(content, f"{type_} may not be run")


async def test_graphs_are_nested_so_deep_only() -> None:
    y = helper.make_tensor_value_info("y", FLOAT, [2])
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [y])
    for _ in range(30):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner)
        inner = helper.make_graph([node], "g", [], [y])
    content = graph(inner.node, *ends())
    await is_refused(content, "nested more than")


def functions(*calls: tuple[str, list[str]]) -> bytes:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    made = []
    for name, called in calls:
        names = ["x", *(f"v{n}" for n in range(1, len(called))), "y"]
        nodes = [
            helper.make_node(
                each, [before], [after], domain="own" if each != "Relu" else ""
            )
            for each, (before, after) in zip(called, pairwise(names), strict=True)
        ]
        made.append(helper.make_function("own", name, ["x"], ["y"], nodes, opsets))
    node = helper.make_node(calls[0][0], ["x"], ["y"], domain="own")
    return graph([node], *ends(), functions=made, opset_imports=opsets)


async def test_functions_are_what_they_are_defined_as() -> None:
    content = functions(("F", ["G", "G"]), ("G", ["Relu"]))
    model = region(content, [port(F32, 2)], [port(F32, 2)])
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(model)
        outputs = await prepared.run([np.array([-1, 1], F32)])
    assert outputs["y0"].tolist() == [0, 1]


async def test_functions_that_call_themselves_are_refused() -> None:
    await is_refused(functions(("F", ["G"]), ("G", ["F"])), "calls itself")


async def test_functions_make_no_other_operators_of_their_domain_known() -> None:
    content = functions(("F", ["Relu"]))
    model = onnx.ModelProto.FromString(content)
    model.graph.node[0].op_type = "PyOp"
    await is_refused(model.SerializeToString(), "own.PyOp may not be run")


async def test_all_overloads_of_functions_are_looked_at() -> None:
    model = onnx.ModelProto.FromString(functions(("F", ["G"]), ("G", ["F"])))
    more = onnx.ModelProto.FromString(functions(("F", ["Relu"])))
    model.functions.extend(more.functions)
    await is_refused(model.SerializeToString(), "two functions own.F")
    model.functions[-1].overload = "other"
    await is_refused(model.SerializeToString(), "calls itself")


async def test_a_domain_by_its_other_name_is_the_same() -> None:
    model = onnx.ModelProto.FromString(functions(("F", ["F"])))
    model.functions[0].domain = "ai.onnx"
    model.functions[0].node[0].domain = ""
    await is_refused(model.SerializeToString(), "calls itself")


async def test_attributes_of_functions_have_no_weights_elsewhere() -> None:
    model = onnx.ModelProto.FromString(functions(("F", ["Relu"])))
    weights = TensorProto(data_type=FLOAT, dims=[2], data_location=1)
    default = helper.make_attribute("w", weights)
    model.functions[0].attribute_proto.append(default)
    await is_refused(model.SerializeToString(), "weights that are not in it")


@pytest.mark.parametrize("by_function", [False, True])
async def test_equations_are_in_ascii(by_function: bool) -> None:
    node = helper.make_node("Einsum", ["x"], ["y"], equation="i->i")
    model = onnx.ModelProto.FromString(functions(("F", ["Relu"])))
    if by_function:
        node = helper.make_node("F", ["x"], ["y"], domain="own", e="i->i")
    else:
        del model.functions[:]
    node.attribute[0].s = b"\xff->\xff"
    del model.graph.node[:]
    model.graph.node.append(node)
    await is_refused(model.SerializeToString(), "not in ASCII")


@pytest.mark.parametrize("by_function", [False, True])
async def test_operators_of_any_number_of_inputs_have_all(by_function: bool) -> None:
    model = onnx.ModelProto.FromString(functions(("F", ["Relu"])))
    if by_function:
        model.functions[0].input.append("more")
        node = helper.make_node("Max", ["x", "more"], ["y"])
        model.functions[0].node[0].CopyFrom(node)
    else:
        del model.functions[:]
        model.graph.node[0].CopyFrom(helper.make_node("Max", ["x", ""], ["y"]))
    await is_refused(model.SerializeToString(), "may lack one of them")


@pytest.mark.parametrize("type_", ["QLinearSigmoid", "QLinearLeakyRelu"])
async def test_operators_have_the_inputs_that_are_always_read(type_: str) -> None:
    node = helper.make_node(type_, ["x"] * 4, ["y"], domain="com.microsoft")
    await is_refused(graph([node], *ends()), f"{type_} of 4 inputs")


async def test_functions_that_grow_without_bounds_are_refused() -> None:
    calls = [(f"F{n}", [f"F{n + 1}"] * 10) for n in range(8)]
    content = functions(*calls, ("F8", ["Relu"]))
    await is_refused(content, "more than 200000 nodes")


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(
    ("type_", "shape", "axes"),
    [
        ("GRU", (0, 1, 2), {"hidden_size": 2}),
        ("Unique", (2, 0), {"axis": 0}),
        ("Conv", (1, 1, 0), {}),
    ],
)
async def test_constants_without_elements_end_no_process(
    type_: str, shape: tuple[int, ...], axes: dict[str, int], is_constant: bool
) -> None:
    place = {"Conv": 1}.get(type_, 0)
    inputs = ["x", "x", "x"]
    inputs[place] = "e"
    node = helper.make_node(
        type_, inputs[: 1 if type_ == "Unique" else 3], ["y"], **axes
    )
    empty = numpy_helper.from_array(np.zeros(shape, F32), "e")
    nodes = [node]
    if is_constant:
        nodes.insert(0, helper.make_node("Constant", [], ["e"], value=empty))
    content = graph(nodes, *ends(), [] if is_constant else [empty])
    await is_refused(content, "e is read, and has no elements")


WIDE = 1 << 11


def scaled(
    dtype: Any = np.float32, length: int = WIDE, *, is_input: bool = False
) -> bytes:
    """Return a file that multiplies ``x`` by weights 0, 1, 2 and so on."""
    weights = numpy_helper.from_array(np.arange(length).astype(dtype), "w")
    number = number_of(dtype)
    ports = [("x", number, [length])] + [("w", number, [length])] * is_input
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    return graph([node], ports, [("y", number, [length])], [weights])


def separated(content: bytes, as_inputs: bool = False) -> tuple[Any, list[Weight]]:
    """Return a file as ONNX Runtime gets it, and the weights that it gets besides."""
    data = memoryview(content)
    checked = check_graph(data)
    weights = take_weights(checked, data, SIZES)
    if as_inputs:
        make_inputs(checked, {each.name: each for each in weights})
    return onnx.load_from_string(rewritten(checked)), weights


class TestWeights:
    """Large weights are taken from where they lie in the file."""

    @pytest.mark.parametrize("is_input", [False, True])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
    async def test_they_are_those_of_the_file(
        self, device: Device, dtype: Any, is_input: bool
    ) -> None:
        content = scaled(dtype, is_input=is_input)
        rest, (weight,) = separated(content)
        assert (weight.name, weight.lengths) == (b"w", (WIDE,))
        assert rest.ByteSize() < len(content) - WIDE
        prepared = await device.prepare(load(content))
        (y,) = (await prepared.run([np.full(WIDE, 2, dtype)])).values()
        np.testing.assert_array_equal(y, 2 * np.arange(WIDE))

    def test_small_ones_stay(self) -> None:
        for length in (8, WIDE // 4):
            content = scaled(length=length)
            assert separated(content) == (onnx.load_from_string(content), [])

    @pytest.mark.parametrize(
        "wrong",
        [
            {"dims": [WIDE + 1]},
            {"dims": [-WIDE]},
            {"dims": [-WIDE, -1]},
            {"data_type": TensorProto.INT64},
            {"data_type": 99},
        ],
    )
    def test_those_that_do_not_fit_their_bytes_stay(
        self, wrong: dict[str, Any]
    ) -> None:
        model = onnx.load_from_string(scaled())
        for name, value in wrong.items():
            field = getattr(model.graph.initializer[0], name)
            if isinstance(value, list):
                del field[:]
                field.extend(value)
            else:
                setattr(model.graph.initializer[0], name, value)
        assert separated(model.SerializeToString()) == (model, [])

    async def test_elements_in_another_form_do_not_count(self, device: Device) -> None:
        model = onnx.load_from_string(scaled())
        model.graph.initializer[0].float_data.extend([1.0] * WIDE)
        prepared = await device.prepare(load(model.SerializeToString()))
        (y,) = (await prepared.run([np.ones(WIDE, F32)])).values()
        np.testing.assert_array_equal(y, np.arange(WIDE))

    async def test_those_that_nothing_reads_are_dropped(self, device: Device) -> None:
        model = onnx.load_from_string(scaled())
        model.graph.initializer[0].name = "unread"
        model.graph.initializer.append(numpy_helper.from_array(F32(3), "w"))
        ends = [port(F32, WIDE)]
        made = region(model.SerializeToString(), ends, ends)
        prepared = await device.prepare(made)
        (y,) = (await prepared.run([np.ones(WIDE, F32)])).values()
        np.testing.assert_array_equal(y, np.full(WIDE, 3))

    def test_one_of_a_name_is_taken_once(self) -> None:
        model = onnx.load_from_string(scaled())
        model.graph.initializer.append(model.graph.initializer[0])
        rest, weights = separated(model.SerializeToString())
        assert len(weights) == 1
        assert rest.ByteSize() > 4 * WIDE

    @pytest.mark.alone
    def test_they_are_copied_once(self, tmp_path: Path) -> None:
        """There are the file's bytes, and ONNX Runtime's own copy of them."""
        path = tmp_path / "weights.onnx"
        path.write_bytes(scaled(length=WEIGHED // 4))
        command = [sys.executable, "-c", WEIGHING, str(path)]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert int(told.stdout) < 2.3 * WEIGHED


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("use", ["", "added", "twice", "returned", "inside"])
async def test_tables_that_rows_are_taken_of_are_not_copied(
    dtype: Any, use: str
) -> None:
    content = looked_up(dtype, use)
    is_table = use in ("", "twice")
    assert check_graph(memoryview(content)).tables == ({b"w"} if is_table else set())
    if is_table:
        model, _ = separated(content, as_inputs=True)
        onnx.checker.check_model(model)
        assert [each.name for each in model.graph.input] == ["i", "w"]
        assert not model.graph.initializer
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(load(content))
        for index in (5, 0):
            outputs = await prepared.run([np.array([[index, 3]])])
            rows = TABLE.astype(dtype)[[[index, 3]]]
            np.testing.assert_array_equal(next(iter(outputs.values())), rows)


def looked_up(dtype: Any, use: str) -> bytes:
    """Return a file that takes rows ``i`` of weights, and may ``use`` these besides."""
    number = number_of(dtype)
    nodes = [helper.make_node("Gather", ["w", "i"], ["y"])]
    outputs = [("y", number, [1, 2, TABLE.shape[1]])]
    if use == "added":
        nodes.append(helper.make_node("Add", ["w", "w"], ["z"]))
    elif use == "twice":
        nodes.append(helper.make_node("Gather", ["w", "i"], ["z"], axis=1))
    elif use == "inside":
        rows = helper.make_node("Identity", ["w"], ["inner"])
        inner = [helper.make_tensor_value_info("inner", number, None)]
        body = helper.make_graph([rows], "inside", [], inner)
        branches = {"then_branch": body, "else_branch": body}
        nodes.append(helper.make_node("If", ["so"], ["z"], **branches))
    if use == "returned":
        outputs.append(("w", number, TABLE.shape))
    elif use:
        outputs.append(("z", number, ["a", "b", "c"][: 2 + (use == "twice")]))
    weights = [
        numpy_helper.from_array(TABLE.astype(dtype), "w"),
        numpy_helper.from_array(np.array(True), "so"),
    ]
    return graph(
        nodes, [("i", INT64, [1, 2])], outputs, weights[: 1 + (use == "inside")]
    )


WEIGHING = """
import asyncio, re, sys
from itertools import pairwise
from pathlib import Path
import asyncnn
from tests.devices.onnxruntime.test_region_checks import scaled

def most() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) << 10

async def weigh(path: str) -> None:
    async with asyncnn.open_device("onnxruntime") as device:
        await device.prepare(asyncnn.load(scaled()))
        Path("/proc/self/clear_refs").write_text("5")
        before = most()
        model = asyncnn.load(path)
        prepared = await device.prepare(model)
        print(most() - before)

asyncio.run(weigh(sys.argv[1]))
"""
WEIGHED = 1 << 27
TABLE = np.arange(1 << 20).reshape(1 << 12, 1 << 8) % 101
INT64 = TensorProto.INT64
SIZES = {number: dtype.itemsize for dtype, number in ELEMENT_TYPES.items()}
