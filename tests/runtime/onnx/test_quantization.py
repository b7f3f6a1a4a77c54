"""Quantised models, beside ONNX Runtime."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.runtime.onnx.files import (
    imported,
    model,
    operations,
    results,
    tensor,
    written,
)

node = helper.make_node
RNG = np.random.default_rng(29)
LSB = 1


def dequantized(name: str, scale: Any, zero: Any, **attributes: Any) -> tuple[Any, Any]:
    """Return a node that dequantises ``name`` to ``name_f``, and its parameters."""
    inputs = [name, f"{name}_s", f"{name}_z"]
    made = node("DequantizeLinear", inputs, [f"{name}_f"], **attributes)
    return made, {f"{name}_s": np.float32(scale), f"{name}_z": zero}


def around(
    body: list[Any],
    sources: dict[str, tuple[float, Any]],
    weights: dict[str, Any],
    target: tuple[float, Any],
    shapes: dict[str, tuple[int, ...]],
) -> Any:
    """Return ``body`` between nodes that dequantise and quantise."""
    nodes, parameters = [], dict(weights)
    for name, (scale, zero) in sources.items():
        made, more = dequantized(name, scale, zero)
        nodes.append(made)
        parameters |= more
    parameters |= {"y_s": np.float32(target[0]), "y_z": target[1]}
    last = node("QuantizeLinear", ["y_f", "y_s", "y_z"], ["y"])
    dtype = np.asarray(target[1]).dtype
    return model(
        [*nodes, *body, last],
        [
            tensor(name, shape, np.asarray(sources[name][1]).dtype)
            for name, shape in shapes.items()
        ],
        [tensor("y", None, dtype)],
        parameters,
    )


SMALL = 127


async def compare(
    proto: Any, expected: list[str] | None = None, lsb: int = LSB, most: int = 255
) -> None:
    """Run a model on random bytes, up to ``most``, here and in ONNX Runtime.

    Its integer kernels add two products of uint8 and int8 in 16 bits, and saturate,
    where the processor has no instruction for four: not with ``SMALL`` ones.
    """
    named = imported(proto)
    if expected is not None:
        assert operations(named) == expected
    inputs = {}
    for info in named.inputs:
        limits = np.iinfo(info.dtype)
        inputs[info.name] = RNG.integers(
            limits.min,
            min(limits.max, most),
            info.dimensions,
            info.dtype,
            endpoint=True,
        )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    wanted = session.run(None, inputs)[0]
    found = next(iter((await results(named, **inputs)).values()))
    assert found.dtype == wanted.dtype
    difference = found.astype(int).reshape(wanted.shape) - wanted.astype(int)
    assert abs(difference).max() <= lsb
    assert wanted.std() > 1


def filters(shape: tuple[int, ...], channels: int, zero: Any, axis: int = 0) -> Any:
    """Return a constant of int8 or uint8 with its nodes and parameters."""
    dtype = np.asarray(zero).dtype
    limits = np.iinfo(dtype)
    codes = RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if channels == 1:
        scales, zeros = np.float32(0.01), zero
        made, more = dequantized("w", scales, zeros)
    else:
        scales = RNG.uniform(0.005, 0.02, channels).astype(np.float32)
        zeros = np.full(channels, zero, dtype)
        made, more = dequantized("w", scales, zeros, axis=axis)
    return [made], {"w": codes, **more}


@pytest.mark.parametrize("activation", [None, "Relu", "Clip"])
@pytest.mark.parametrize(
    ("zero", "weight_zero", "channels"),
    [
        (np.uint8(121), np.int8(0), 6),
        (np.int8(-7), np.int8(0), 6),
        (np.int8(-7), np.int8(0), 1),
        (np.uint8(121), np.uint8(117), 1),
        (np.uint8(121), np.int8(3), 1),
        (np.int8(-7), np.uint8(130), 1),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
async def test_convolutions_are_computed_on_bytes(
    zero: Any, weight_zero: Any, channels: int, groups: int, activation: str | None
) -> None:
    nodes, weights = filters((6, 4 // groups, 3, 3), channels, weight_zero)
    weights["b"] = RNG.standard_normal(6).astype(np.float32)
    out = "y_f" if activation is None else "c"
    nodes.append(
        node("Conv", ["x_f", "w_f", "b"], [out], pads=[1, 1, 1, 1], group=groups)
    )
    if activation == "Relu":
        nodes.append(node("Relu", ["c"], ["y_f"]))
    elif activation == "Clip":
        nodes.append(node("Clip", ["c", "low", "high"], ["y_f"]))
        weights |= {"low": np.float32(0), "high": np.float32(6)}
    proto = around(
        nodes, {"x": (0.02, zero)}, weights, (0.05, zero), {"x": (2, 4, 5, 7)}
    )
    first = "CONV_2D" if groups == 1 else "GROUPED_CONV_2D"
    rest = {None: [], "Relu": ["MAXIMUM"], "Clip": ["MAXIMUM", "MINIMUM"]}[activation]
    await compare(proto, [first, *rest])


@pytest.mark.parametrize("opset", [13, 17, 19])
@pytest.mark.parametrize("channels", [1, 6])
async def test_biases_are_integers_and_zero_points_of_channels_any(
    channels: int, opset: int
) -> None:
    nodes, weights = filters((6, 4, 3, 3), channels, np.uint8(117))
    scales = np.full(channels, 0.001, np.float32)
    bias = {"b": RNG.integers(-900, 900, 6, np.int32), "b_s": scales}
    if channels == 1:
        bias["b_s"] = scales[0]
    nodes.append(node("DequantizeLinear", ["b", "b_s"], ["b_f"], axis=0))
    nodes.append(node("Conv", ["x_f", "w_f", "b_f"], ["y_f"]))
    form = 0.02, np.uint8(121)
    sources, shapes = {"x": form}, {"x": (2, 4, 5, 7)}
    proto = around(nodes, sources, {**weights, **bias}, form, shapes)
    proto.opset_import[0].version = opset
    await compare(proto)


@pytest.mark.parametrize("opset", [13, 17, 19])
async def test_the_evaluator_dequantises_by_parts(opset: int) -> None:
    scales = {"x_s": np.float32([0.1, 0.2, 0.3]), "x_z": np.uint8([3, 4, 5])}
    made = node("DequantizeLinear", ["x", "x_s", "x_z"], ["f"], axis=1)
    back = node("QuantizeLinear", ["f", "x_s", "x_z"], ["y"], axis=1)
    x, y = tensor("x", (2, 3, 4), np.uint8), tensor("y", None, np.uint8)
    await compare(model([made, back], [x], [y], scales, opset=opset), lsb=0)


async def test_depthwise_convolutions_are_computed_on_bytes() -> None:
    nodes, weights = filters((8, 1, 3, 3), 8, np.int8(0))
    nodes.append(node("Conv", ["x_f", "w_f"], ["y_f"], group=4, strides=[2, 1]))
    target = (0.05, np.uint8(120))
    proto = around(
        nodes, {"x": (0.02, np.uint8(121))}, weights, target, {"x": (1, 4, 7, 7)}
    )
    await compare(proto, ["DEPTHWISE_CONV_2D"])


async def test_signals_are_convolved_on_bytes() -> None:
    nodes, weights = filters((6, 4, 3), 6, np.int8(0))
    nodes.append(node("Conv", ["x_f", "w_f"], ["y_f"], strides=[2]))
    target = (0.05, np.int8(-3))
    proto = around(nodes, {"x": (0.02, np.int8(5))}, weights, target, {"x": (1, 4, 17)})
    await compare(proto, ["RESHAPE", "CONV_2D", "RESHAPE"])


@pytest.mark.parametrize("weight_zero", [np.uint8(117), np.int8(0)])
async def test_products_with_constants_are_computed_on_bytes(weight_zero: Any) -> None:
    nodes, weights = filters((12, 9), 1, weight_zero)
    nodes.append(node("MatMul", ["x_f", "w_f"], ["y_f"]))
    proto = around(
        nodes,
        {"x": (0.02, np.uint8(121))},
        weights,
        (0.07, np.uint8(128)),
        {"x": (4, 12)},
    )
    await compare(proto, ["FULLY_CONNECTED"])


@pytest.mark.parametrize(
    ("type_", "target", "expected"),
    [
        ("Add", 0.05, ["ADD"]),
        ("Sub", 0.05, ["SUB"]),
        ("Mul", 0.01, ["MUL"]),
        # The HAL does not multiply to so fine a scale.
        ("Mul", 0.0004, ["DEQUANTIZE", "DEQUANTIZE", "MUL", "QUANTIZE"]),
    ],
)
async def test_two_tensors_are_combined_on_bytes(
    type_: str, target: float, expected: list[str]
) -> None:
    sources = {"x": (0.02, np.uint8(121)), "z": (0.03, np.uint8(100))}
    proto = around(
        [node(type_, ["x_f", "z_f"], ["y_f"])],
        sources,
        {},
        (target, np.uint8(127)),
        {"x": (2, 3, 4), "z": (3, 1)},
    )
    await compare(proto, expected)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node("MaxPool", ["x_f"], ["y_f"], kernel_shape=[2, 2]), ["MAX_POOL_2D"]),
        (
            node("AveragePool", ["x_f"], ["y_f"], kernel_shape=[3, 3]),
            ["AVERAGE_POOL_2D"],
        ),
        (node("GlobalAveragePool", ["x_f"], ["y_f"]), ["MEAN"]),
        (node("Transpose", ["x_f"], ["y_f"], perm=[0, 2, 3, 1]), ["TRANSPOSE"]),
        (node("DepthToSpace", ["x_f"], ["y_f"], blocksize=2), ["DEPTH_TO_SPACE"]),
        (node("Concat", ["x_f", "x_f"], ["y_f"], axis=1), ["CONCATENATION"]),
        (node("Flatten", ["x_f"], ["y_f"]), ["RESHAPE"]),
    ],
)
async def test_bytes_move_as_bytes(made: Any, expected: list[str]) -> None:
    form = (0.02, np.uint8(121))
    proto = around([made], {"x": form}, {}, form, {"x": (2, 4, 6, 6)})
    await compare(proto, expected)


@pytest.mark.parametrize(
    ("type_", "given", "scale", "zero", "operations"),
    [
        ("Sigmoid", 0.03, 1 / 256, 0, ["LOGISTIC"]),
        ("Tanh", 0.03, 1 / 128, 128, ["TANH"]),
        ("Exp", 0.01, 0.02, 0, ["DEQUANTIZE", "EXP", "QUANTIZE"]),
    ],
)
async def test_activations_of_a_fixed_form_and_what_the_hal_has_on_floats_alone(
    type_: str, given: float, scale: float, zero: int, operations: list[str]
) -> None:
    ends = {"x": (given, np.uint8(121))}, {}, (scale, np.uint8(zero)), {"x": (2, 50)}
    await compare(around([node(type_, ["x_f"], ["y_f"])], *ends), operations)


@pytest.mark.parametrize("channels", [1, 6])
async def test_qlinear_convolutions(channels: int) -> None:
    codes = RNG.integers(-128, 127, (6, 4, 3, 3), np.int8, endpoint=True)
    scales = RNG.uniform(0.005, 0.02, channels).astype(np.float32)
    weights = {
        "w": codes,
        "w_s": scales if channels > 1 else scales.reshape(()),
        "w_z": np.zeros(channels if channels > 1 else (), np.int8),
        "b": RNG.integers(-500, 500, 6, np.int32),
        "x_s": np.float32(0.02),
        "x_z": np.uint8(121),
        "y_s": np.float32(0.05),
        "y_z": np.uint8(128),
    }
    order = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z", "b"]
    proto = model(
        [node("QLinearConv", order, ["y"])],
        [tensor("x", (1, 4, 6, 6), np.uint8)],
        [tensor("y", None, np.uint8)],
        weights,
    )
    await compare(proto, ["CONV_2D"], most=SMALL)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
async def test_integer_products_are_exact(dtype: Any) -> None:
    proto = model(
        [node("MatMulInteger", ["x", "w", "x_z", "w_z"], ["y"])],
        [tensor("x", (5, 300), dtype)],
        [tensor("y", None, np.int32)],
        {
            "w": RNG.integers(-128, 127, (300, 7), np.int8, endpoint=True),
            "x_z": dtype(3),
            "w_z": np.int8(-2),
        },
    )
    await compare(proto, lsb=0, most=SMALL)


async def test_dynamic_quantisation_is_right_to_a_step() -> None:
    proto = written(
        "float[3, 40] x => uint8[] y, float[] s, uint8[] z",
        "y, s, z = DynamicQuantizeLinear(x)",
    )
    x = RNG.standard_normal((3, 40)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted = session.run(None, {"x": x})
    found = list((await results(imported(proto), x=x)).values())
    assert abs(found[0].astype(int) - wanted[0].astype(int)).max() <= 1
    np.testing.assert_allclose(found[1].reshape(()), wanted[1], rtol=1e-6)
    assert abs(int(found[2].item()) - int(wanted[2])) <= 1


Q_CONV = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z", "b"]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scales", [1, 8])
async def test_quantised_convolutions_of_signals(groups: int, scales: int) -> None:
    weights = {
        "x_s": np.float32(0.02), "x_z": np.uint8(120),
        "w": RNG.integers(-127, 127, (8, 4 // groups, 3), np.int8, endpoint=True),
        "w_s": np.full(scales, 0.015, np.float32)[() if scales == 1 else slice(None)],
        "w_z": np.int8(np.zeros(scales))[() if scales == 1 else slice(None)],
        "y_s": np.float32(0.05), "y_z": np.uint8(128),
        "b": RNG.integers(-500, 500, 8, np.int32),
    }  # fmt: skip
    for name in ("w_s", "w_z"):
        weights[name] = weights[name].reshape(() if scales == 1 else (scales,))
    proto = model(
        [node("QLinearConv", Q_CONV, ["y"], group=groups, pads=[1, 2], strides=[2])],
        [tensor("x", (2, 4, 11), np.uint8)],
        [tensor("y", None, np.uint8)],
        weights,
    )
    await compare(proto, most=SMALL)


@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [
        ((1, 4, 6, 6), (5, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 70, 5, 5), (3, 70, 3, 3), {"strides": [2, 2]}),
        ((2, 4, 17), (6, 4, 5), {"pads": [2, 2], "dilations": [2]}),
        ((1, 300, 9), (4, 300, 1), {}),
        ((1, 6, 9), (6, 1, 3), {"group": 6}),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
async def test_integer_convolutions_are_exact_however_deep(
    shape: tuple[int, ...], kernel: tuple[int, ...], options: Any, dtype: Any
) -> None:
    limits = np.iinfo(dtype)
    weights = RNG.integers(limits.min, limits.max, kernel, dtype, endpoint=True)
    parameters = {"w": weights, "x_z": np.uint8(77), "w_z": dtype(3)}
    proto = model(
        [node("ConvInteger", ["x", "w", "x_z", "w_z"], ["y"], **options)],
        [tensor("x", shape, np.uint8)],
        [tensor("y", None, np.int32)],
        parameters,
    )
    await compare(proto, lsb=0)


@pytest.mark.parametrize("zero", [np.uint8(131), np.int8(-9)])
@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ([node("Cast", ["q"], ["y"], to=6)], np.int32),
        ([node("Identity", ["q"], ["p"]), node("Cast", ["p"], ["y"], to=6)], np.int32),
        ([node("MatMulInteger", ["q", "w"], ["y"])], np.int32),
        ([node("Max", ["q", "c"], ["y"])], None),
        ([node("Where", ["is", "q", "c"], ["y"])], None),
        ([node("Concat", ["q", "c"], ["y"], axis=0)], None),
        ([node("Concat", ["q", "r"], ["y"], axis=0)], None),
        ([node("Add", ["q", "c"], ["y"])], None),
        (
            [
                node("DequantizeLinear", ["q", "other", "z"], ["f"]),
                node("QuantizeLinear", ["f", "s", "z"], ["y"]),
            ],
            None,
        ),
    ],
    ids=lambda value: value[-1].op_type if isinstance(value, list) else None,
)
async def test_other_operators_read_bytes_as_they_are(
    body: list[Any], dtype: Any, zero: Any
) -> None:
    kind = np.asarray(zero).dtype
    weights = {
        "s": np.float32(0.03), "z": zero, "t": np.float32(0.01),
        "other": np.float32(0.05),
        "c": RNG.integers(0, 100, (4, 6)).astype(kind),
        "is": RNG.integers(0, 2, (4, 6)).astype(np.bool_),
        "w": RNG.integers(-100, 100, (6, 5)).astype(np.int8),
    }  # fmt: skip
    read = {name for made in body for name in made.input}
    first = [node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    if "r" in read:
        first.append(node("QuantizeLinear", ["x", "t", "z"], ["r"]))
    read |= {name for made in first for name in made.input}
    proto = model(
        [*first, *body],
        [tensor("x", (4, 6))],
        [tensor("y", None, dtype or kind)],
        {name: array for name, array in weights.items() if name in read},
    )
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    wanted = session.run(None, {"x": x})[0]
    found = (await results(imported(proto), x=x))["y"]
    difference = found.astype(int).reshape(wanted.shape) - wanted.astype(int)
    steps = 1 if "f" in {name for made in body for name in made.output} else 0
    assert abs(difference).max() <= steps
    assert wanted.std() > 1


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("Sigmoid", {}, (2, 3, 8, 8)),
        ("Softmax", {"axis": 3}, (2, 3, 4, 4)),
        ("AveragePool", {"kernel_shape": [3, 3]}, (2, 3, 8, 8)),
        ("GlobalAveragePool", {}, (2, 3, 7, 7)),  # means of 49 steps are no ties
    ],
)
async def test_a_result_is_rounded_once(
    name: str, options: Any, shape: tuple[int, ...]
) -> None:
    proto = around(
        [node(name, ["x_f"], ["y_f"], **options)],
        {"x": (0.05, np.int8(3))},
        {},
        (0.005, np.int8(-20)),
        {"x": shape},
    )
    await compare(proto, lsb=0)


async def test_one_scale_has_no_axis() -> None:
    x = np.array([[1, -2, 3]], np.float32)
    weights = {"b": np.array([4, 5, 6], np.int32), "s": np.array([0.5], np.float32)}
    nodes = [
        node("DequantizeLinear", ["b", "s"], ["r"]),  # whose axis is 1
        node("Add", ["x", "r"], ["y"]),
    ]
    file = model(nodes, [tensor("x", [1, 3])], ["y"], weights)
    found = await results(imported(file), x=x)
    np.testing.assert_array_equal(found["y"], [[3, 0.5, 6]])
