"""Models beside the runtimes that read their files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.file_kinds import FileKind
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.prepared import AnyPath
from asyncnn.tools import comparison
from asyncnn.tools.comparison import Comparison, OutputReport, PeerKind, compare_model
from asyncnn.tools.other_runtimes import InputKind, OnnxFile, PeerRefusedError
from asyncnn.tools.samples import Sample, Tolerance, random_sample

FLOATS = Operand(OperandType.TENSOR_FLOAT32, (3,))
X = TensorInfo("x", OperandType.TENSOR_FLOAT32, (3,))


def running_sum() -> NamedModel:
    """Return a model whose output is the sum of all inputs so far, from ones on."""
    builder = ModelBuilder()
    x = builder.input("x", FLOATS.type, (3,))
    before = builder.state("sum", FLOATS.type, (3,), initial=np.ones(3, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    after = builder.operation(OperationType.ADD, [x, before, none], FLOATS)
    zero = builder.constant(np.zeros(3, np.float32))
    y = builder.operation(OperationType.ADD, [after, zero, none], FLOATS)
    builder.output(y, "y")
    builder.next_state(before, after)
    return builder.build()


class Sums:
    """A peer that keeps a sum of its own, and takes one input of rank 2."""

    def __init__(self, off_by: float = 0.0) -> None:
        self._sum = np.ones(3, np.float32)
        self._off_by = off_by

    def input_kinds(self) -> list[InputKind]:
        return [((1, 3), np.dtype(np.float32))]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        (array,) = arrays
        assert array.shape == (1, 3)
        self._sum = self._sum + array[0]
        return [self._sum + np.float32(self._off_by)]

    def reset(self) -> None:
        raise AssertionError("state is kept from sample to sample")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Compare with the peers in a list, of which the first is opened first.

    Behind them comes the one that is timed.
    """
    peers: list[object] = []

    def opened(*_: object) -> object:
        return peers.pop(0) if peers else Sums()

    monkeypatch.setattr(comparison, "_open_peer", opened)
    monkeypatch.setattr(PeerKind, "version", lambda _: "1")
    return peers


def asked(named: NamedModel, **changes: object) -> Comparison:
    fields: dict[str, object] = {
        "path": Path("model.tflite"),
        "named": named,
        "peer": PeerKind.LITERT,
        "reference_kernels": False,
        "device": "reference",
        "extensions": (),
        "paths": ("async",),
        "transports": ("inprocess",),
        "given": (),
        "random": 5,
        "seed": 0,
        "tolerance": Tolerance(),
    }
    return Comparison(**(fields | changes))  # type: ignore[arg-type]


class TestState:
    @pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
    async def test_both_keep_it_over_the_samples_of_a_series(
        self, beside: list[object], path: AnyPath
    ) -> None:
        given = tuple({"x": np.full(3, k, np.float32)} for k in range(4))
        beside += [Sums(), Sums()]
        report = await compare_model(asked(running_sum(), paths=(path,), given=given))
        assert report.passed, report
        assert report.states == ("sum",)
        assert [(each.inputs, each.samples) for each in report.series] == [
            ("random", 5),
            ("given", 4),
        ]

    async def test_what_differs_is_told(self, beside: list[object]) -> None:
        beside += [Sums(off_by=0.5)]
        report = await compare_model(asked(running_sum()))
        assert not report.passed
        (output,) = report.series[0].outputs
        assert output.largest == pytest.approx(0.5)
        assert output.differing == output.elements == 15
        assert str(output).startswith("y: at most 0.5 (0.")

    async def test_a_driver_process_is_another_way(self, beside: list[object]) -> None:
        beside += [Sums()]
        report = await compare_model(
            asked(running_sum(), transports=("inprocess", "remote"))
        )
        assert report.passed
        assert [each.transport for each in report.series] == ["inprocess", "remote"]


class TestInputs:
    async def test_no_samples_are_an_error(self, beside: list[object]) -> None:
        with pytest.raises(InvalidArgumentError, match="no sample"):
            await compare_model(asked(running_sum(), random=0))

    async def test_other_numbers_of_inputs_are_an_error(
        self, beside: list[object]
    ) -> None:
        class Two(Sums):
            def input_kinds(self) -> list[InputKind]:
                return super().input_kinds() * 2

        beside += [Two()]
        with pytest.raises(InvalidArgumentError, match="LiteRT takes 2 inputs"):
            await compare_model(asked(running_sum()))

    async def test_other_numbers_of_outputs_are_an_error(
        self, beside: list[object]
    ) -> None:
        class Two(Sums):
            def run(self, arrays: Sequence[Array]) -> list[Array]:
                return super().run(arrays) * 2

        beside += [Two()]
        with pytest.raises(InvalidArgumentError, match="gives 2 outputs"):
            await compare_model(asked(running_sum()))

    def test_random_ones_depend_on_the_seed_alone(self) -> None:
        def drawn(seed: int) -> list[Sample]:
            series = comparison._series(asked(running_sum(), seed=seed))
            return list(series["random"])

        np.testing.assert_equal(drawn(1), drawn(1))
        assert not np.array_equal(drawn(1)[0]["x"], drawn(2)[0]["x"])
        assert not np.array_equal(drawn(1)[0]["x"], drawn(1)[1]["x"])

    def test_codes_use_the_whole_range_and_indices_are_small(self) -> None:
        infos = [
            TensorInfo("q", OperandType.TENSOR_QUANT8_ASYMM_SIGNED, (4000,), 0.5),
            TensorInfo("i", OperandType.TENSOR_INT32, (4000,)),
        ]
        sample = random_sample(infos)
        assert (sample["q"].min(), sample["q"].max()) == (-128, 127)
        assert set(sample["i"].tolist()) == {0, 1}


