"""Importing whole TFLite files, sound ones and others."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.types import (
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.model_file import load
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.runtime.tflite.cases import F32, I8, I32, const, f32, i8, i32, ramp
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.graphs import WINDOW, convolution, imported
from tests.runtime.tflite.importing import import_tflite

SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL

LSTM_OPERATIONS = {
    "trained_lstm_int8": {
        "QUANTIZED_LSTM": 28,
        "SPLIT": 1,
        "CONCATENATION": 1,
        "RESHAPE": 3,
        "FULLY_CONNECTED": 1,
        "SOFTMAX": 1,
    },
    "dtln_noise_suppression": {
        "QUANTIZED_LSTM": 2,
        "RESHAPE": 5,
        "FULLY_CONNECTED": 1,
        "LOGISTIC": 1,
    },
}
"""Operations of the models whose LSTM layers are integer: the HAL has only steps."""


def operand_of(named: NamedModel, operation: int, index: int) -> Operand:
    main = named.model.main
    return main.operands[main.operations[operation].inputs[index]]


def names_of(named: NamedModel) -> list[str]:
    return [OperationType(op.type).name for op in named.model.main.operations]


def readme_rows(shared: Path) -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)\.tflite` \|(.*)\|$", readme(shared), re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


def readme(shared: Path) -> str:
    return (shared / "models" / "README.md").read_text()


def assert_described(info: TensorInfo, text: str) -> None:
    dtype, dimensions = text.split()[:2]
    assert info.dtype == np.dtype(dtype)
    assert info.dimensions == tuple(map(int, dimensions.split("x")))
    if "[" in text:
        scale, zero_point = text.split("[")[1].rstrip("]").split(",")
        assert info.scale == pytest.approx(float(scale), rel=1e-3)
        assert info.zero_point == int(zero_point)


class TestTrainedModels:
    @pytest.mark.parametrize(
        "name",
        [
            "ad01_fp32",
            "hello_world_float",
            "hello_world_int8",
            "kws_ref_model",
            "kws_ref_model_float32",
            "micro_speech_quantized",
            "person_detect",
            "pretrainedResnet",
            "trained_lstm",
            "vww_96_float",
            "vww_96_int8",
        ],
    )
    def test_a_model_has_the_operators_and_tensors_that_are_documented(
        self, shared: Path, name: str
    ) -> None:
        _, _, input_, output, operators = readme_rows(shared)[name]
        named = load(shared / "models" / f"{name}.tflite", strict=True)
        counted = Counter(names_of(named))
        if name == "kws_ref_model_float32":
            assert counted.pop("DEQUANTIZE") == 5
        assert counted == {
            operator: int(count)
            for count, operator in re.findall(r"(\d+) (\w+)", operators)
        }
        assert_described(named.inputs[0], input_)
        assert_described(named.outputs[0], output)

    @pytest.mark.parametrize("name", LSTM_OPERATIONS)
    def test_an_integer_lstm_becomes_its_steps(self, shared: Path, name: str) -> None:
        _, _, input_, output, _ = readme_rows(shared)[name]
        named = load(shared / "models" / f"{name}.tflite", strict=True)
        assert Counter(names_of(named)) == LSTM_OPERATIONS[name]
        assert_described(named.inputs[0], input_)
        assert_described(named.outputs[0], output)

    @pytest.mark.parametrize("name", ["vww_96_float", "vww_96_int8", "person_detect"])
    def test_weights_stay_in_the_mapped_file(self, shared: Path, name: str) -> None:
        path = shared / "models" / f"{name}.tflite"
        named = load(path, strict=True)
        (pool,) = named.model.pools
        assert pool.name == "mmap_fd"
        assert view(pool) == path.read_bytes()
        large = [
            operand
            for operand in named.model.main.operands
            if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE
        ]
        assert len(large) > 20
        copied = len(named.model.operand_values)
        assert sum(operand.location.length for operand in large) > 100 * copied

    def test_float_convolutions_on_int8_weights_dequantise_them(
        self, shared: Path
    ) -> None:
        named = load(shared / "models" / "kws_ref_model_float32.tflite", strict=True)
        for operation in named.model.main.operations:
            if operation.type == OperationType.DEQUANTIZE:
                weights = named.model.main.operands[operation.inputs[0]]
                assert weights.lifetime == OperandLifeTime.CONSTANT_REFERENCE
                assert weights.type == SIGNED


class TestQuantisation:
    def test_a_per_channel_filter_keeps_its_scales_and_its_bias_has_none(self) -> None:
        weights = ramp((2, 1, 1, 3), I8, scale=(0.5, 0.25))
        bias = ramp((2,), I32, scale=(0.025, 0.0125), axis=3)
        named = convolution(i8(1, 2, 2, 3), weights, bias, i8(1, 2, 2, 2))
        filter_ = operand_of(named, 0, 1)
        assert filter_.type == PER_CHANNEL
        assert filter_.extra_params == SymmPerChannelQuantParams((0.5, 0.25), 0)
        assert operand_of(named, 0, 2).scale == 0

    def test_a_depthwise_filter_is_quantised_along_axis_3(self) -> None:
        weights = ramp((1, 1, 1, 2), I8, scale=(0.5, 0.25), axis=3)
        operator = Op(
            "DEPTHWISE_CONV_2D",
            [i8(1, 2, 2, 2), weights, ramp((2,), I32)],
            [i8(1, 2, 2, 2)],
            "DepthwiseConv2DOptions",
            WINDOW | {"DepthMultiplier": 1},
        )
        params = operand_of(imported(operator), 0, 1).extra_params
        assert params == SymmPerChannelQuantParams((0.5, 0.25), 3)

    def test_a_filter_of_one_scale_is_asymmetric(self) -> None:
        weights = ramp((2, 1, 1, 3), I8, scale=(0.5,))
        named = convolution(i8(1, 2, 2, 3), weights, None, i8(1, 2, 2, 2))
        assert operand_of(named, 0, 1).type == SIGNED

    def test_a_bias_has_the_product_of_the_scales_whatever_the_file_says(self) -> None:
        weights = ramp((2, 1, 1, 3), I8, scale=(0.3,))
        bias = ramp((2,), I32, scale=(123.0,))
        named = convolution(
            i8(1, 2, 2, 3, scale=0.1), weights, bias, i8(1, 2, 2, 2, scale=9.0)
        )
        assert operand_of(named, 0, 2).scale == np.float32(0.1) * np.float32(0.3)

    @pytest.mark.parametrize("units", [2, 40])
    def test_scales_of_all_channels_are_kept(self, units: int) -> None:
        scales = tuple(1 / (1 + channel) for channel in range(units))
        weights = ramp((units, 1, 1, 3), I8, scale=scales)
        bias = ramp((units,), I32, scale=scales)
        named = convolution(i8(1, 2, 2, 3), weights, bias, i8(1, 2, 2, units))
        kept = tuple(np.array(scales, np.float32).tolist())
        params = operand_of(named, 0, 1).extra_params
        assert params == SymmPerChannelQuantParams(kept, 0)
        hash(params)

    @pytest.mark.parametrize("scales", [(0.5,), (0.5, 0.25)])
    def test_a_missing_bias_becomes_zeros(self, scales: tuple[float, ...]) -> None:
        weights = ramp((2, 1, 1, 3), I8, scale=scales)
        named = convolution(i8(1, 2, 2, 3), weights, None, i8(1, 2, 2, 2))
        bias = operand_of(named, 0, 2)
        assert (bias.type, bias.dimensions) == (OperandType.TENSOR_INT32, (2,))
        start = bias.location.offset
        assert not any(named.model.operand_values[start : start + 8])

    def test_a_fixed_output_quantisation_is_made_when_the_file_has_another(
        self,
    ) -> None:
        named = imported(Op("LOGISTIC", [i8(1, 4)], [i8(1, 4, scale=0.5, zero=1)]))
        assert names_of(named) == ["LOGISTIC", "DEQUANTIZE", "QUANTIZE"]
        main = named.model.main
        exact = main.operands[main.operations[0].outputs[0]]
        assert (exact.scale, exact.zero_point) == (1 / 256, -128)

    def test_bytes_without_quantisation_stand_for_themselves(self) -> None:
        named = imported(Op("RELU", [T(np.uint8, (4,))], [T(np.uint8, (4,))]))
        assert (named.inputs[0].scale, named.inputs[0].zero_point) == (1.0, 0)


class TestGraphs:
    def test_names_are_those_of_the_tensors_and_unique(self) -> None:
        x, y = T(F32, (2,), name="x"), T(F32, (2,), name="x")
        operator = Op("ADD", [x, y], [T(F32, (2,), name="sum")], "AddOptions")
        named = import_tflite(from_buffer(write([operator], [x, y], operator.outputs)))
        assert [info.name for info in named.inputs] == ["x", "x_1"]
        assert named.outputs[0].name == "sum"

    def test_an_output_that_is_listed_twice_has_two_names(self) -> None:
        x, y = T(F32, (2,), name="x"), T(F32, (2,), name="y")
        named = import_tflite(from_buffer(write([Op("ABS", [x], [y])], [x], [y, y])))
        assert [info.name for info in named.outputs] == ["y", "y_1"]
        assert names_of(named) == ["ABS", "RESHAPE"]

    def test_what_only_computes_a_shape_is_left_out(self) -> None:
        x, shape, y = f32(2, 3), i32(2), f32(3, 2)
        named = imported(Op("SHAPE", [x], [shape]), Op("RESHAPE", [x, shape], [y]))
        assert names_of(named) == ["RESHAPE"]

    def test_a_shape_that_is_computed_with_is_a_constant(self) -> None:
        x, shape, y = f32(2, 3), i32(2), i32(2)
        other = i32(2)
        operators = [Op("SHAPE", [x], [shape]), Op("ADD", [shape, other], [y])]
        named = import_tflite(from_buffer(write(operators, [x, other], [y])))
        assert names_of(named) == ["ADD"]
        operand = operand_of(named, 0, 0)
        assert operand.lifetime == OperandLifeTime.CONSTANT_COPY

    @pytest.mark.parametrize("copied", ["input", "constant"])
    def test_an_output_that_nothing_computes_is_a_copy(self, copied: str) -> None:
        x, y = f32(2), f32(2)
        other = x if copied == "input" else const([1, 2], F32)
        file = write([Op("ADD", [x, other], [y], "AddOptions")], [x], [y, other])
        named = import_tflite(from_buffer(file))
        assert names_of(named) == ["ADD", "RESHAPE"]
        assert named.outputs[1].dimensions == (2,)

    def test_an_operator_that_cannot_be_imported_is_named_with_its_place(self) -> None:
        x, hidden, y = f32(2), f32(2), T(F32, (2,), name="bent")
        with pytest.raises(UnsupportedOperatorError) as caught:
            imported(Op("ABS", [x], [hidden]), Op("TwistTensor", [hidden], [y]))
        assert str(caught.value) == (
            "operator 1 (CUSTOM TwistTensor), which computes tensor 2 ('bent'): "
            "no extension has this custom operator "
            "(give the one that has: load(path, extensions=[...]))"
        )

    def test_int64_becomes_int32(self) -> None:
        operator = Op("ARG_MAX", [f32(2, 5), const(1)], [T(np.int64, (2,))])
        assert imported(operator).outputs[0].dtype == np.int32

    def test_an_activation_that_cannot_be_fused_becomes_an_operation(self) -> None:
        fields = {"Axis": 0, "FusedActivationFunction": 3}
        x, y = f32(2, 3), f32(4, 3)
        operator = Op("CONCATENATION", [x, x], [y], "ConcatenationOptions", fields)
        assert names_of(imported(operator)) == ["CONCATENATION", "RELU6"]

    def test_weights_behind_the_flatbuffer_are_found(self) -> None:
        weights = ramp((20, 20), behind=True)
        named = imported(Op("ADD", [f32(20, 20), weights], [f32(20, 20)], "AddOptions"))
        location = operand_of(named, 0, 1).location
        pool = view(named.model.pools[location.pool_index])
        assert location.offset == len(pool) - 1600
        assert pool[location.offset :] == weights.data.tobytes()

    def test_equal_sources_are_added_once(self) -> None:
        weights, x = ramp((2, 4)), f32(2, 4)
        hidden = f32(2, 4)
        named = imported(
            Op("ADD", [x, weights], [hidden], "AddOptions"),
            Op("MUL", [hidden, weights], [f32(2, 4)], "MulOptions"),
        )
        assert operand_of(named, 0, 1) is operand_of(named, 1, 1)
        assert operand_of(named, 0, 1).number_of_consumers == 2
