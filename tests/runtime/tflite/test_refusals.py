"""Files that cannot be imported say why."""

from itertools import pairwise

import numpy as np
import pytest

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError, branches
from asyncnn.runtime.tflite.importer import CONVERTERS
from asyncnn.runtime.tflite.scope import NOT_IMPORTED
from tests.runtime.tflite.cases import F32, I8, const, f32, i8, i32, ramp
from tests.runtime.tflite.files import NUMBERS, Op, T, given, write
from tests.runtime.tflite.graphs import conv_2d, convolution, imported
from tests.runtime.tflite.importing import import_tflite

SPARE, SPARE4, ONES4 = f32(2, 3), f32(1, 2, 2, 2), ramp((2, 1, 1, 2))
UNSUPPORTED = {
    "operator without a HAL form": Op("UNIQUE", [f32(3)], [f32(3), i32(3)]),
    "fused tanh": Op(
        "ADD", [SPARE, SPARE], [f32(2, 3)], "AddOptions", {"FusedActivationFunction": 4}
    ),
    "fused activation of integers": Op(
        "ADD", [i32(3), i32(3)], [i32(3)], "AddOptions", {"FusedActivationFunction": 1}
    ),
    "empty": Op("ABS", [f32(2, 0)], [f32(2, 0)]),
    "narrow range": Op(
        "FAKE_QUANT",
        [SPARE],
        [f32(2, 3)],
        "FakeQuantOptions",
        {"Min": -1.0, "Max": 1.0, "NumBits": 8, "NarrowRange": True},
    ),
    "scattered sums": Op(
        "SCATTER_ND", [const([[0], [0]]), f32(2, 3), const([2, 3])], [f32(2, 3)]
    ),
    "computed places": Op("SCATTER_ND", [i32(2, 1), SPARE, const([2, 3])], [f32(2, 3)]),
    "computed shifts": Op("RIGHT_SHIFT", [i32(3), i32(3)], [i32(3)]),
    "quantised int8 cast": Op("CAST", [i8(3)], [i32(3)], "CastOptions"),
    "sums of int8": Op("CUMSUM", [i8(3), const(0)], [i8(3)]),
    "later batches": Op(
        "GATHER",
        [f32(2, 3, 4), const([[0], [1]])],
        [f32(2, 3, 1)],
        "GatherOptions",
        {"BatchDims": 1, "Axis": 2},
    ),
    "computed axis": Op("ARG_MAX", [SPARE, i32(1)], [i32(2)]),
    "activations of 16 bits": Op(
        "ADD", [T(np.int16, (3,), scale=(1.0,))] * 2, [T(np.int16, (3,), scale=(1.0,))]
    ),
    "result of 16 bits": Op("QUANTIZE", [i8(3)], [T(np.int16, (3,), scale=(1.0,))]),
    "float remainder": Op("FLOOR_MOD", [SPARE, SPARE], [f32(2, 3)]),
    "shuffled weights": Op(
        "FULLY_CONNECTED",
        [SPARE, ramp((4, 3)), None],
        [f32(2, 4)],
        "FullyConnectedOptions",
        {"WeightsFormat": 1},
    ),
    "grouped and dilated": conv_2d(
        f32(1, 4, 4, 4), ramp((2, 1, 1, 2)), None, f32(1, 4, 4, 2), DilationWFactor=2
    ),
    "convolution weights per column": conv_2d(
        i8(1, 4, 4, 2),
        ramp((2, 1, 2, 2), I8, scale=(1, 2), axis=2),
        None,
        i8(1, 4, 4, 2),
    ),
    "quantised bias that is computed": conv_2d(
        i8(1, 4, 4, 2), ramp((2, 1, 1, 2), I8, scale=(1,)), i32(2), i8(1, 4, 4, 2)
    ),
    "weights per input": Op(
        "FULLY_CONNECTED",
        [i8(2, 3), ramp((4, 3), I8, scale=(1, 2, 3), axis=1), None],
        [i8(2, 4)],
        "FullyConnectedOptions",
    ),
    "batches along one axis": Op(
        "SPACE_TO_BATCH_ND", [i32(1, 4, 2), const([2]), const([[0, 0]])], [i32(2, 2, 2)]
    ),
}

