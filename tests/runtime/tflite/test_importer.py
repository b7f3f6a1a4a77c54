"""Importing whole TFLite files, sound ones and others."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tflite

from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import (
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.tflite import (
    UnsupportedOperatorError,
    import_tflite,
    load_tflite,
)
from tests.runtime.tflite.cases import F32, I8, I32, const, f32, i8, i32, ramp
from tests.runtime.tflite.files import Op, T, write

SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
WINDOW = {
    "StrideW": 1,
    "StrideH": 1,
    "DilationWFactor": 1,
    "DilationHFactor": 1,
    "DepthMultiplier": 1,
}


def convolution(x: T, weights: T, bias: T | None, y: T) -> NamedModel:
    fields = {name: value for name, value in WINDOW.items() if name[:5] != "Depth"}
    return imported(Op("CONV_2D", [x, weights, bias], [y], "Conv2DOptions", fields))


def imported(*operators: Op) -> NamedModel:
    inputs = [t for t in operators[0].inputs if t is not None and t.data is None]
    file = write(operators, list(dict.fromkeys(inputs)), operators[-1].outputs)
    return import_tflite(from_buffer(file))


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
            "vww_96_float",
            "vww_96_int8",
        ],
    )
    def test_a_model_has_the_operators_and_tensors_that_are_documented(
        self, shared: Path, name: str
    ) -> None:
        _, _, input_, output, operators = readme_rows(shared)[name]
        named = load_tflite(shared / "models" / f"{name}.tflite")
        counted = Counter(names_of(named))
        if name == "kws_ref_model_float32":
            assert counted.pop("DEQUANTIZE") == 5
        assert counted == {
            operator: int(count)
            for count, operator in re.findall(r"(\d+) (\w+)", operators)
        }
        for info, text in ((named.inputs[0], input_), (named.outputs[0], output)):
            dtype, dimensions = text.split()[:2]
            assert info.dtype == np.dtype(dtype)
            assert info.dimensions == tuple(map(int, dimensions.split("x")))
            if "[" in text:
                scale, zero_point = text.split("[")[1].rstrip("]").split(",")
                assert info.scale == pytest.approx(float(scale), rel=1e-3)
                assert info.zero_point == int(zero_point)

    @pytest.mark.parametrize(
        "name", ["trained_lstm", "trained_lstm_int8", "dtln_noise_suppression"]
    )
    def test_an_unsupported_operator_is_named_with_its_place(
        self, shared: Path, name: str
    ) -> None:
        path = shared / "models" / f"{name}.tflite"
        with pytest.raises(UnsupportedOperatorError) as caught:
            load_tflite(path)
        assert re.match(
            rf"{re.escape(str(path))}: operator 0 \(UNIDIRECTIONAL_SEQUENCE_LSTM\), "
            r"which computes tensor \d+ \('\S+'\): ",
            str(caught.value),
        )

    @pytest.mark.parametrize("name", ["vww_96_float", "vww_96_int8", "person_detect"])
    def test_weights_stay_in_the_mapped_file(self, shared: Path, name: str) -> None:
        path = shared / "models" / f"{name}.tflite"
        named = load_tflite(path)
        (pool,) = named.model.pools
        assert pool.name == "mmap_fd"
        assert view(pool) == path.read_bytes()
        for operand in named.model.main.operands:
            size = np.prod(operand.dimensions) * 4
            if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
                assert operand.location.length <= 128 <= size or size <= 128

    def test_float_convolutions_on_int8_weights_dequantise_them(
        self, shared: Path
    ) -> None:
        named = load_tflite(shared / "models" / "kws_ref_model_float32.tflite")
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
            WINDOW,
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

    def test_what_only_computes_a_shape_is_left_out(self) -> None:
        x, shape, y = f32(2, 3), i32(2), f32(3, 2)
        named = imported(Op("SHAPE", [x], [shape]), Op("RESHAPE", [x, shape], [y]))
        assert names_of(named) == ["RESHAPE"]

    def test_int64_becomes_int32(self) -> None:
        operator = Op("ARG_MAX", [f32(2, 5), const(1)], [T(np.int64, (2,))])
        assert imported(operator).outputs[0].dtype == np.int32

    def test_equal_sources_are_added_once(self) -> None:
        weights, x = ramp((2, 4)), f32(2, 4)
        hidden = f32(2, 4)
        named = imported(
            Op("ADD", [x, weights], [hidden], "AddOptions"),
            Op("MUL", [hidden, weights], [f32(2, 4)], "MulOptions"),
        )
        assert operand_of(named, 0, 1) is operand_of(named, 1, 1)
        assert operand_of(named, 0, 1).number_of_consumers == 2


SPARE = f32(2, 3)
UNSUPPORTED = {
    "unknown operator": Op("CUMSUM", [SPARE], [f32(2, 3)]),
    "fused tanh": Op(
        "ADD",
        [SPARE, SPARE],
        [f32(2, 3)],
        "AddOptions",
        {"FusedActivationFunction": 4},
    ),
    "variable": Op("ABS", [T(F32, (2,), variable=True)], [f32(2)]),
    "empty": Op("ABS", [f32(2, 0)], [f32(2, 0)]),
    "int32 division": Op("DIV", [i32(3), i32(3)], [i32(3)], "DivOptions"),
    "computed axis": Op("ARG_MAX", [SPARE, i32(1)], [i32(2)]),
    "broadcast selection": Op(
        "SELECT_V2", [T(np.bool_, (1, 3)), SPARE, SPARE], [f32(2, 3)]
    ),
    "gathering per batch": Op(
        "GATHER",
        [SPARE, const([[0], [1]])],
        [f32(2, 1)],
        "GatherOptions",
        {"BatchDims": 1, "Axis": 1},
    ),
    "ellipsis": Op(
        "STRIDED_SLICE",
        [SPARE, const([0]), const([1]), const([1])],
        [f32(2, 1)],
        "StridedSliceOptions",
        {"EllipsisMask": 1},
    ),
    "reversing two axes": Op("REVERSE_V2", [SPARE, const([0, 1])], [f32(2, 3)]),
    "shuffled weights": Op(
        "FULLY_CONNECTED",
        [SPARE, ramp((4, 3)), None],
        [f32(2, 4)],
        "FullyConnectedOptions",
        {"WeightsFormat": 1},
    ),
    "weights per input": Op(
        "FULLY_CONNECTED",
        [i8(2, 3), ramp((4, 3), I8, scale=(1, 2, 3), axis=1), None],
        [i8(2, 4)],
        "FullyConnectedOptions",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("operator", UNSUPPORTED.values(), ids=UNSUPPORTED)
    def test_a_variant_without_a_hal_form_is_unsupported(self, operator: Op) -> None:
        with pytest.raises(UnsupportedOperatorError) as caught:
            imported(operator)
        assert operator.name in str(caught.value) or "tensor 0" in str(caught.value)

    @pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")], ids=str)
    def test_a_scale_that_is_not_positive_is_refused(self, scale: float) -> None:
        with pytest.raises(InvalidArgumentError, match="not positive"):
            imported(Op("RELU", [i8(4, scale=scale)], [i8(4)]))

    @pytest.mark.parametrize("zero_point", [-129, 128, 2**40])
    def test_a_zero_point_out_of_range_is_refused(self, zero_point: int) -> None:
        with pytest.raises(InvalidArgumentError, match="zero point"):
            imported(Op("RELU", [i8(4, zero=zero_point)], [i8(4)]))

    @pytest.mark.parametrize(
        ("weights", "reason"),
        [
            (ramp((2, 1, 1, 3), I8, scale=(1, 2, 3)), "3 scales for axis 0"),
            (ramp((2, 1, 1, 3), I8, scale=(1, 2), axis=7), "no axis 7"),
            (ramp((2, 1, 1, 3), I8, scale=(1, 2), axis=-1), "no axis -1"),
            (ramp((2, 1, 1, 3), I8, scale=(1, 2), zero_point=(1, 0)), "zero point 0"),
            (ramp((2, 1, 1, 3), I8, scale=(1, 2), zero_point=(0,)), "1 zero points"),
            (ramp((2, 1, 3), I8, scale=(1,)), "rank 3"),
        ],
    )
    def test_weights_that_contradict_themselves_are_refused(
        self, weights: T, reason: str
    ) -> None:
        with pytest.raises(AsyncnnError, match=reason):
            convolution(i8(1, 2, 2, 3), weights, None, i8(1, 2, 2, 2))

    def test_a_constant_of_the_wrong_size_is_refused(self) -> None:
        tensor = T(F32, (5,), np.zeros(4, F32))
        with pytest.raises(InvalidArgumentError, match="needs 20 bytes"):
            imported(Op("ADD", [f32(5), tensor], [f32(5)], "AddOptions"))

    def test_a_tensor_of_absurd_size_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="32-bit size"):
            imported(Op("ABS", [f32(2**30, 2**30)], [f32(2**30, 2**30)]))

    def test_a_negative_length_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"shape \[2, -3\]"):
            imported(Op("ABS", [f32(2, -3)], [f32(2, -3)]))

    def test_a_bias_of_absurd_size_is_not_made_up(self) -> None:
        operator = Op(
            "FULLY_CONNECTED",
            [f32(1, 1), f32(2**28, 1), None],
            [f32(1, 2**28)],
            "FullyConnectedOptions",
        )
        with pytest.raises(InvalidArgumentError, match="output channels"):
            imported(operator)

    def test_options_of_another_operator_are_refused(self) -> None:
        operator = Op("ADD", [SPARE, SPARE], [f32(2, 3)], "SoftmaxOptions")
        with pytest.raises(InvalidArgumentError, match="another kind"):
            imported(operator)

    def test_a_tensor_that_nothing_computes_is_refused(self) -> None:
        x, y = f32(2), f32(2)
        file = write([Op("ABS", [f32(2)], [y])], [x], [y])
        with pytest.raises(InvalidArgumentError, match="never computed"):
            import_tflite(from_buffer(file))

    def test_a_tensor_that_is_computed_twice_is_refused(self) -> None:
        x, y = f32(2), f32(2)
        with pytest.raises(InvalidArgumentError, match="written twice"):
            imported(Op("ABS", [x], [y]), Op("NEG", [x], [y]))

    def test_an_output_that_is_an_input_is_refused(self) -> None:
        x, y = f32(2), f32(2)
        file = write([Op("ABS", [x], [y])], [x], [y, x])
        with pytest.raises(InvalidArgumentError):
            import_tflite(from_buffer(file))

    def test_several_subgraphs_are_unsupported(self) -> None:
        file = write([Op("ABS", [SPARE], [SPARE])], [SPARE], [SPARE], subgraphs=2)
        with pytest.raises(UnsupportedOperatorError, match="2 subgraphs"):
            import_tflite(from_buffer(file))

    def test_another_schema_version_is_refused(self) -> None:
        file = write([Op("ABS", [SPARE], [f32(2, 3)])], [SPARE], [SPARE], version=2)
        with pytest.raises(InvalidArgumentError, match="version 2"):
            import_tflite(from_buffer(file))


def hybrid_file() -> bytes:
    """Return a small file in which every part of the schema occurs."""
    x, hidden = i8(1, 4, 4, 2), i8(1, 4, 4, 4)
    weights = ramp((4, 1, 1, 2), I8, scale=(0.5, 0.25, 0.1, 0.2))
    bias = ramp((4,), I32, scale=(0.1,) * 4)
    fields = {name: value for name, value in WINDOW.items() if name[:5] != "Depth"}
    operators = [
        Op("CONV_2D", [x, weights, bias], [hidden], "Conv2DOptions", fields),
        Op("RESHAPE", [hidden, const([1, 64])], [y := i8(1, 64)], "ReshapeOptions"),
        Op("DEQUANTIZE", [y], [z := f32(1, 64)]),
        Op("SOFTMAX", [z], [out := f32(1, 64)], "SoftmaxOptions", {"Beta": 1.0}),
    ]
    return write(operators, [x], [out])


def outcome(data: bytes) -> AsyncnnError | None:
    try:
        import_tflite(from_buffer(data))
    except AsyncnnError as error:
        return error
    return None


class TestHostileFiles:
    def test_every_truncation_is_an_error_or_harmless(self) -> None:
        data = hybrid_file()
        assert outcome(data) is None
        errors = [outcome(data[:length]) for length in range(len(data) // 2)]
        assert all(errors)
        for length in range(len(data) // 2, len(data)):
            outcome(data[:length])

    @pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
    def test_any_byte_may_have_any_value(self, byte: int) -> None:
        data = bytearray(hybrid_file())
        for index, original in enumerate(data):
            data[index] = byte
            outcome(bytes(data))
            data[index] = original

    def test_any_word_may_have_an_extreme_value(self) -> None:
        data = hybrid_file()
        for word in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80"):
            for index in range(0, len(data) - 3, 4):
                outcome(data[:index] + word + data[index + 4 :])

    @pytest.mark.parametrize("seed", range(4))
    def test_many_bytes_may_be_wrong_in_a_trained_model(
        self, shared: Path, seed: int
    ) -> None:
        data = (shared / "models" / "hello_world_int8.tflite").read_bytes()
        rng = np.random.default_rng(seed)
        for _ in range(100):
            mutant = np.frombuffer(data, np.uint8).copy()
            places = rng.integers(0, len(data), rng.integers(1, 9))
            mutant[places] = rng.integers(0, 256, len(places), np.uint8)
            outcome(mutant.tobytes())

    def test_operators_that_share_one_long_vector_are_refused_soon(self) -> None:
        builder = tflite.flatbuffers.Builder(1 << 20)
        indexes = builder.CreateNumpyVector(np.zeros(100_000, np.int32))
        tflite.OperatorStart(builder)
        tflite.OperatorAddInputs(builder, indexes)
        operator = tflite.OperatorEnd(builder)
        tflite.TensorStart(builder)
        tensor = tflite.TensorEnd(builder)
        tensors = repeated(builder, tensor, 1)
        operators = repeated(builder, operator, 100_000)
        tflite.SubGraphStart(builder)
        tflite.SubGraphAddTensors(builder, tensors)
        tflite.SubGraphAddOperators(builder, operators)
        graph = repeated(builder, tflite.SubGraphEnd(builder), 1)
        tflite.OperatorCodeStart(builder)
        codes = repeated(builder, tflite.OperatorCodeEnd(builder), 1)
        tflite.BufferStart(builder)
        buffers = repeated(builder, tflite.BufferEnd(builder), 1)
        tflite.ModelStart(builder)
        tflite.ModelAddVersion(builder, 3)
        tflite.ModelAddSubgraphs(builder, graph)
        tflite.ModelAddOperatorCodes(builder, codes)
        tflite.ModelAddBuffers(builder, buffers)
        builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
        with pytest.raises(InvalidArgumentError, match="longer than the file"):
            import_tflite(from_buffer(bytes(builder.Output())))


def repeated(builder: tflite.flatbuffers.Builder, offset: int, count: int) -> int:
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
