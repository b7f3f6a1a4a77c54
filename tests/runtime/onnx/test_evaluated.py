"""Nodes that the HAL has no form for, which the evaluator of ONNX computes."""

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import asyncnn
from asyncnn.extensions.onnx_nodes import NODES, onnx_nodes
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import Operand, OperandType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from tests.places import driver_of, opened
from tests.runtime.onnx.files import imported, model, parsed, results, tensor, written
from tests.waits import cancelled

node = helper.make_node
RNG = np.random.default_rng(5)
DEVICES = ["reference", "accelerated", "framework:reference,accelerated", "driver"]


driver = driver_of("reference")


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def operations(named: NamedModel) -> list[str]:
    """Return the names of a model's operations, without those of extensions."""
    words = named.vocabulary
    names = [words.operation_type(each.type) for each in named.model.main.operations]
    return [name.rpartition("/")[2] for name in names]


LOOP = "int64 i, bool go, float[2] s => bool on, float[2] t, float[2] u"


def counting(count: int, inner: list[Any], shape: tuple[int, ...] = (2,)) -> Any:
    """A loop of a known count, whose body has ``t`` from ``s``."""
    ends = "int64 i, bool go, float{0} s => bool on, float{0} t, float{0} u"
    body = parsed(ends.format([*shape]), "on = Identity(go)")
    body.node.extend(inner)
    loop = node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    return model([loop], [tensor("x", shape)], ["y", "z"], {"n": np.int64(count)})


