"""Which models are tried, on what, and which files are bad input."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.model_file import bundled_file, load
from asyncnn.tools.mlts import Suite, Wanted, run_suite, suite_models
from asyncnn.tools.mlts.evaluators import MelCepLogF0, PhoneErrorRate
from asyncnn.tools.mlts.suite_models import write_reference_model
from asyncnn.tools.mlts.trials import Trial, golden_trial, labelled_trial, trial_of
from asyncnn.tools.other_runtimes import LiteRt
from asyncnn.tools.reference_models import MORE_MODELS, REFERENCE_MODELS
from asyncnn.tools.samples import Tolerance, load_arrays
from tests.tools.mlts.conftest import write_golden, write_model

HERE = Path("set.npz")

DIGITS = bundled_file("digits_int8.asyncnn")


class TestFolders:
    def names(self, folder: Path, **wanted: object) -> list[str]:
        with suite_models(Wanted(folder=folder, **wanted)) as models:  # type: ignore[arg-type]
            return [model.name for model in models]

    def test_models_of_all_kinds_are_found_sorted_and_filtered(
        self, folder: Path
    ) -> None:
        write_model(folder, "zeros")
        (folder / "notes.txt").write_text("no model")
        assert self.names(folder) == ["absolute", "zeros"]
        assert self.names(folder, pattern="z*") == ["zeros"]
        assert self.names(folder / "zeros.asyncnn") == ["zeros"]

    def test_two_of_one_name_are_told_by_their_suffixes(self, folder: Path) -> None:
        same = folder / "absolute.asyncnn"
        (folder / "absolute.tflite").write_bytes(same.read_bytes())
        assert self.names(folder) == ["absolute.asyncnn", "absolute.tflite"]

    def test_a_name_that_is_no_text_can_be_reported(self, folder: Path) -> None:
        names = ("a\udcff", "b\x1b[2Jb", "c\nc")
        for name in names:
            write_model(folder, name)
        (folder / "d\udcff.tflite").write_bytes(b"no model")
        found = self.names(folder)
        assert found == ["absolute", "a ", "b [2Jb", "c c", "d "]
        with suite_models(Wanted(folder=folder)) as models:
            assert msgspec.json.encode([model.record for model in models])

    def test_nothing_to_measure_is_an_error(self, folder: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(InvalidArgumentError, match="there is no model in"):
            self.names(empty)
        with pytest.raises(InvalidArgumentError, match="no folder"):
            self.names(tmp_path / "nowhere")
        with pytest.raises(InvalidArgumentError, match=r"no model matches 'q\*' in"):
            self.names(folder, pattern="q*")

    def test_a_file_that_is_no_model_is_told_beside_others(self, folder: Path) -> None:
        (folder / "damaged.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(40))
        with suite_models(Wanted(folder=folder)) as models:
            found = {model.name: model.record.problem for model in models}
        assert not found["absolute"]
        assert "damaged.tflite" in found["damaged"]
        with (
            pytest.raises(InvalidArgumentError, match=r"damaged\.tflite"),
            suite_models(Wanted(folder=folder, pattern="d*")),
        ):
            pass

    def test_accuracy_can_be_insisted_on_or_left_out(self, folder: Path) -> None:
        write_model(folder, "unknown")
        with suite_models(Wanted(folder=folder)) as models:
            assert [each.record.evaluator for each in models] == ["golden", ""]
        with suite_models(Wanted(folder=folder, needs_accuracy=None)) as models:
            assert [each.record.evaluator for each in models] == ["", ""]
        with (
            pytest.raises(InvalidArgumentError, match=r"unknown has nothing.*\.npz"),
            suite_models(Wanted(folder=folder, needs_accuracy=True)),
        ):
            pass


class TestGoldenFiles:
    def trial(self, folder: Path, **more: Array) -> Trial:
        model = write_model(folder)
        write_golden(model, **more)
        arrays = load_arrays(model.with_suffix(".npz"))
        return golden_trial(load(model), arrays, HERE, Tolerance())

    def test_samples_are_sequences_of_their_own_unless_told(
        self, tmp_path: Path
    ) -> None:
        assert [len(each) for each in self.trial(tmp_path).sequences] == [1, 1]
        trial = self.trial(tmp_path, sequences=np.array([2]))
        assert [len(each) for each in trial.sequences] == [2]
        assert trial.has_steps
        for bad in ([1], [3], [2, 0]):
            with pytest.raises(InvalidArgumentError, match="but sequences of"):
                self.trial(tmp_path, sequences=np.array(bad))

    def test_a_file_may_name_its_evaluator(self, tmp_path: Path) -> None:
        for name, kind in (
            ("phone-error-rate", PhoneErrorRate),
            ("mel-cep-log-f0", MelCepLogF0),
        ):
            trial = self.trial(tmp_path, evaluator=np.array(name))
            assert isinstance(trial.evaluator, kind)
            assert trial.is_shared
        with pytest.raises(InvalidArgumentError, match="no evaluator 'worse'"):
            self.trial(tmp_path, evaluator=np.array("worse"))

    def test_devices_may_have_expected_outputs_of_their_own(
        self, tmp_path: Path
    ) -> None:
        ones = np.ones((1, 3), np.float32)
        more = {f"output_f32weights_{k}": ones for k in range(2)}
        trial = self.trial(tmp_path, **more)
        assert not trial.is_shared
        assert trial.evaluator is not None
        assert trial.of_peers is not None
        assert trial.evaluator.judge([[{"y": ones}]] * 2).passed
        assert not trial.of_peers.judge([[{"y": ones}]] * 2).passed

    def test_what_does_not_fit_is_an_error(self, tmp_path: Path) -> None:
        wide = np.zeros((1, 4), np.float32)
        with pytest.raises(InvalidArgumentError, match=r"sample 1 of .* not fit"):
            self.trial(tmp_path, input_1=wide)
        with pytest.raises(InvalidArgumentError, match="2 inputs, but 3 of output"):
            self.trial(tmp_path, output_2=wide)

    def test_without_a_file_inputs_are_random_and_nothing_judges(
        self, tmp_path: Path
    ) -> None:
        model = load(write_model(tmp_path))
        trial, same = (trial_of(model, None, None, Tolerance()) for _ in range(2))
        assert trial.evaluator is None
        assert len(trial.samples) > 1
        for one, other in zip(trial.samples, same.samples, strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])


class TestDataSets:
    def trial(self, **arrays: object) -> Trial:
        model = load(DIGITS)
        given = {name: np.asarray(array) for name, array in arrays.items()}
        return labelled_trial(model, given, HERE)

    def test_floats_are_quantised_as_the_model_says(self) -> None:
        inputs = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 8, 8)
        trial = self.trial(inputs=inputs, labels=[3, 4])
        info = load(DIGITS).inputs[0]
        first = trial.samples[0][info.name]
        assert first.dtype == np.int8
        assert first.shape == (1, 8, 8, 1)
        real = (first.astype(np.float32) - info.zero_point) * info.scale
        np.testing.assert_allclose(real.reshape(8, 8), inputs[0], atol=info.scale / 2)

    @pytest.mark.parametrize(
        ("arrays", "problem"),
        [
            ({"images": [1]}, "it has no inputs"),
            ({"inputs": np.zeros((2, 8, 8), "f4")}, "it has no labels"),
            ({"inputs": np.zeros((2, 8, 8), "f4"), "labels": [1]}, "1 labels for"),
            ({"inputs": np.zeros((2, 8, 7), "f4"), "labels": [1, 2]}, "does not fit"),
            ({"inputs": np.zeros((2, 8, 8), "u1"), "labels": [1, 2]}, "are uint8"),
            ({"inputs": np.zeros((2, 8, 8), "f4"), "labels": [1, 10]}, "10 classes"),
            ({"inputs": np.zeros((2, 8, 8), "f4"), "labels": [-1, 1]}, "-1 to 1"),
            ({"inputs": np.zeros((2, 8, 8), "f4"), "labels": [1.0, 2]}, "no list of"),
        ],
    )
    def test_one_that_does_not_fit_is_told(
        self, arrays: dict[str, object], problem: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=problem):
            self.trial(**arrays)

    def test_it_may_say_what_top_1_is_expected(self) -> None:
        images = np.zeros((2, 8, 8), "f4")
        trial = self.trial(inputs=images, labels=[1, 1], expected_top_1=0.5)
        assert trial.evaluator is not None
        wrong = [[{"probabilities": np.eye(10, dtype="f4")[:1]}]] * 2
        assert not trial.evaluator.judge(wrong).passed


class TestReferenceModels:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("ai_edge_litert")

    def test_speech_is_expected_step_by_step_of_one_state(self, tmp_path: Path) -> None:
        file = write_reference_model(tmp_path, "asr_float")
        arrays = load_arrays(file.with_suffix(".npz"))
        assert str(arrays["evaluator"]) == "phone-error-rate"
        assert arrays["sequences"].tolist() == [20, 20]
        named = load(file)
        assert len(named.states) == 6
        peer = LiteRt(file)
        for number in range(20):
            (output,) = peer.run([arrays[f"input_{number}"]])
            np.testing.assert_allclose(output, arrays[f"output_{number}"], atol=1e-5)
        phones = {int(np.argmax(arrays[f"output_{k}"])) for k in range(40)}
        assert len(phones) > 4

    def test_synthesis_gives_frames_some_of_them_voiced(self, tmp_path: Path) -> None:
        file = write_reference_model(tmp_path, "tts_float")
        arrays = load_arrays(file.with_suffix(".npz"))
        frames = np.stack([arrays[f"output_{k}"].reshape(4, 49) for k in range(40)])
        assert 0.1 < np.mean(frames[..., 48] > 0) < 0.9

    def test_the_documentations_models_are_there(self) -> None:
        assert list(REFERENCE_MODELS) == [
            *(f"mobilenet_v{v}_224_{k}" for v in (1, 2) for k in ("float", "int8")),
            *("asr_float", "tts_float"),
        ]

    @pytest.mark.parametrize(
        "name", ["mobilenet_v1_0.25_128_u8", "mobilenet_v2_0.5_160_u8"]
    )
    async def test_others_have_a_size_a_width_and_codes_of_their_own(
        self, name: str
    ) -> None:
        _, _, width, size, _ = name.split("_")
        with suite_models(Wanted(builtin=True, pattern=name)) as (found,):
            assert found.named is not None
            (image,) = found.named.inputs
            assert image.dimensions == (1, int(size), int(size), 3)
            assert image.dtype == np.uint8
            main = load(found.path, strict=True).model.main
            operands = main.operands
            assert {o.type for o in operands if o.scale} <= {
                OperandType.TENSOR_QUANT8_ASYMM,
                OperandType.TENSOR_INT32,
            }
            assert not any(operand.extra_params for operand in operands)
            (first, *_) = (
                operands[operation.inputs[1]].dimensions
                for operation in main.operations
                if operation.type == OperationType.CONV_2D
            )
            assert first == (int(32 * float(width)), 3, 3, 3)
            report = await run_suite(
                [found],
                Suite(
                    devices=("reference", "accelerated"),
                    paths=("sync",),
                    transports=("inprocess",),
                    peers=("LiteRT",),
                    runs=1,
                ),
            )
        systems = [row.system for row in report.rows]
        assert systems == ["reference", "accelerated", "LiteRT"]
        for row in report.rows:
            assert row.accuracy is not None
            assert row.accuracy.passed, row.accuracy.problems

    def test_others_are_made_only_where_they_are_asked_for(self) -> None:
        assert len(MORE_MODELS) == 2 * 4 * 4 * 3
        wanted = Wanted(builtin=True, pattern="mobilenet_v1_0.3_128_u8")
        with (
            pytest.raises(InvalidArgumentError, match="no model matches"),
            suite_models(wanted),
        ):
            pass
