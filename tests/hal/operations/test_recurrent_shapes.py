"""Shape rules of recurrent operations: B batches of T steps with SIZE elements."""

from collections.abc import Mapping

import pytest

from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
)
from asyncnn.hal.operations.signature import I32, Q8, Q16S
from asyncnn.hal.types import OperationType
from tests.hal.operations.building import Given, shapes

B, T, SIZE, AUX = 2, 7, 5, 3
UNITS, OUTPUTS = 4, 6


def cell(size: int = SIZE, outputs: int = OUTPUTS) -> list[Given]:
    """Return a cell that has everything, from weights to projection bias."""
    return [
        *[(UNITS, size)] * 4,
        *[(UNITS, outputs)] * 4,
        *[(UNITS,)] * 7,
        (outputs, UNITS),
        (outputs,),
    ]


STATES = [(B, OUTPUTS), (B, UNITS)]
NORM = [(UNITS,)] * 4
STEP = [(B, SIZE), *cell(), *STATES, 0, 0.0, 0.0, *NORM]


def without(inputs: list[Given], *indices: int) -> list[Given]:
    return [None if i in indices else given for i, given in enumerate(inputs)]


def with_(inputs: list[Given], changes: Mapping[int, Given]) -> list[Given]:
    return [changes.get(i, given) for i, given in enumerate(inputs)]


INPUT_GATE = (1, 5, 9, 12, 23)
PEEPHOLES = (9, 10, 11)
PROJECTION = (16, 17)
LAYER_NORM = (23, 24, 25, 26)


class TestLstm:
    def test_its_scratch_holds_all_gates(self) -> None:
        assert shapes(OperationType.LSTM, STEP, 4) == (
            (B, UNITS * 4),
            (B, OUTPUTS),
            (B, UNITS),
            (B, OUTPUTS),
        )
        coupled = without(STEP, *INPUT_GATE)
        assert shapes(OperationType.LSTM, coupled, 4)[0] == (B, UNITS * 3)

    @pytest.mark.parametrize(
        "omitted", [(), PEEPHOLES, (17,), LAYER_NORM, (*INPUT_GATE, 10, 11)]
    )
    def test_features_may_be_left_out_whole(self, omitted: tuple[int, ...]) -> None:
        assert shapes(OperationType.LSTM, without(STEP, *omitted), 4)[3] == (B, OUTPUTS)

    def test_layer_norm_need_not_be_listed(self) -> None:
        assert shapes(OperationType.LSTM, STEP[:23], 4)[3] == (B, OUTPUTS)

    def test_without_projection_it_outputs_its_units(self) -> None:
        inputs = [(B, SIZE), *cell(outputs=UNITS), *[(B, UNITS)] * 2, 0, 0.0, 0.0]
        bare = without(inputs, *PROJECTION)
        assert shapes(OperationType.LSTM, bare, 4)[3] == (B, UNITS)

    @pytest.mark.parametrize(
        ("omitted", "message"),
        [
            ((1,), "the input gate has the superfluous input 5"),
            ((5,), "the input gate misses input 5"),
            ((12,), "the input gate misses input 12"),
            ((9,), "the peephole misses input 9"),
            ((10,), "the peephole misses input 10"),
            ((11,), "the peephole has the superfluous input 10"),
            ((16,), "the projection has a bias, but no weights"),
            ((16, 17), "4 units give 6 outputs without a projection"),
            ((23,), "the layer norm misses input 23"),
            ((25,), "the layer norm misses input 25"),
            ((1, 5, 9, 12), "the layer norm has the superfluous input 23"),
            ((4,), "needs input 4, which is omitted"),
        ],
    )
    def test_a_feature_left_out_in_part_is_refused(
        self, omitted: tuple[int, ...], message: str
    ) -> None:
        with pytest.raises(OperationFailedError, match=message):
            shapes(OperationType.LSTM, without(STEP, *omitted), 4)

    @pytest.mark.parametrize(
        "index", [*range(1, 4), *range(5, 8), *range(9, 20), *range(23, 27)]
    )
    def test_a_tensor_of_another_shape_is_refused(self, index: int) -> None:
        with pytest.raises(OperationFailedError, match=r"has shape \[9, 9\]"):
            shapes(OperationType.LSTM, with_(STEP, {index: (9, 9)}), 4)

    @pytest.mark.parametrize("index", [21, 22])
    def test_a_clip_is_not_negative(self, index: int) -> None:
        with pytest.raises(OperationFailedError, match="a clip is negative"):
            shapes(OperationType.LSTM, with_(STEP, {index: -1.0}), 4)


