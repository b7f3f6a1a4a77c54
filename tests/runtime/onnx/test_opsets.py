"""Operators whose rules changed from one operator set to the next, by both rules."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from asyncnn.hal.types import OperationType
from tests.runtime.onnx.files import imported, model, results, tensor

node = helper.make_node
RNG = np.random.default_rng(41)
SHAPE = (2, 1, 3, 4)

CASES: list[tuple[int, Any, dict[str, Any]]] = [
    *((opset, node("Softmax", ["x"], ["y"], axis=2), {}) for opset in (11, 13)),
    *((opset, node("LogSoftmax", ["x"], ["y"], axis=1), {}) for opset in (11, 13)),
    *((opset, node("Hardmax", ["x"], ["y"], axis=2), {}) for opset in (11, 13)),
    (11, node("Softmax", ["x"], ["y"]), {}),
    (13, node("Softmax", ["x"], ["y"]), {}),
    (11, node("Squeeze", ["x"], ["y"], axes=[1]), {}),
    (13, node("Squeeze", ["x", "a"], ["y"]), {"a": np.int64([-3])}),
    (11, node("Unsqueeze", ["x"], ["y"], axes=[0, -1]), {}),
    (13, node("Unsqueeze", ["x", "a"], ["y"]), {"a": np.int64([2])}),
    (11, node("ReduceSum", ["x"], ["y"], axes=[-1], keepdims=0), {}),
    (13, node("ReduceSum", ["x", "a"], ["y"]), {"a": np.int64([2, 0])}),
    (17, node("ReduceMax", ["x"], ["y"], axes=[3]), {}),
    (18, node("ReduceMax", ["x", "a"], ["y"]), {"a": np.int64([3])}),
    (
        18,
        node("ReduceMean", ["x"], ["y"], noop_with_empty_axes=1),
        {},
    ),
    (11, node("Split", ["x"], ["y", "z"], axis=3, split=[1, 3]), {}),
    (13, node("Split", ["x", "a"], ["y", "z"], axis=3), {"a": np.int64([3, 1])}),
    (18, node("Split", ["x"], ["y", "z"], axis=2, num_outputs=2), {}),
    (10, node("Clip", ["x"], ["y"], min=-0.5, max=0.25), {}),
    (11, node("Clip", ["x", "", "b"], ["y"]), {"b": np.float32(0.25)}),
    (9, node("Slice", ["x"], ["y"], axes=[3], starts=[-3], ends=[100]), {}),
    (
        10,
        node("Slice", ["x", "s", "e", "a", "t"], ["y"]),
        {
            "s": np.int64([-1]), "e": np.int64([-100]),
            "a": np.int64([3]), "t": np.int64([-2]),
        },
    ),
    (10, node("Pad", ["x"], ["y"], pads=[0, 0, 1, 0, 0, 0, 0, 2], value=7.0), {}),
    (
        11,
        node("Pad", ["x", "p"], ["y"], mode="reflect"),
        {"p": np.int64([0, 0, 2, 1, 0, 0, 1, 2])},
    ),
    (
        18,
        node("Pad", ["x", "p", "", "a"], ["y"], mode="edge"),
        {"p": np.int64([2, 1]), "a": np.int64([-1])},
    ),
    (7, node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 3.0]), {}),
    (8, node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 2.0]), {}),
    (9, node("Upsample", ["x", "s"], ["y"]), {"s": np.float32([1, 1, 2, 3])}),
    (10, node("Resize", ["x", "s"], ["y"]), {"s": np.float32([1, 1, 2, 3])}),
    (
        11,
        node("Resize", ["x", "r", "s"], ["y"], mode="linear"),
        {"r": np.float32([]), "s": np.float32([1, 1, 2, 2])},
    ),
    (
        13,
        node("Resize", ["x", "", "", "n"], ["y"], mode="cubic"),
        {"n": np.int64([2, 1, 7, 5])},
    ),
    (10, node("TopK", ["x", "k"], ["y", "z"], axis=3), {"k": np.int64([2])}),
    (11, node("TopK", ["x", "k"], ["y", "z"], largest=0), {"k": np.int64([2])}),
    (10, node("Dropout", ["x"], ["y"], ratio=0.5), {}),
    (13, node("Dropout", ["x", "r"], ["y"]), {"r": np.float32(0.5)}),
    (
        11,
        node("OneHot", ["i", "d", "v"], ["y"], axis=0),
        {"i": np.int64([[1, -1]]), "d": np.int64(3), "v": np.float32([0, 2])},
    ),
    (11, node("CumSum", ["x", "a"], ["y"], reverse=1), {"a": np.int64(3)}),
    (13, node("Hardmax", ["x"], ["y"]), {}),
    (
        9,
        node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"]),
        {
            "g": np.float32([2]), "b": np.float32([1]),
            "m": np.float32([0.5]), "v": np.float32([4]),
        },
    ),
    (
        19,
        node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[1, 2]),
        {},
    ),
    (
        12,
        node(
            "MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1
        ),
        {},
    ),
    *((22, node(kind, ["x"], ["y"], kernel_shape=[2, 2], **options), {})
      for kind, options in (
          ("MaxPool", {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
          ("AveragePool", {"strides": [4, 4], "auto_pad": "SAME_UPPER"}),
          ("MaxPool", {"dilations": [1, 2], "ceil_mode": 1, "strides": [2, 2]}),
          ("AveragePool", {"dilations": [2, 1], "pads": [1, 1, 0, 1],
                           "ceil_mode": 1, "strides": [2, 2]}),
          ("AveragePool", {"dilations": [2, 1], "pads": [1, 1, 0, 1],
                           "count_include_pad": 1}),
          ("AveragePool", {"dilations": [2, 2], "ceil_mode": 1, "strides": [2, 2],
                           "pads": [1, 1, 1, 1], "count_include_pad": 1}),
          ("LpPool", {"ceil_mode": 1, "strides": [2, 3], "p": 3}),
          ("LpPool", {"auto_pad": "SAME_UPPER", "strides": [4, 4], "p": 2}),
          ("LpPool", {"auto_pad": "SAME_LOWER", "strides": [2, 2], "p": 1}),
      )),
    *((11, node("Conv", ["x", "w"], ["y"], strides=[6, 5], auto_pad=mode),
       {"w": np.float32([[[[1]]], [[[2]]]])}) for mode in ("SAME_UPPER", "SAME_LOWER")),
    (14, node("Reshape", ["x", "s"], ["y"]), {"s": np.int64([0, -1])}),
    (16, node("Where", ["c", "x", "w"], ["y"]), {
        "c": np.array([True, False, True, False]), "w": np.float32([9])}),
    (16, node("PRelu", ["x", "s"], ["y"]), {"s": np.float32([[0.1], [0.2], [0.3]])}),
    (20, node("Gelu", ["x"], ["y"]), {}),
    (9, node("Upsample", ["x", "s"], ["y"], mode="linear"),
     {"s": np.float32([1, 1, 1.5, 2])}),
    (8, node("Upsample", ["x"], ["y"], mode="linear", scales=[1.0, 1.0, 1.5, 2.0]), {}),
    (10, node("Resize", ["x", "s"], ["y"], mode="linear"),
     {"s": np.float32([1, 1, 1.5, 2.5])}),
    *((opset, node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2,
                   output_width=2, sampling_ratio=2),
       {"r": np.float32([[0.5, 0.5, 2.4, 1.7]]), "b": np.int64([1])})
      for opset in (10, 16)),
    *((opset, node("GridSample", ["x", "g"], ["y"]),
       {"g": np.float32([[[[0.1, -0.2], [0.7, 0.9]]]] * 2)}) for opset in (16, 20)),
    (9, node("Scatter", ["x", "i", "u"], ["y"], axis=3),
     {"i": np.int64([[[[1]]]]), "u": np.float32([[[[7]]]])}),
    *((opset, node("ScatterElements", ["x", "i", "u"], ["y"], axis=-1),
       {"i": np.int64([[[[-1]]]]), "u": np.float32([[[[7]]]])})
      for opset in (11, 16)),
    (11, node("LpPool", ["x"], ["y"], kernel_shape=[2, 2]), {}),
    *((opset, node("ReduceLogSumExp", ["x"], ["y"], axes=[1, 3]), {})
      for opset in (11, 13)),
    *((opset, node("ArgMax", ["x"], ["y"], axis=-1), {}) for opset in (7, 11)),
    (12, node("ArgMax", ["x"], ["y"], axis=-1, select_last_index=1), {}),
    *((opset, node("EyeLike", ["w"], ["y"], k=1), {"w": np.float32(np.ones((2, 3)))})
      for opset in (9, 22)),
    *((opset, node("Einsum", ["x", "w"], ["y"], equation="abcd,de->abce"),
       {"w": np.float32(np.ones((4, 2)))}) for opset in (12, 17)),
    *((opset, node("Pow", ["x", "p"], ["y"]), {"p": np.float32([3])})
      for opset in (7, 12)),
    *((opset, node("IsInf", ["x"], ["y"]), {}) for opset in (10, 20)),
    (20, node("Gelu", ["x"], ["y"], approximate="tanh"), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "made", "weights"),
    CASES,
    ids=[f"{made.op_type}-{opset}-{i}" for i, (opset, made, _) in enumerate(CASES)],
)
async def test_each_operator_set_has_its_rules(
    opset: int, made: Any, weights: dict[str, Any]
) -> None:
    outputs = [name for name in made.output if name]
    names = {name for name in made.input if name} | set(outputs)
    inputs = [tensor("x", SHAPE)] if "x" in names else []
    dtypes = {("TopK", "z"): np.int64, ("ArgMax", "y"): np.int64}
    dtypes["IsInf", "y"] = np.bool_
    places = [
        tensor(name, None, dtypes.get((made.op_type, name), np.float32))
        for name in outputs
    ]
    proto = model([made], inputs, places, weights, opset=opset)
    x = RNG.standard_normal(SHAPE).astype(np.float32)
    given = {"x": x} if inputs else {}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted = session.run(None, given)
    found = (await results(imported(proto), **given)).values()
    for result, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            result.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6
        )


VOLUME_POOLS = [
    ("MaxPool", {"strides": [2, 1, 2], "ceil_mode": 1}),
    ("AveragePool", {"strides": [2, 1, 2], "pads": [1, 0, 0, 1, 1, 0]}),
    ("AveragePool", {"pads": [1, 1, 0, 0, 1, 0], "count_include_pad": 1}),
    ("AveragePool", {"strides": [2, 2, 2], "auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize(("kind", "options"), VOLUME_POOLS, ids=str)
async def test_pools_of_volumes_are_two_of_images(
    kind: str, options: dict[str, Any]
) -> None:
    made = node(kind, ["x"], ["y"], kernel_shape=[2, 3, 2], **options)
    shape = (2, 3, 5, 6, 7)
    proto = model([made], [tensor("x", shape)], [tensor("y", None)], opset=19)
    x = RNG.standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    named = imported(proto)
    types = [operation.type for operation in named.model.main.operations]
    pool = OperationType[f"{kind.removesuffix('Pool').upper()}_POOL_2D"]
    assert types.count(pool) == 2
    (found,) = (await results(named, x=x)).values()
    found = found.reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
