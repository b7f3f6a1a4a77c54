"""Kernels in C compute what those in NumPy do, and are checked as they are made."""

import importlib
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.compiled import built, moves_of
from asyncnn.kernels.kernel import HeapScratch, NativeKernel, PreparedKernel
from asyncnn.kernels.recurrent.quantized_lstm import in_python
from tests.kernels.operations import B8, I32, Argument, bind, constant, result, tensor
from tests.kernels.recurrent.float_cells import Parts, Sizes
from tests.kernels.recurrent.integer.quantized_cells import (
    HIDDEN,
    QuantizedCell,
    random_cell,
    random_codes,
)

FOLDER = Path(__file__).parent
BUILT = importlib.util.find_spec("asyncnn.kernels._compiled") is not None
needs_compiled = pytest.mark.skipif(built is None, reason="no kernels were compiled")

BATCHES = 3


def rescaled(cell: QuantizedCell, factor: float, *indexes: int) -> QuantizedCell:
    """Return the cell with the scales of some of its constants multiplied."""
    changed: dict[int, Any] = {}
    for index in indexes:
        given = cell.constants.get(index)
        if isinstance(given, Argument):
            scale = given.operand.scale * factor
            changed[index] = given._replace(operand=replace(given.operand, scale=scale))
        elif given:
            changed[index] = given * factor
    return cell._replace(constants=cell.constants | changed)


def operation_of(cell: QuantizedCell, arrays: tuple[np.ndarray, ...]) -> BoundOperation:
    described = cell.described(len(arrays[0]))
    return bind(OperationType.QUANTIZED_LSTM, cell.given(*arrays), described)


def run(kernel: PreparedKernel, operation: BoundOperation, arrays) -> list[np.ndarray]:
    inputs: list[Any] = [None] * 32
    inputs[0], inputs[18], inputs[19] = arrays
    outputs = [np.empty(each.shape, each.dtype) for each in operation.outputs]
    with np.errstate(all="ignore"):
        kernel(HeapScratch())(inputs, outputs)
    return outputs