def reported(
    info: TensorInfo, actual: object, expected: object, *, theirs: object = None
) -> OutputReport:
    mine = np.array(actual, info.dtype).reshape(info.dimensions)
    other = np.array(expected, theirs or info.dtype)  # type: ignore[call-overload]
    return comparison._output(info, [mine], [other], Tolerance())


class TestOutputs:
    def test_codes_may_be_one_step_apart(self) -> None:
        info = TensorInfo("q", OperandType.TENSOR_QUANT8_ASYMM, (3,), 0.5)
        report = reported(info, [1, 2, 255], [2, 2, 254])
        assert (report.passed, report.largest, report.in_steps) == (True, 1, True)
        assert str(report) == "q: at most 1 LSB"
        assert not reported(info, [1, 2, 3], [3, 2, 3]).passed

    @pytest.mark.parametrize("type_", [OperandType.TENSOR_INT32])
    def test_other_integers_are_exact(self, type_: OperandType) -> None:
        info = TensorInfo("i", type_, (3,))
        assert reported(info, [1, 2, 3], [1, 2, 3]).passed
        assert not reported(info, [1, 2, 3], [1, 2, 4]).passed

    def test_truths_are_exact(self) -> None:
        info = TensorInfo("b", OperandType.TENSOR_BOOL8, (2,))
        assert not reported(info, [True, False], [True, True]).passed

    def test_int64_is_what_the_hal_has_as_int32(self) -> None:
        info = TensorInfo("i", OperandType.TENSOR_INT32, (2,))
        assert reported(info, [1, -2], [1, -2], theirs=np.int64).passed
        wide = reported(info, [1, -2], [1, 2**40], theirs=np.int64)
        assert not wide.passed
        assert (wide.differing, wide.elements) == (1, 2)

    def test_rank_0_is_what_the_hal_has_as_rank_1(self) -> None:
        info = TensorInfo("x", OperandType.TENSOR_FLOAT32, (1,))
        assert reported(info, [1.5], 1.5).passed

    def test_another_shape_does_not_pass(self) -> None:
        report = reported(X, [1, 2, 3], [[1, 2]])
        assert report.problem == "sample 0: shape is (3,), expected (1, 2)"
        assert str(report) == f"x: {report.problem}"

    def test_floats_are_told_as_a_share_of_the_largest(self) -> None:
        report = reported(X, [0, 4, -8.5], [0, 4, -8])
        assert (report.largest, report.relative) == (0.5, 0.5 / 8)
        assert str(report) == (
            "x: at most 0.5 (0.0625 relative), 1 of 3 elements by too much"
        )

    @pytest.mark.parametrize(
        ("actual", "expected", "passed"),
        [
            ([np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan], True),
            ([np.inf, 0, 0], [-np.inf, 0, 0], False),
            ([np.nan, 0, 0], [0, 0, 0], False),
            ([0, 0, 0], [np.nan, 0, 0], False),
            ([1, 0, 0], [np.inf, 0, 0], False),
        ],
    )
    def test_what_is_no_number_has_to_be_equal(
        self, actual: list[float], expected: list[float], passed: bool
    ) -> None:
        report = reported(X, actual, expected)
        assert report.passed == passed
        assert report.largest == (0 if passed else np.inf)


class TestPeers:
    def test_each_reads_files_of_one_kind(self) -> None:
        PeerKind.LITERT.check_reads(FileKind.TFLITE)
        PeerKind.ONNX_RUNTIME.check_reads(FileKind.ONNX)
        with pytest.raises(InvalidArgumentError, match="ONNX Runtime reads ONNX files"):
            PeerKind.ONNX_RUNTIME.check_reads(FileKind.TFLITE)
        with pytest.raises(InvalidArgumentError, match="and this is asyncnn"):
            PeerKind.LITERT.check_reads(FileKind.CONTAINER)

    def test_onnx_runtime_runs_files(self, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime")
        path = tmp_path / "model.onnx"
        path.write_bytes(data := addition_in_onnx())
        for source in (path, data):
            peer = OnnxFile(source)
            assert peer.input_kinds() == [
                ((0, 2), np.dtype(np.float32)),
                ((), np.dtype(np.float32)),
            ]
            x = np.ones((3, 2), np.float32)
            (y,) = peer.run([x, np.array(2, np.float32)])
            np.testing.assert_array_equal(y, x + 2)
            peer.reset()
            with pytest.raises(PeerRefusedError):
                peer.run([x, x.astype(np.int8)])

    def test_onnx_runtime_refuses_in_one_line(self) -> None:
        pytest.importorskip("onnxruntime")
        with pytest.raises(PeerRefusedError) as info:
            OnnxFile(b"not a model")
        assert "\n" not in str(info.value)


def addition_in_onnx() -> bytes:
    helper = pytest.importorskip("onnx.helper")
    x = helper.make_tensor_value_info("x", 1, ["n", 2])
    b = helper.make_tensor_value_info("b", 1, [])
    y = helper.make_tensor_value_info("y", 1, ["n", 2])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["y"])], "sum", [x, b], [y]
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data: bytes = model.SerializeToString()
    return data