class TestGroups:
    async def test_neighbours_are_one_operation(self) -> None:
        proto = written(
            "float[2, 3] x => float[] y",
            "a = Erf(x); b = Sign(a); c = Abs(x); d = CumSum(c, axis); "
            "e = Mul(b, d); y = Round(e)",
            {"axis": np.int64(1)},
        )
        named = imported(proto)
        assert operations(named) == ["ABS", "NODES", "MUL", "NODES"]
        x = floats(2, 3) * 3
        found = await results(named, x=x)
        np.testing.assert_allclose(
            found["y"], np.rint(np.sign(x) * np.cumsum(np.abs(x), 1))
        )

    async def test_int64_and_tensors_without_axes_cross_the_border(self) -> None:
        proto = written(
            "int64 k => int64 y",
            "n = Max(k, k); m = Mod(n, seven); y = Max(m, k)",
            {"seven": np.int64(7)},
        )
        named = imported(proto)
        assert operations(named) == ["MAXIMUM", "NODES", "MAXIMUM"]
        found = await results(named, k=np.int32([-5]))
        assert found["y"].tolist() == [2]

    async def test_more_axes_than_the_hal_has(self) -> None:
        shape = (2, 1, 3, 2, 2)
        proto = model(
            [
                node("Relu", ["x"], ["r"]),
                node("Erf", ["r"], ["e"]),
                node("Relu", ["e"], ["y"]),
            ],
            [tensor("x", shape)],
            ["y"],
        )
        x = floats(*shape)
        found = await results(imported(proto), x=x.reshape(2, 3, 2, 2))
        wanted = np.vectorize(math.erf)(np.maximum(x, 0))
        np.testing.assert_allclose(found["y"].reshape(shape), wanted, rtol=1e-6)

    async def test_lengths_may_stay_open(self) -> None:
        proto = written("float[n, 3] x => float[n, 3] y", "e = Erf(x); y = Mul(e, e)")
        named = imported(proto)
        assert named.outputs[0].shape == (None, 3)
        for count in (1, 4, 2):
            x = floats(count, 3)
            found = await results(named, x=x)
            wanted = np.vectorize(math.erf)(x) ** 2
            np.testing.assert_allclose(found["y"], wanted, rtol=1e-5)

    async def test_large_constants_are_inputs_of_the_operation(self) -> None:
        weight = floats(40, 40)
        proto = written(
            "float[2, 40] x => float[] y",
            'y = Einsum<equation="ij,kj->ik">(x, w)',
            {"w": weight},
        )
        named = imported(proto)
        (operation,) = named.model.main.operations
        assert len(operation.inputs) == 3
        x = floats(2, 40)
        found = await results(named, x=x)
        np.testing.assert_allclose(found["y"], x @ weight.T, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("where", DEVICES)
    async def test_run_on_every_device(
        self, where: str, request: pytest.FixtureRequest
    ) -> None:
        proto = counting(3, [node("Erf", ["s"], ["t"]), node("Neg", ["s"], ["u"])])
        proto.graph.node.append(node("Add", ["y", "y"], ["w"]))
        proto.graph.output.append(tensor("w", None))
        async with opened(where, request) as device:
            prepared = await device.prepare(imported(proto))
            found = await prepared.run([np.float32([0.5, -1])])
        steps = [np.float64([0.5, -1])]
        for _ in range(3):
            steps.append(np.vectorize(math.erf)(steps[-1]))
        np.testing.assert_allclose(found["y"], steps[3], rtol=1e-5)
        np.testing.assert_allclose(found["w"], 2 * steps[3], rtol=1e-5)
        np.testing.assert_allclose(found["z"], -np.stack(steps[:3]), rtol=1e-5)

    def test_what_is_random_is_refused(self) -> None:
        proto = written("=> float[] y", "y = RandomNormal<shape=[2]>()")
        with pytest.raises(UnsupportedOperatorError, match="random"):
            imported(proto)

    def test_are_refused_where_the_hal_alone_is_asked_for(self) -> None:
        proto = written("float[2] x => float[] y", "y = Erf(x)")
        with pytest.raises(UnsupportedOperatorError, match="Erf") as refused:
            imported(proto, strict=True)
        assert "without strict" in refused.value.hint


class TestLoops:
    async def test_a_condition_may_follow_from_the_count(self) -> None:
        body = parsed(LOOP, "on = Less(i, three); t = Add(s, s); u = Identity(t)")
        loop = node("Loop", ["", "", "x"], ["y", "z"], body=body)
        weights = {"three": np.int64(3)}
        proto = model([loop], [tensor("x", (2,))], ["y", "z"], weights)
        x = floats(2)
        found = await results(imported(proto), x=x)
        np.testing.assert_allclose(found["y"], 16 * x)
        np.testing.assert_allclose(found["z"], [2 * x, 4 * x, 8 * x, 16 * x])

    @pytest.mark.parametrize("where", DEVICES)
    async def test_only_a_run_may_tell_how_many_steps_there_are(
        self, where: str, request: pytest.FixtureRequest
    ) -> None:
        body = parsed(
            LOOP,
            "t = Mul(s, half); sum = ReduceSum<keepdims=0>(t);"
            "on = Greater(sum, three); u = Identity(t)",
        )
        nodes = [
            node("Loop", ["", "true", "x"], ["y", "all"], body=body),
            node("Relu", ["y"], ["positive"]),
            node("Neg", ["all"], ["turned"]),
            node("Size", ["turned"], ["size"]),
        ]
        weights = {"three": np.float32(3), "half": np.float32(0.5), "true": True}
        outputs = ["positive", "turned", tensor("size", None, np.int64)]
        proto = model(nodes, [tensor("x", (2,))], outputs, weights)
        async with opened(where, request) as device:
            prepared = await device.prepare(imported(proto))
            assert prepared.outputs[1].shape == (None, 2)
            for x, steps in (([4, 4], 2), ([64, 64], 6), ([1, 1], 1), ([64, 64], 6)):
                found = await prepared.run([np.float32(x)])
                rows = [-np.float32(x) / 2 ** (k + 1) for k in range(steps)]
                np.testing.assert_array_equal(found["turned"], rows)
                np.testing.assert_array_equal(found["positive"], -rows[-1])
                assert found["size"] == 2 * steps

    def test_one_whose_states_grow_is_refused(self) -> None:
        proto = counting(3, [node("Identity", ["s"], ["u"])])
        body = proto.graph.node[0].attribute[0].g
        del body.node[:]
        growing = "t = Concat<axis=0>(s, s); u = ReduceSum<keepdims=1>(s);"
        ends = "less = Less(u, u); on = Squeeze(less)"
        body.node.extend(parsed(LOOP, growing + ends).node)
        with pytest.raises(UnsupportedOperatorError, match="states may grow"):
            imported(proto)

    async def test_can_be_left_between_two_nodes(self) -> None:
        inner = [node("Erf", ["s"], ["t"]), node("Neg", ["s"], ["u"])]
        named = imported(counting(400, inner, (20_000,)))
        async with asyncnn.open_device("reference") as device:
            prepared = await device.prepare(named)
            before = time.monotonic()
            with pytest.raises(asyncnn.MissedDeadlineError):
                await prepared.run([np.zeros(20_000, np.float32)], timeout=0.05)
            task = asyncio.create_task(prepared.run([np.zeros(20_000, np.float32)]))
            await asyncio.sleep(0.05)
            await cancelled(task)
        assert time.monotonic() - before < 1


def recurrence_by_hand(
    x: Any, w: Any, r: Any, lengths: list[int], *, is_backwards: bool
) -> tuple[Any, Any]:
    """Return the sequence and the last states of an RNN, row by row."""
    steps, batch, _ = x.shape
    whole = np.zeros((steps, batch, r.shape[0]), np.float32)
    last = np.zeros((batch, r.shape[0]), np.float32)
    for row, length in enumerate(lengths):
        order = range(length)[::-1] if is_backwards else range(length)
        for step in order:
            last[row] = np.clip(x[step, row] @ w.T + last[row] @ r.T, -0.5, 0.5)
            last[row] = np.maximum(last[row], 0)
            whole[step, row] = last[row]
    return whole, last


async def test_recurrences_with_lengths_directions_and_bounds() -> None:
    x, w, r = floats(4, 3, 2), floats(2, 5, 2), floats(2, 5, 5)
    lengths = [4, 1, 3]
    proto = model(
        [
            node(
                "RNN",
                ["x", "w", "r", "", "n"],
                ["y", "h"],
                hidden_size=5,
                clip=0.5,
                direction="bidirectional",
                activations=["Relu", "Relu"],
            )
        ],
        [tensor("x", x.shape)],
        ["y", "h"],
        {"w": w, "r": r, "n": np.int32(lengths)},
    )
    found = await results(imported(proto), x=x)
    for place in range(2):
        whole, last = recurrence_by_hand(
            x, w[place], r[place], lengths, is_backwards=place == 1
        )
        np.testing.assert_allclose(found["y"][:, place], whole, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["h"][place], last, rtol=1e-4, atol=1e-5)


def nodes_model(proto: Any, inputs: int = 1) -> Any:
    """Return a model of one operation NODES, on inputs of two floats."""
    builder = ModelBuilder()
    like = Operand(OperandType.TENSOR_FLOAT32, (2,))
    data = np.frombuffer(proto.SerializeToString(), np.uint8)
    graph = builder.constant(data, OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
    given = [builder.input(f"x{k}", like.type, (2,)) for k in range(inputs)]
    builder.output(builder.operation(NODES, [graph, *given], like), "y")
    return builder.build()


def with_external_weight() -> Any:
    proto = written("float[2] x => float[] y", "y = Add(x, w)", {"w": floats(2)})
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"
    return proto


def expanding() -> Any:
    return written(
        "float[2] x => float[] y",
        "e = Expand(x, n); y = ReduceMax(e)",
        {"n": np.int64([1 << 40, 2])},
    )


def long(type_: str, *inputs: str, **attributes: Any) -> Any:
    """Return a graph of what is as long as one of its inputs, or attributes, says."""
    made = node(type_, inputs, ["e"], **attributes)
    nodes = [made, node("ReduceMax", ["e"], ["y"])]
    weights = {
        "k": np.int64(1 << 36),
        "n": np.int64([1 << 18, 1 << 18]),
        "two": np.int64([1, 2]),
        "image": np.zeros((1, 2, 2), np.float32),
        "rate": np.int64(16000),
        "low": np.float32(0),
        "row": np.zeros((1, 1 << 15), np.float32),
        "rows": np.zeros(1 << 15, np.int64),
        "tall": np.zeros((1 << 15, 2), np.float32),
        "wide": np.zeros((2, 1 << 15), np.float32),
    }
    kept = {name: array for name, array in weights.items() if name in inputs}
    return model(nodes, [tensor("x", (2,))], ["y"], kept)


def piling(count: int) -> Any:
    """A loop whose steps give rows that are large together, and fit one by one."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Identity", ["w"], ["row"])],
        "body",
        [tensor("i", (), np.int64), tensor("go", (), np.bool_)],
        [tensor("on", (), np.bool_), tensor("row", (1 << 15,))],
    )
    nodes = [node("Loop", ["n", ""], ["e"], body=body), node("ReduceMax", ["e"], ["y"])]
    weights = {"n": np.int64(count), "w": np.zeros(1 << 15, np.float32)}
    return model(nodes, [tensor("x", (2,))], ["y"], weights)


def unrolled(steps: int) -> Any:
    """A recurrence over very many steps of one number."""
    nodes = [
        node("Expand", ["o", "n"], ["s"]),
        node("RNN", ["s", "w", "r"], ["e"]),
        node("ReduceMax", ["e"], ["y"]),
    ]
    weights = {
        "o": np.float32(1),
        "n": np.int64([steps, 1, 1]),
        "w": np.zeros((1, 1 << 8, 1), np.float32),
        "r": np.zeros((1, 1 << 8, 1 << 8), np.float32),
    }
    return model(nodes, [tensor("x", (2,))], ["y"], weights)


def own_operator() -> Any:
    proto = written("float[2] x => float[] y", "y = own.F(x)")
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


async def prepared_and_run(device: asyncnn.Device, made: Any, inputs: int) -> None:
    prepared = await device.prepare(made)
    await prepared.run([np.zeros(2, np.float32)] * inputs)


class TestGraphsOfClients:
    async def test_one_that_is_right_runs(self) -> None:
        proto = written("float[2] x => float[] y", "y = Erf(x)")
        async with asyncnn.open_device("reference") as device:
            prepared = await device.prepare(nodes_model(proto))
            found = await prepared.run([np.float32([0, 9])])
        assert found["y"].tolist() == [0, 1]

    @pytest.mark.parametrize(
        "proto",
        [
            long("HannWindow", "k"),
            long("MelWeightMatrix", "k", "k", "rate", "low", "low"),
            long("Col2Im", "image", "n", "two"),
            long("DFT", "image", "k"),
            long("MatMul", "tall", "wide"),
            long("Gemm", "tall", "tall", transB=1),
            long("Einsum", "tall", "wide", equation="ab,cd->ad"),
            long("Gather", "row", "rows"),
            long("RandomNormal", shape=[1 << 15, 1 << 15]),
            piling(1 << 20),
            unrolled(1 << 21),
        ],
        ids=[
            *("window", "mel", "image", "spectrum"),
            *("product", "transposed", "sums", "rows", "chance", "loop", "recurrence"),
        ],
    )
    async def test_what_is_too_long_is_refused_before_it_is_made(
        self, proto: Any
    ) -> None:
        async with asyncnn.open_device("reference") as device:
            with pytest.raises(AsyncnnError, match="elements"):
                await prepared_and_run(device, nodes_model(proto), 1)

    @pytest.mark.parametrize(
        ("proto", "inputs"),
        [
            (with_external_weight(), 1),
            (own_operator(), 1),
            (expanding(), 1),
            (written("float[2] x => float[] y", "y = Erf(x)"), 2),
            (written("float[2] x => float[] y", "y = Erf(q)"), 1),
            (written("float[2] x => float[] y", "y = Shape(x)"), 1),
            (written("float[2] x => float[] y", "y = Nothing(x)"), 1),
        ],
        ids=["external", "own", "huge", "inputs", "unknown", "type", "operator"],
    )
    async def test_others_are_refused_in_words(self, proto: Any, inputs: int) -> None:
        async with asyncnn.open_device("reference") as device:
            with pytest.raises(AsyncnnError):
                await prepared_and_run(device, nodes_model(proto, inputs), inputs)
            good = written("float[2] x => float[] y", "y = Erf(x)")
            prepared = await device.prepare(nodes_model(good))
            assert (await prepared.run([np.zeros(2, np.float32)]))["y"].sum() == 0

    def test_the_extension_is_one_of_every_device(self) -> None:
        assert onnx_nodes.name in asyncnn.extensions.installed_extensions()


async def test_limits_of_suppressed_boxes_may_have_no_axes() -> None:
    limits = {"most": np.int64(2), "iou": np.float32(0.5), "score": np.float32(0.1)}
    made = node("NonMaxSuppression", ["x", "s", *limits], ["y"])
    ends = [tensor("x", (1, 3, 4)), tensor("s", (1, 1, 3))]
    named = imported(model([made], ends, [tensor("y", (None, 3), np.int64)], limits))
    boxes = np.float32([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]])
    scores = np.float32([[[0.9, 0.8, 0.7]]])
    (found,) = (await results(named, x=boxes, s=scores)).values()
    assert found.tolist() == [[0, 0, 0], [0, 0, 2]]


def test_a_sequence_that_is_known_is_no_tensor() -> None:
    nodes = [node("SequenceEmpty", [], ["s"]), node("SequenceLength", ["s"], ["y"])]
    with pytest.raises(UnsupportedOperatorError, match="its result is a sequence"):
        imported(model(nodes, [], [tensor("y", (), np.int64)]))


async def test_a_number_of_classes_may_have_an_axis() -> None:
    made = node("OneHot", ["x", "classes", "values"], ["y"])
    weights = {"classes": np.array([3]), "values": np.array([0, 5])}
    named = imported(
        model([made], [tensor("x", (2,), np.int64)], [tensor("y", None, int)], weights)
    )
    (found,) = (await results(named, x=np.int32([2, 0]))).values()
    assert found.tolist() == [[0, 0, 5], [5, 0, 0]]


def test_what_the_evaluator_computes_wrongly_is_refused() -> None:
    made = node("ConvTranspose", ["x", "w", "b"], ["y"], group=2)
    ends = [tensor("x", (1, 2, 3)), tensor("w", (2, 1, 2)), tensor("b", (2,))]
    with pytest.raises(UnsupportedOperatorError, match="of groups"):
        imported(model([made], ends, ["y"]))
