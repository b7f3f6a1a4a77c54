"""Structures that people come with, on each device, beside ONNX Runtime."""

import asyncio
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import asyncnn
from tests.places import driver_of, opened
from tests.runtime.onnx.files import imported, model, results, tensor

F32, I64 = np.float32, np.int64
RNG = np.random.default_rng(11)
BEGIN = RNG.bit_generator.state

Inputs: TypeAlias = Mapping[str, Any]
Made: TypeAlias = tuple[Any, Sequence[Inputs]]
"""A model, and what its runs are given one after the other."""


def floats(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / 4).astype(F32)


class Graph:
    """Nodes that are called one after the other; arrays become weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def __call__(self, type_: str, *inputs: Any, out: str = "", **by: Any) -> str:
        return self.several(type_, 1, *inputs, names=[out] if out else [], **by)[0]

    def several(
        self, type_: str, count: int, *inputs: Any, names: Sequence[str] = (), **by: Any
    ) -> list[str]:
        place = len(self.nodes)
        made = [*names] or [f"/{type_}_{place}/out_{each}" for each in range(count)]
        read = [each if isinstance(each, str) else self.weight(each) for each in inputs]
        self.nodes.append(helper.make_node(type_, read, made, **by))
        return made

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return model(self.nodes, inputs, outputs, self.weights, opset=14)


def normalised(g: Graph, x: str, width: int) -> str:
    rest = g("Sub", x, g("ReduceMean", x, axes=[-1]))
    variance = g("ReduceMean", g("Pow", rest, F32(2)), axes=[-1])
    root = g("Sqrt", g("Add", variance, F32(1e-12)))
    return g("Add", g("Mul", g("Div", rest, root), 1 + floats(width)), floats(width))


def encoder() -> Made:
    """Embeddings, attention under a mask, GELU by Erf, and a mean: open lengths."""
    g, width, heads, longest = Graph(), 24, 4, 256
    sizes = g("Shape", "ids")
    length = g("Gather", sizes, I64([1]), axis=0)
    places = g("Slice", np.arange(longest)[None], I64([0]), length, I64([1]))
    x = g("Gather", floats(50, width), "ids")
    x = normalised(g, g("Add", x, g("Gather", floats(longest, width), places)), width)
    mask = g("Cast", g("Unsqueeze", "mask", I64([1, 2])), to=1)
    mask = g("Mul", g("Sub", F32(1), mask), np.finfo(F32).min)

    def dense(x: str, before: int, behind: int) -> str:
        return g("Add", floats(behind), g("MatMul", x, floats(before, behind)))

    def divided(order: Sequence[int]) -> str:
        parts = g("Reshape", dense(x, width, width), I64([0, 0, heads, -1]))
        return g("Transpose", parts, perm=order)

    for _ in range(2):
        query, key = divided([0, 2, 1, 3]), divided([0, 2, 3, 1])
        scores = g("Div", g("MatMul", query, key), F32((width / heads) ** 0.5))
        shares = g("Softmax", g("Add", scores, mask), axis=-1)
        found = g("MatMul", shares, divided([0, 2, 1, 3]))
        found = g("Transpose", found, perm=[0, 2, 1, 3])
        found = dense(g("Reshape", found, I64([0, 0, width])), width, width)
        x = normalised(g, g("Add", x, found), width)
        wide = dense(x, width, 2 * width)
        bent = g("Add", g("Erf", g("Div", wide, F32(2**0.5))), F32(1))
        wide = g("Mul", g("Mul", wide, bent), F32(0.5))
        x = normalised(g, g("Add", x, dense(wide, 2 * width, width)), width)
    kept = g("Cast", g("Unsqueeze", "mask", I64([2])), to=1)
    total = g("ReduceSum", g("Mul", x, kept), I64([1]), keepdims=0)
    count = g("ReduceSum", kept, I64([1]), keepdims=0)
    g("Div", total, g("Clip", count, F32(1e-9)), out="y")
    axes = ("batch", "length")
    ends = [tensor(name, axes, I64) for name in ("ids", "mask")]
    given = []
    for batch, steps in ((1, 8), (2, 16), (3, 5), (2, 16)):
        mask_ = np.ones((batch, steps), I64)
        mask_[-1, steps // 2 :] = 0
        given.append({"ids": RNG.integers(0, 50, (batch, steps)), "mask": mask_})
    return g.model(ends, [tensor("y", ("batch", width))]), given


def detector() -> Made:
    """Images by convolutions at two scales, boxes by shares, and what is kept."""
    g = Graph()

    def layer(x: str, before: int, behind: int, stride: int = 1) -> str:
        by = {"strides": [stride] * 2, "pads": [1] * 4}
        y = g("Conv", x, floats(behind, before, 3, 3), floats(behind), **by)
        return g("Mul", y, g("Sigmoid", y))

    wide = layer(layer("x", 3, 8, 2), 8, 8, 2)
    deep = layer(wide, 8, 16, 2)
    pools = [deep]
    for _ in range(2):
        by = {"kernel_shape": [5, 5], "pads": [2] * 4}
        pools.append(g("MaxPool", pools[-1], **by))
    deep = layer(g("Concat", *pools, axis=1), 48, 16)
    ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    larger = g("Resize", deep, "", F32([1, 1, 2, 2]), mode="nearest", **ways)
    wide = layer(g("Concat", larger, wide, axis=1), 24, 8)
    parts = [
        g("Reshape", layer(wide, 8, 20), I64([1, 20, -1])),
        g("Reshape", layer(deep, 16, 20), I64([1, 20, -1])),
    ]
    whole = g("Concat", *parts, axis=2)
    edges, classes = g.several("Split", 2, whole, I64([16, 4]), axis=1)
    shares = g("Reshape", edges, I64([1, 4, 4, -1]))
    shares = g("Softmax", g("Transpose", shares, perm=[0, 2, 1, 3]), axis=1)
    steps = np.arange(4, dtype=F32).reshape(1, 4, 1, 1)
    edges = g("Reshape", g("Conv", shares, steps), I64([1, 4, -1]))
    first, last = g.several("Split", 2, edges, axis=1)
    centres = RNG.random((1, 2, 80)).astype(F32) * 16
    low, high = g("Sub", centres, first), g("Add", centres, last)
    middle = g("Div", g("Add", low, high), F32(2))
    boxes = g("Concat", middle, g("Sub", high, low), axis=1)
    # Devices round apart: scores near 1 would change places.
    scores = g("Sigmoid", g("Mul", classes, F32(0.05)))
    boxes = g("Transpose", boxes, perm=[0, 2, 1])
    limits = I64([5]), F32([0.5]), F32([0.45])
    g("NonMaxSuppression", boxes, scores, *limits, center_point_box=1, out="kept")
    g("Identity", boxes, out="boxes")
    outputs = [tensor("kept", (None, 3), I64), tensor("boxes", (1, 80, 4))]
    given = [{"x": RNG.random((1, 3, 32, 32)).astype(F32)} for _ in range(2)]
    return g.model([tensor("x", (1, 3, 32, 32))], outputs), given


def recurrence(type_: str, gates: int) -> Callable[[], Made]:
    def made() -> Made:
        g, units, depth = Graph(), 6, 5
        rows = gates * units
        weights = floats(2, rows, depth), floats(2, rows, units), floats(2, 2 * rows)
        by: dict[str, Any] = {"hidden_size": units, "direction": "bidirectional"}
        if type_ == "GRU":
            by["linear_before_reset"] = 1
        count = 3 if type_ == "LSTM" else 2
        whole, last, *_ = g.several(type_, count, "x", *weights, "lengths", **by)
        whole = g("Transpose", whole, perm=[0, 2, 1, 3])
        g("Reshape", whole, I64([0, 0, -1]), out="y")
        g("Identity", last, out="h")
        ends = [tensor("x", ("steps", 3, depth)), tensor("lengths", (3,), np.int32)]
        outputs = [tensor("y", ("steps", 3, 2 * units)), tensor("h", (2, 3, units))]
        given = [
            {"x": floats(steps, 3, depth), "lengths": np.int32([steps, 2, 1])}
            for steps in (7, 3, 7)
        ]
        return g.model(ends, outputs), given

    return made


def branches() -> Made:
    """One branch repeats what the other computes with: their lengths differ."""
    inner = {
        "then_branch": [helper.make_node("Concat", ["x", "x"], ["t"], axis=0)],
        "else_branch": [helper.make_node("Erf", ["x"], ["t"])],
    }
    graphs = {
        name: helper.make_graph(nodes, name, [], [tensor("t", None)])
        for name, nodes in inner.items()
    }
    g = Graph()
    g("If", g("Greater", g("ReduceSum", "x", keepdims=0), F32(0)), out="y", **graphs)
    given = [{"x": np.full((2, 3), each, F32)} for each in (1, -1, 2)]
    return g.model([tensor("x", (2, 3))], [tensor("y", (None, 3))]), given


MODELS: dict[str, Callable[[], Made]] = {
    "encoder": encoder,
    "detector": detector,
    "GRU": recurrence("GRU", 3),
    "LSTM": recurrence("LSTM", 4),
    "branches": branches,
}
TRANSLATING = ("accelerated", "reference")
DEVICES = ["onnxruntime", "auto", "accelerated", "reference", "driver"]
driver = driver_of("auto")


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
async def test_they_give_what_onnx_runtime_does(
    make: Callable[[], Made], where: str, request: pytest.FixtureRequest
) -> None:
    if where in ("accelerated", "auto") and not importlib.util.find_spec(
        "ai_edge_litert"
    ):
        pytest.skip("LiteRT is not installed")
    RNG.bit_generator.state = BEGIN  # the same numbers, whichever tests run
    proto, given = make()
    shapes = None
    if make is encoder and where in TRANSLATING:  # a RESHAPE finds one length itself
        shapes = {name: array.shape for name, array in given[1].items()}
        given = [given[1], given[3]]
    content = proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(content, options)
    async with opened(where, request) as device:
        prepared = await device.prepare(asyncnn.load(content, input_shapes=shapes))
        for inputs in given:
            cancelled = asyncio.ensure_future(prepared.run(inputs))
            await asyncio.sleep(0.0005)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            found = await prepared.run(inputs)
            for name, wanted in zip(found, peer.run(None, dict(inputs)), strict=True):
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (helper.make_node("LpNormalization", ["x"], ["y"], axis=1, p=1), (2, 3, 4)),
        (helper.make_node("LpNormalization", ["x"], ["y"]), (2, 3, 4)),
        (helper.make_node("GreaterOrEqual", ["x", "x"], ["y"]), (1, 1, 8, 2, 4)),
        (helper.make_node("Less", ["x", "k"], ["y"]), (2, 3, 2, 2, 2)),
        (helper.make_node("Less", ["x", "row"], ["y"]), (2, 3, 2, 2, 2)),
    ],
    ids=["sums", "squares", "of five axes", "with a scalar", "with a row"],
)
async def test_translated_operators_give_what_onnx_runtime_does(
    made: Any, shape: tuple[int, ...]
) -> None:
    kind = np.bool_ if made.op_type in ("GreaterOrEqual", "Less") else F32
    weights: dict[str, Any] = {"k": F32(0.1), "row": floats(3, 1, 2, 1)}
    read = {each: weights[each] for each in made.input if each in weights}
    proto = model([made], [tensor("x", shape)], [tensor("y", None, kind)], read)
    x = floats(*shape)
    x[0] = 0
    peer = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = peer.run(None, {"x": x})
    (found,) = (await results(imported(proto), x=x)).values()
    np.testing.assert_allclose(found.reshape(shape), expected, rtol=1e-5)