def check_cell(cell: QuantizedCell, seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    _, units, outputs = cell.sizes
    codes = random_codes(BATCHES, cell.sizes.inputs, seed=seed)
    memory = generator.integers(-(1 << 15), 1 << 15, (BATCHES, units), np.int16)
    states = random_codes(BATCHES, outputs, seed=seed + 1), memory
    ends = np.full_like(memory, -(1 << 15))
    for arrays in (
        (codes, *states),
        (np.full_like(codes, -128), np.full_like(states[0], -128), ends),
        (np.full_like(codes, 127), np.full_like(states[0], -128), ~ends),
        (np.zeros_like(codes), np.zeros_like(states[0]), np.zeros_like(memory)),
    ):
        operation = operation_of(cell, arrays)
        compiled = kernels.prepare(operation)
        assert isinstance(compiled, NativeKernel)
        twin = in_python(operation)
        for one, other in zip(
            run(compiled, operation, arrays), run(twin, operation, arrays), strict=True
        ):
            np.testing.assert_array_equal(one, other)


WEIGHTS, PEEPHOLES, NORMS = range(1, 9), (9, 10, 11), range(20, 24)


@needs_compiled
class TestSteps:
    @pytest.mark.parametrize("optional", [*itertools.product([False, True], repeat=4)])
    @pytest.mark.parametrize("exponent", [-30, -8, 0, 7, 13, 24])
    def test_are_those_of_numpy_bit_for_bit(self, optional, exponent: int) -> None:
        """Scales take multipliers from nothing to beyond 1, where values saturate."""
        factor = 2.0**exponent
        for seed, clips in enumerate([(0.0, 0.0), (0.4, 0.3)]):
            parts = Parts(*optional, cell_clip=clips[0], projection_clip=clips[1])
            cell = random_cell(
                parts, Sizes(7, 12, 5), seed, output_zero_point=-4, hidden_zero_point=9
            )
            check_cell(rescaled(cell, factor, *WEIGHTS), seed)
            check_cell(rescaled(cell, factor, *PEEPHOLES, *NORMS), seed)
            check_cell(rescaled(cell, factor, 16), seed)
            check_cell(rescaled(cell, factor, HIDDEN + 1), seed)

    @pytest.mark.parametrize("sizes", [(1, 1, 1), (257, 128, 3), (3000, 4, 4)])
    def test_have_any_sizes(self, sizes: tuple[int, int, int]) -> None:
        for projection in (False, True):
            check_cell(random_cell(Parts(projection=projection), Sizes(*sizes)))

    @pytest.mark.parametrize("bias", [-(1 << 31), (1 << 31) - 1])
    def test_have_any_biases(self, bias: int) -> None:
        for norm in (False, True):
            cell = random_cell(Parts(norm=norm))
            constants = dict(cell.constants)
            for index in range(12, 16):
                given: Any = constants[index]
                given.array.fill(bias)
            check_cell(cell._replace(constants=constants))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("seed", range(300))
    def test_are_those_of_numpy_for_random_cells(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        chances = (generator.random(5) < 0.5).tolist()
        parts = Parts(*chances, *generator.choice([0, 0.01, 9], 2).tolist())
        sizes = Sizes(*map(int, generator.integers(1, 70, 3)))
        zero_points = map(int, generator.integers(-128, 128, 2))
        names = "output_zero_point", "hidden_zero_point"
        chosen = dict(zip(names, zero_points, strict=True))
        cell = random_cell(parts, sizes, seed, **chosen)
        for indexes in (WEIGHTS, PEEPHOLES, NORMS, (16,), (HIDDEN + 1,)):
            cell = rescaled(cell, 2.0 ** generator.normal(0, 4), *indexes)
        check_cell(cell, seed)

    def test_arrays_of_other_sizes_are_refused(self) -> None:
        cell = random_cell()
        arrays = random_codes(2, 3), *cell.initial_states(2)
        operation = operation_of(cell, arrays)
        kernel = kernels.prepare(operation)
        longer = random_codes(3, 3), *arrays[1:]
        with pytest.raises(ValueError, match="another size"):
            run(kernel, operation, longer)
        with pytest.raises(ValueError, match="another size"):
            run(kernel, operation, (*arrays[:2], arrays[2][:1]))

    def test_cells_too_large_to_sum_up_are_left_to_numpy(self) -> None:
        cell = random_cell(sizes=Sizes((1 << 16) + 1, 1, 1))
        arrays = random_codes(1, (1 << 16) + 1), *cell.initial_states(1)
        operation = operation_of(cell, arrays)
        kernel = kernels.prepare(operation)
        assert not isinstance(kernel, NativeKernel)
        run(kernel, operation, arrays)


def step_arguments() -> dict[str, Any]:
    """Return what a sound cell of 4 gates, 2 units and 3 inputs is made of."""

    def terms(count: int) -> np.ndarray:
        each = np.array([[0], [1 << 30], [3], [1 << 30]])
        return np.ascontiguousarray(np.broadcast_to(each, (4, count)))

    return {
        "batches": 1,
        "gates": 4,
        "state": (19, -32768, 32767),
        "hidden": (terms(1), 0),
        "data": (np.ones((8, 3), np.int8), terms(8)),
        "recurrent": (np.ones((8, 2), np.int8), terms(8)),
        "projection": (None, None),
        "bounds": (0, 0, 0),
        "peepholes": (np.ones((3, 2), np.int64), terms(3)),
        "norm": (np.ones((2, 4, 2), np.int64), np.ones((3, 4), np.int64)),
        "tables": (np.zeros(1 << 17, np.int32), np.zeros(1 << 16, np.int32)),
    }


def wrong(array: np.ndarray, place: Any, value: int) -> np.ndarray:
    copied = array.copy()
    copied[place] = value
    return copied


SOUND = step_arguments()
TERMS = SOUND["data"][1]


@needs_compiled
class TestMakingSteps:
    """What only a mistake of ours, or a cache that is wrong, could bring."""

    def test_a_sound_one_is_made(self) -> None:
        step = built.Step(**SOUND)
        assert step.address

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("batches", 0),
            ("batches", -1),
            ("batches", 1 << 40),
            ("gates", 2),
            ("gates", 5),
            ("gates", 3),
            ("state", (14, 0, 1)),
            ("state", (22, 0, 1)),
            ("state", (19, 1, 0)),
            ("state", (19, -32769, 0)),
            ("state", (19, 0, 32768)),
            ("bounds", (200, 0, 0)),
            ("bounds", (0, -129, 0)),
            ("bounds", (0, 0, 128)),
            ("hidden", (TERMS, 0)),
            ("data", (np.ones((8, 3), np.int16), TERMS)),
            ("data", (np.ones((7, 3), np.int8), TERMS)),
            ("data", (np.ones((12, 3), np.int8), np.zeros((4, 12), np.int64))),
            ("data", (np.ones(24, np.int8), TERMS)),
            ("data", (np.ones((8, 0), np.int8), TERMS)),
            ("data", (np.ones((8, 3), np.int8), TERMS[:3].copy())),
            ("data", (np.ones((8, 3), np.int8), TERMS.astype(np.int32))),
            ("data", (np.ones((8, 3), np.int8), wrong(TERMS, (1, 5), -1))),
            ("data", (np.ones((8, 3), np.int8), wrong(TERMS, (2, 7), 32))),
            ("data", (np.ones((8, 3), np.int8), wrong(TERMS, (2, 0), -1))),
            ("data", (np.ones((8, 3), np.int8), wrong(TERMS, (3, 1), -1))),
            ("recurrent", (np.ones((8, 3), np.int8), TERMS)),
            ("projection", (np.ones((2, 3), np.int8), TERMS[:, :2].copy())),
            ("projection", (np.ones((3, 2), np.int8), TERMS[:, :3].copy())),
            ("peepholes", (np.ones((4, 2), np.int64), TERMS[:, :3].copy())),
            ("peepholes", (np.full((3, 2), 32768), TERMS[:, :3].copy())),
            ("norm", (np.ones((4, 2), np.int64), SOUND["norm"][1])),
            ("norm", (np.full((2, 4, 2), 1 << 31), SOUND["norm"][1])),
            ("norm", (SOUND["norm"][0], np.zeros((3, 4), np.int64))),
            ("norm", (SOUND["norm"][0], wrong(SOUND["norm"][1], (1, 2), 32))),
            ("tables", (SOUND["tables"][1], SOUND["tables"][1])),
            ("tables", SOUND["tables"][::-1]),
        ],
    )
    def test_what_does_not_fit_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match="in a compiled kernel"):
            built.Step(**SOUND | {name: value})

    def test_what_is_no_memory_is_refused(self) -> None:
        with pytest.raises(TypeError):
            built.Step(**SOUND | {"data": (None, None)})
        with pytest.raises(TypeError):
            built.Step(**SOUND | {"tables": ("one", "other")})
        with pytest.raises(ValueError, match="contiguous"):
            built.Step(**SOUND | {"data": (np.ones((3, 8), np.int8).T, TERMS)})