class TestSequenceLstm:
    @pytest.mark.parametrize(("time_major", "outer"), [(False, (B, T)), (True, (T, B))])
    def test_it_keeps_the_outer_axes(self, time_major: bool, outer: Shape) -> None:
        inputs = [(*outer, SIZE), *cell(), *STATES, 0, 0.0, 0.0, time_major, *NORM]
        type_ = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
        assert shapes(type_, inputs) == ((*outer, OUTPUTS),)
        assert shapes(type_, inputs, 3) == ((*outer, OUTPUTS), *STATES)


def bidirectional(
    merge: bool, time_major: bool = False, backward_size: int = SIZE
) -> list[Given]:
    outer = (T, B) if time_major else (B, T)
    return [
        (*outer, SIZE),
        *cell(),
        *cell(backward_size),
        *STATES,
        *STATES,
        (*outer, AUX),
        *[(UNITS, AUX)] * 8,
        0,
        0.0,
        0.0,
        merge,
        time_major,
        *NORM,
        *NORM,
    ]


AUXILIARY_WEIGHTS = range(40, 48)


class TestBidirectionalLstm:
    TYPE = OperationType.BIDIRECTIONAL_SEQUENCE_LSTM

    @pytest.mark.parametrize("with_states", [False, True])
    @pytest.mark.parametrize(
        ("merge", "results"),
        [(True, ((T, B, 2 * OUTPUTS),)), (False, ((T, B, OUTPUTS),) * 2)],
    )
    def test_directions_are_merged_or_not(
        self, merge: bool, results: tuple[Shape, ...], with_states: bool
    ) -> None:
        expected = (*results, *STATES, *STATES) if with_states else results
        inputs = bidirectional(merge, time_major=True)
        assert shapes(self.TYPE, inputs, len(expected)) == expected

    def test_the_number_of_outputs_follows_the_merging(self) -> None:
        with pytest.raises(OperationFailedError, match="2 outputs contradict"):
            shapes(self.TYPE, bidirectional(merge=True), 2)

    def test_the_auxiliary_input_may_be_missing(self) -> None:
        inputs = without(bidirectional(merge=True), 39, *AUXILIARY_WEIGHTS)
        assert shapes(self.TYPE, inputs) == ((B, T, 2 * OUTPUTS),)

    def test_without_weights_the_backward_cell_takes_the_auxiliary_input(self) -> None:
        inputs = without(bidirectional(True, backward_size=AUX), *AUXILIARY_WEIGHTS)
        assert shapes(self.TYPE, inputs) == ((B, T, 2 * OUTPUTS),)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (without(bidirectional(True), 39), "without an auxiliary input"),
            (without(bidirectional(True), 42), "weights are incomplete"),
            (without(bidirectional(True), *range(44, 48)), "weights are incomplete"),
            (with_(bidirectional(True), {39: (B, 1, AUX)}), "auxiliary_input has"),
            (with_(bidirectional(True), {46: (UNITS, SIZE)}), "input 46 has shape"),
        ],
    )
    def test_an_auxiliary_input_in_part_is_refused(
        self, inputs: list[Given], message: str
    ) -> None:
        with pytest.raises(OperationFailedError, match=message):
            shapes(self.TYPE, inputs)


RNN_CELL = [(UNITS, SIZE), (UNITS, UNITS), (UNITS,), (B, UNITS)]


class TestRnn:
    def test_a_step_outputs_its_state_twice(self) -> None:
        inputs = [(B, SIZE), *RNN_CELL, 0]
        assert shapes(OperationType.RNN, inputs, 2) == ((B, UNITS), (B, UNITS))

    @pytest.mark.parametrize(("time_major", "outer"), [(0, (B, T)), (1, (T, B))])
    def test_a_sequence_keeps_its_outer_axes(
        self, time_major: int, outer: Shape
    ) -> None:
        inputs = [(*outer, SIZE), *RNN_CELL, 0, time_major]
        type_ = OperationType.UNIDIRECTIONAL_SEQUENCE_RNN
        assert shapes(type_, inputs) == ((*outer, UNITS),)
        assert shapes(type_, inputs, 2) == ((*outer, UNITS), (B, UNITS))

    def test_its_major_axis_is_0_or_1(self) -> None:
        with pytest.raises(OperationFailedError, match="time_major is 2"):
            shapes(
                OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
                [(B, T, SIZE), *RNN_CELL, 0, 2],
            )

    @pytest.mark.parametrize("index", [1, 2, 3, 4])
    def test_a_tensor_of_another_shape_is_refused(self, index: int) -> None:
        inputs = with_([(B, SIZE), *RNN_CELL, 0], {index: (9, 9)})
        with pytest.raises(OperationFailedError, match="has shape"):
            shapes(OperationType.RNN, inputs, 2)

    @pytest.mark.parametrize(
        ("auxiliary", "backward_size"),
        [
            ([None, None, None], SIZE),
            ([(B, T, AUX), None, None], AUX),
            ([(B, T, AUX), (UNITS, AUX), (UNITS, AUX)], SIZE),
        ],
    )
    def test_directions_may_be_linked(
        self, auxiliary: list[Given], backward_size: int
    ) -> None:
        backward = [(UNITS, backward_size), *RNN_CELL[1:]]
        inputs = [(B, T, SIZE), *RNN_CELL, *backward, *auxiliary, 0, False]
        type_ = OperationType.BIDIRECTIONAL_SEQUENCE_RNN
        assert shapes(type_, [*inputs, True]) == ((B, T, 2 * UNITS),)
        assert shapes(type_, [*inputs, False], 4) == (
            *((B, T, UNITS),) * 2,
            *((B, UNITS),) * 2,
        )

    @pytest.mark.parametrize(
        "auxiliary",
        [
            [None, (UNITS, AUX), (UNITS, AUX)],
            [(B, T, AUX), (UNITS, AUX), None],
            [(B, T, AUX), (UNITS, SIZE), (UNITS, AUX)],
        ],
    )
    def test_links_in_part_are_refused(self, auxiliary: list[Given]) -> None:
        inputs = [(B, T, SIZE), *RNN_CELL, *RNN_CELL, *auxiliary, 0, False, True]
        with pytest.raises(OperationFailedError):
            shapes(OperationType.BIDIRECTIONAL_SEQUENCE_RNN, inputs)