CONTRADICTIONS = {
    "padding": (conv_2d(SPARE4, ONES4, None, SPARE4, Padding=7), "padding 7"),
    "depth": (
        Op("DEPTHWISE_CONV_2D", [SPARE4, ramp((1, 1, 1, 3)), None], [SPARE4]),
        "2 channels cannot become 3",
    ),
    "rank of weights": (
        Op("FULLY_CONNECTED", [SPARE, ramp((4, 3, 1)), None], [f32(2, 4)]),
        "weights of shape",
    ),
    "depth of weights": (
        Op("FULLY_CONNECTED", [SPARE, ramp((4, 5)), None], [f32(2, 4)]),
        "rows of 5 weights",
    ),
    "size of bias": (
        conv_2d(SPARE4, ONES4, ramp((3,)), SPARE4),
        "3 elements for 2 channels",
    ),
    "axis": (Op("ARG_MAX", [SPARE, const(2)], [i32(2)]), "axis 2 is outside of rank 2"),
    "rank of images": (
        Op("RESIZE_BILINEAR", [SPARE, const([1, 1])], [SPARE]),
        "rank 2, not 4",
    ),
    "slope": (
        Op("LEAKY_RELU", [SPARE], [SPARE], "LeakyReluOptions", {"Alpha": float("nan")}),
        "slope nan",
    ),
    "large int64": (
        Op("TILE", [SPARE, const([1, 2**40], np.int64)], [SPARE]),
        "beyond 32 bits",
    ),
    "missing input": (Op("GATHER", [SPARE], [SPARE]), "input 1 is missing"),
    "missing output": (Op("ABS", [SPARE], []), "never computed"),
    "lengths": (
        Op("BROADCAST_TO", [SPARE, const([4, 3])], [f32(4, 3)]),
        r"\[2, 3\] cannot be broadcast to \[4, 3\]",
    ),
    "ranks": (
        Op("BROADCAST_TO", [SPARE, const([3])], [f32(3)]),
        r"\[2, 3\] cannot be broadcast to \[3\]",
    ),
    "types": (Op("DEQUANTIZE", [i8(3)], [i32(3)]), "TENSOR_INT32"),
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("operator", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
    )
    def test_an_operator_that_contradicts_itself_is_refused(
        self, operator: Op, reason: str
    ) -> None:
        out = operator.outputs or [f32(1)]
        file = write([operator], given(operator), out)
        with pytest.raises(AsyncnnError, match=reason):
            import_tflite(from_buffer(file))

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

    @pytest.mark.parametrize(("units", "layers"), [(2**28, 1), (2**22, 5)])
    def test_biases_of_absurd_size_are_not_made_up(
        self, units: int, layers: int
    ) -> None:
        x, weights = f32(1, 1), f32(units, 1)
        operators = [
            Op("FULLY_CONNECTED", [x, weights, None], [f32(1, units)])
            for _ in range(layers)
        ]
        outputs = [operator.outputs[0] for operator in operators]
        file = write(operators, [x, weights], outputs)
        with pytest.raises(InvalidArgumentError, match="that the file does not hold"):
            import_tflite(from_buffer(file))

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

    def test_another_schema_version_is_refused(self) -> None:
        file = write([Op("ABS", [SPARE], [f32(2, 3)])], [SPARE], [SPARE], version=2)
        with pytest.raises(InvalidArgumentError, match="version 2"):
            import_tflite(from_buffer(file))


class TestLists:
    """A file is refused once, for all that is unsupported in it."""

    def file(self) -> bytes:
        x, a, b, c, y = f32(3), f32(3), f32(3), f32(3), f32(3)
        numbers = i32(3)
        operators = [
            Op("TwistTensor", [x], [a]),
            Op("ABS", [a], [b]),
            Op("UNIQUE", [b], [c, numbers]),
            Op("FLOOR_MOD", [c, b], [d := f32(3)]),
            Op("TwistTensor", [d], [y]),
        ]
        return write(operators, [x], [y])

    def test_all_operators_are_listed_with_their_places(self) -> None:
        with pytest.raises(UnsupportedOperatorError) as caught:
            import_tflite(from_buffer(self.file()))
        found = [(each.name, each.index) for each in caught.value.operators]
        assert found == [
            ("CUSTOM TwistTensor", 0),
            ("UNIQUE", 2),
            ("FLOOR_MOD", 3),
            ("CUSTOM TwistTensor", 4),
        ]
        message = str(caught.value)
        assert message.startswith("4 operators cannot be imported: 2 x CUSTOM Twist")
        for each in caught.value.operators:
            assert each.place in message
            assert each.reason in message
        assert "extensions=[...]" in caught.value.hint

    def test_all_that_read_text_are_listed(self) -> None:
        text, found = T(np.bytes_, (3,)), f32(3)
        operators = [Op("Normalize", [text], [found]), Op("Count", [text], [f32(3)])]
        with pytest.raises(UnsupportedOperatorError) as caught:
            imported(*operators)
        names = [each.name for each in caught.value.operators]
        assert names == ["CUSTOM Normalize", "CUSTOM Count"]
        assert "2 operators cannot be imported" in caught.value.message
        assert "elements of type STRING" in caught.value.message

    def test_what_reads_a_refused_result_is_no_refusal_itself(self) -> None:
        x, y = f32(3), f32(3)
        operators = [
            Op("UNIQUE", [x], [a := f32(3), i32(3)]),
            Op("ABS", [a], [b := f32(3)]),
            Op("EXP", [b], [y]),
        ]
        with pytest.raises(UnsupportedOperatorError) as caught:
            import_tflite(from_buffer(write(operators, [x], [y])))
        assert [each.name for each in caught.value.operators] == ["UNIQUE"]

    def test_damage_goes_before_refusals(self) -> None:
        x, y = f32(3), f32(3)
        operators = [Op("UNIQUE", [x], [a := f32(3), i32(3)]), Op("GATHER", [a], [y])]
        with pytest.raises(InvalidArgumentError, match="input 1 is missing"):
            import_tflite(from_buffer(write(operators, [x], [y])))

    def test_a_long_list_is_cut_in_the_message_only(self) -> None:
        chain = [f32(3) for _ in range(101)]
        operators = [Op("TwistTensor", [x], [y]) for x, y in pairwise(chain)]
        with pytest.raises(UnsupportedOperatorError) as caught:
            import_tflite(from_buffer(write(operators, chain[:1], chain[-1:])))
        assert len(caught.value.operators) == 100
        assert "100 x CUSTOM TwistTensor" in caught.value.message
        assert len(caught.value.message) < 2000

    @pytest.mark.parametrize("name", sorted(NOT_IMPORTED))
    def test_each_other_builtin_is_refused_by_name(self, name: str) -> None:
        if name in ("CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES"):
            return  # no operator of a file has this number
        with pytest.raises(UnsupportedOperatorError) as caught:
            imported(Op(name, [f32(3)], [f32(3)]))
        assert caught.value.operators[0].name == name
        assert NOT_IMPORTED[name] in caught.value.message

    def test_each_builtin_is_imported_or_refused(self) -> None:
        flow = set(branches.CONVERTERS)
        imported_names = {n for n in CONVERTERS if not n.startswith("CUSTOM")} | flow
        assert not imported_names & set(NOT_IMPORTED)
        assert imported_names | set(NOT_IMPORTED) == set(NUMBERS)