def slices(length: int) -> st.SearchStrategy[slice]:
    ends = st.none() | st.integers(-length - 1, length + 1)
    steps = st.integers(-3, 3).filter(bool)
    return st.builds(slice, ends, ends, steps)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, tuple[int, ...]]:
    """Return a shape, an index, and an order of axes."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    index = tuple(draw(slices(length)) for length in shape)
    return shape, index, tuple(draw(st.permutations(range(len(shape)))))


@needs_compiled
class TestMoves:
    @given(views())
    def test_are_those_of_numpy(self, view: Any) -> None:
        shape, index, order = view
        x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        expected = x[index].transpose(order)
        operation = bind(
            OperationType.TRANSPOSE, [tensor(I32, x)], [result(I32, expected.shape)]
        )
        kernel = moves_of(
            operation,
            [0],
            lambda inputs, outputs: [(outputs[0], inputs[0][index].transpose(order))],
        )
        assert (kernel is None) == (not expected.size) or expected.ndim == 5
        if kernel is not None:
            y = np.full(expected.shape, -1, np.int32)
            kernel.run([x], [y])
            np.testing.assert_array_equal(y, expected)

    def test_elements_may_be_repeated(self) -> None:
        operation = bind(
            OperationType.TILE, [tensor(I32, [1, 2])], [result(I32, (3, 2))]
        )
        kernel = moves_of(
            operation, [0], lambda inputs, outputs: [(outputs[0], inputs[0])]
        )
        assert kernel is not None
        y = np.zeros((3, 2), np.int32)
        kernel.run([np.array([7, 8], np.int32)], [y])
        np.testing.assert_array_equal(y, [[7, 8]] * 3)

    def test_many_elements_are_left_to_numpy(self) -> None:
        x = np.zeros((200, 200), np.int32)
        operation = bind(
            OperationType.TRANSPOSE, [tensor(I32, x)], [result(I32, x.shape)]
        )
        copies = lambda inputs, outputs: [(outputs[0], inputs[0])]  # noqa: E731
        assert moves_of(operation, [0], copies) is None

    def test_what_runs_once_is_left_to_numpy(self) -> None:
        known = bind(
            OperationType.RESHAPE, [constant(I32, [1, 2])], [result(I32, (2,))]
        )
        assert not isinstance(kernels.prepare(known), NativeKernel)
        open_ = bind(OperationType.RESHAPE, [tensor(I32, [1, 2])], [result(I32, (2,))])
        assert isinstance(kernels.prepare(open_), NativeKernel)

    def made(self, **others: Any) -> Any:
        """Return moves of six elements from one array to another."""
        x, y = np.zeros(6, np.int32), np.zeros(6, np.int32)
        given: dict[str, Any] = {"places": (0,), "arrays": (x, y), "pairs": ((y, x),)}
        return built.Moves(**given | others)

    def test_a_move_within_its_arrays_is_made(self) -> None:
        x, y = np.arange(6, dtype=np.int32), np.zeros(6, np.int32)
        self.made().run([x], [y])
        np.testing.assert_array_equal(x, y)

    @pytest.mark.parametrize(
        ("x", "y"),
        [
            (slice(0, 12), slice(0, 12)),  # the arrays are in the middle
            (slice(3, 9), slice(4, 10)),
            (slice(4, 10), slice(3, 9)),
            (slice(2, 8), slice(3, 9)),
            (slice(8, 2, -1), slice(9, 3, -1)),
            (slice(3, 1, -1), slice(3, 5)),
            (slice(3, 5), slice(8, 10)),
            (slice(8, 10), slice(3, 5)),
            (slice(4, 12, 5), slice(3, 5)),
        ],
    )
    def test_one_beyond_an_array_is_refused(self, x: slice, y: slice) -> None:
        source, target = np.zeros((2, 12), np.int32)
        arrays = source[3:9], target[3:9]
        view, into = source[x], target[y]
        length = min(len(view), len(into))
        with pytest.raises(ValueError, match=r"beyond an array|no part of"):
            self.made(arrays=arrays, pairs=((into[:length], view[:length]),))

    def test_what_is_no_part_of_its_side_is_refused(self) -> None:
        x, y, z = np.zeros((3, 6), np.int32)
        for pair in (y, z), (z, x), (x, x), (x, y):
            with pytest.raises(ValueError, match="no part of"):
                self.made(arrays=(x, y), pairs=(pair,))

    @pytest.mark.parametrize(
        ("target", "source"),
        [((2, 3), (3, 2)), ((6,), (5,)), ((6,), (1, 6)), ((0,), (0,))],
    )
    def test_other_shapes_are_refused(self, target: Any, source: Any) -> None:
        x, y = np.zeros((2, 6), np.int32)
        pair = np.resize(y, target), np.resize(x, source)
        with pytest.raises(ValueError, match="in a compiled kernel"):
            self.made(arrays=(x, y), pairs=(pair,))

    def test_other_elements_are_refused(self) -> None:
        x, y = np.zeros((2, 6), np.int32)
        for pair in (y, x.view(np.float32)), (y.view(np.int16), x[:3].view(np.int16)):
            with pytest.raises(ValueError, match="in a compiled kernel"):
                self.made(arrays=(x, y), pairs=(pair,))

    @pytest.mark.parametrize(
        ("others", "error"),
        [
            ({"arrays": (np.zeros(6, np.int32),)}, ValueError),
            ({"arrays": ()}, ValueError),
            ({"places": (-1,)}, ValueError),
            ({"places": ("x",)}, TypeError),
            ({"arrays": ("x", "y")}, TypeError),
            ({"pairs": (("x", "y"),)}, TypeError),
            ({"pairs": ((np.zeros(6),),)}, TypeError),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, others: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            self.made(**others)

    def test_inputs_may_lie_in_pieces(self) -> None:
        x, y = np.arange(12, dtype=np.int32)[::2], np.zeros(6, np.int32)
        self.made().run([x], [y])
        np.testing.assert_array_equal(y, x)
        with pytest.raises(ValueError, match="contiguous"):
            self.made().run([y], [x])

    def test_arrays_that_do_not_fit_are_refused(self) -> None:
        moves = self.made()
        x, y = np.arange(6, dtype=np.int32), np.zeros(6, np.int32)
        with pytest.raises(ValueError, match="another size"):
            moves.run([x[:5]], [y])
        with pytest.raises(IndexError):
            moves.run([], [y])
        y.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            moves.run([x], [y])
        with pytest.raises(TypeError):
            moves.run([None], [y])


@needs_compiled
class TestLogic:
    @pytest.mark.parametrize("length", [1, 15, 64, 1001, 1 << 20])
    def test_is_that_of_numpy(self, length: int) -> None:
        generator = np.random.default_rng(length)
        x, y = generator.random((2, length)) < 0.5
        for type_, inputs, expected in (
            (OperationType.LOGICAL_AND, [x, y], x & y),
            (OperationType.LOGICAL_OR, [x, y], x | y),
            (OperationType.LOGICAL_NOT, [x], ~x),
        ):
            given = [tensor(B8, each) for each in inputs]
            operation = bind(type_, given, [result(B8, (length,))])
            kernel = kernels.prepare(operation)
            assert isinstance(kernel, NativeKernel)
            z = np.zeros(length, bool)
            kernel.run(inputs, [z])
            np.testing.assert_array_equal(z, expected)

    @pytest.mark.parametrize("given", [(-1, 4), (3, 4), (0, 0), (0, -1)])
    def test_what_does_not_fit_is_refused(self, given: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="in a compiled kernel"):
            built.Logic(*given)