class TestSvdf:
    RANK, FILTERS, MEMORY = 2, 8, 10
    INPUTS = ((B, SIZE), (8, SIZE), (8, 10), (4,), (B, 80), 2, 0)

    def test_filters_of_a_unit_are_summed(self) -> None:
        expected = ((B, self.MEMORY * self.FILTERS), (B, self.FILTERS // self.RANK))
        assert shapes(OperationType.SVDF, self.INPUTS, 2) == expected
        assert shapes(OperationType.SVDF, without(list(self.INPUTS), 3), 2) == expected

    @pytest.mark.parametrize(
        ("index", "wrong"),
        [(1, (8, 6)), (2, (7, 10)), (3, (5,)), (4, (B, 79)), (5, 3), (5, 0)],
    )
    def test_tensors_that_do_not_fit_are_refused(
        self, index: int, wrong: Given
    ) -> None:
        with pytest.raises(OperationFailedError, match=r"has shape|is not divisible"):
            shapes(OperationType.SVDF, with_(list(self.INPUTS), {index: wrong}), 2)


class TestQuantizedLstm:
    def test_it_outputs_both_states_and_the_result(self) -> None:
        inputs = [(B, SIZE), *cell(), *STATES, *NORM, *[0.0] * 6, 0, 1.0]
        assert shapes(OperationType.QUANTIZED_LSTM, inputs, 3) == (
            (B, OUTPUTS),
            (B, UNITS),
            (B, OUTPUTS),
        )

    def sixteen_bit(self, changes: Mapping[int, BoundOperand]) -> BoundOperation:
        state = BoundOperand(Q8, (B, UNITS), 1 / 128, 128)
        memory = BoundOperand(Q16S, (B, UNITS), 2**-11, 0)
        inputs = [
            BoundOperand(Q8, (B, SIZE), 1 / 128, 128),
            *[BoundOperand(Q8, (UNITS, SIZE), 0.5, 100)] * 4,
            *[BoundOperand(Q8, (UNITS, UNITS), 0.5, 100)] * 4,
            *[BoundOperand(I32, (UNITS,), 0.5 / 128, 0)] * 4,
            memory,
            state,
        ]
        operands = [changes.get(i, operand) for i, operand in enumerate(inputs)]
        return BoundOperation(
            OperationType.QUANTIZED_16BIT_LSTM, tuple(operands), (memory, state)
        )

    def test_the_16_bit_one_has_fixed_scales(self) -> None:
        assert infer_shapes(self.sixteen_bit({})) == ((B, UNITS), (B, UNITS))

    @pytest.mark.parametrize(
        ("index", "operand", "message"),
        [
            (0, BoundOperand(Q8, (B, SIZE), 1 / 64, 128), "input has scale"),
            (3, BoundOperand(Q8, (UNITS, SIZE), 0.5, 99), "3 is quantised unlike"),
            (8, BoundOperand(Q8, (UNITS, 3), 0.5, 100), "input 8 has shape"),
            (9, BoundOperand(I32, (UNITS,), 0.5, 0), "scale of input 9"),
            (12, BoundOperand(I32, (3,), 0.5 / 128, 0), "input 12 has shape"),
            (13, BoundOperand(Q16S, (B, UNITS), 2**-12, 0), "cell_state_in has scale"),
            (13, BoundOperand(Q16S, (1, UNITS), 2**-11, 0), "cell_state_in has shape"),
        ],
    )
    def test_other_scales_are_refused(
        self, index: int, operand: BoundOperand, message: str
    ) -> None:
        with pytest.raises(OperationFailedError, match=message):
            infer_shapes(self.sixteen_bit({index: operand}))
