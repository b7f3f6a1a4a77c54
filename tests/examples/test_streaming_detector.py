"""The parts of examples/streaming that need no stream."""

import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

import asyncnn
from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "streaming"
SCRIPTS = (
    "voice", "synthesis", "recordings", "framing", "models", "network", "events",
    "train", "camera",
)  # fmt: skip


class Example(NamedTuple):
    """The modules of the example."""

    voice: ModuleType
    synthesis: ModuleType
    recordings: ModuleType
    framing: ModuleType
    models: ModuleType
    network: ModuleType
    events: ModuleType
    train: ModuleType
    camera: ModuleType


@pytest.fixture(scope="module")
def example() -> Example:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        modules = Example(*map(importlib.import_module, SCRIPTS))
        for name in SCRIPTS:
            sys.modules.pop(name)
    return modules


def press(example: Example, key: str, start: float, end: float) -> object:
    return example.synthesis.Press(key, start, end)


class TestRecordings:
    def test_a_seed_stands_for_one_recording(self, example: Example) -> None:
        first, again, other = map(example.synthesis.record, (1, 1, 2))
        assert np.array_equal(first.samples, again.samples)
        assert first.presses == again.presses
        assert not np.array_equal(first.samples, other.samples)

    @pytest.mark.parametrize("seed", range(3))
    def test_keys_last_at_least_40_ms_with_pauses_of_as_much(
        self, example: Example, seed: int
    ) -> None:
        presses = example.synthesis.record(seed).presses
        assert all(press.end - press.start > 0.0399 for press in presses)
        pauses = itertools.pairwise(presses)
        assert all(after.start - before.end > 0.0399 for before, after in pauses)

    def test_a_wav_file_brings_them_back(
        self, example: Example, tmp_path: Path
    ) -> None:
        recording = example.synthesis.record(3, seconds=4)
        example.recordings.write(recording, tmp_path / "line.wav")
        found = example.recordings.read(tmp_path / "line.wav")
        assert np.array_equal(found.samples, recording.samples)
        assert found.presses == recording.presses

    def test_the_keys_of_a_foreign_wav_file_are_unknown(
        self, example: Example, tmp_path: Path
    ) -> None:
        example.recordings.write(example.synthesis.record(3), tmp_path / "a.wav")
        (tmp_path / "a.json").unlink()
        assert example.recordings.read(tmp_path / "a.wav").presses == ()

    def test_another_rate_is_refused(
        self, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(example.recordings, "RATE", 44100)
        example.recordings.write(example.synthesis.record(3), tmp_path / "a.wav")
        monkeypatch.undo()
        with pytest.raises(ValueError, match="16 bits at 44100 Hz"):
            example.recordings.read(tmp_path / "a.wav")


class TestFraming:
    @pytest.mark.parametrize("chunk", [1, 100, 128, 1000])
    def test_windows_do_not_depend_on_how_samples_arrive(
        self, example: Example, chunk: int
    ) -> None:
        samples = np.arange(1000, dtype=np.int16)
        framer = example.framing.Framer()
        windows = [
            window
            for start in range(0, len(samples), chunk)
            for window in framer.windows(samples[start : start + chunk])
        ]
        assert np.array_equal(
            np.concatenate(windows), example.framing.all_windows(samples)
        )
        assert len(windows) == len(samples) // example.framing.HOP

    def test_an_answer_is_about_the_middle_of_an_earlier_window(
        self, example: Example
    ) -> None:
        key = press(example, "5", 0.1, 0.2)
        recording = example.synthesis.Recording(np.zeros(0, np.int16), (key,))
        labels = example.framing.labels(recording, 20)
        held = [example.framing.time_of(frame) for frame in np.flatnonzero(labels < 16)]
        assert min(held) - 0.1 < example.framing.FRAME_SECONDS
        assert 0.1 <= min(held) < max(held) < 0.2


class TestModels:
    async def test_a_sine_wave_has_its_power_at_its_frequency(
        self, example: Example
    ) -> None:
        models = example.models
        index = np.arange(example.framing.WINDOW)
        wave = 0.1 * np.sin(2 * np.pi * 941 / example.synthesis.RATE * index)
        async with asyncnn.open_device() as device:
            model = await device.prepare(models.features())
            outputs = await model.run(wave.astype(np.float32)[None])
        values = outputs["features"][0]
        assert np.argmax(values[: len(models.BANK)]) == models.BANK.index(941)
        expected = (np.log(0.1**2) + 10) / 4
        assert values[models.BANK.index(941)] == pytest.approx(expected, abs=0.02)
        assert values[-1] == pytest.approx(expected, abs=0.02)

    async def test_frame_by_frame_is_the_same_as_all_at_once(
        self, example: Example
    ) -> None:
        models, rng = example.models, np.random.default_rng(0)
        weights = models.load_weights()
        x = rng.normal(0, 1, (7, models.FEATURES)).astype(np.float32)
        state = cell = np.zeros((1, models.UNITS), np.float32)
        async with asyncnn.open_device() as device:
            whole = await device.prepare(models.recurrent(weights, len(x)))
            step = await device.prepare(models.recurrent(weights))
            expected = await whole.run([x, state, cell])
            hidden = []
            for frame in x:
                outputs = await step.run([frame[None], state, cell])
                state, cell = outputs["next_state"], outputs["next_cell"]
                hidden.append(outputs["hidden"][0])
        np.testing.assert_allclose(hidden, expected["hidden"], atol=1e-5)
        np.testing.assert_allclose(state, expected["next_state"], atol=1e-5)

    async def test_the_network_that_is_trained_is_the_one_that_runs(
        self, example: Example
    ) -> None:
        models, rng = example.models, np.random.default_rng(1)
        weights = models.load_weights()
        x = rng.normal(0, 1, (5, models.FEATURES)).astype(np.float32)
        zeros = np.zeros((1, models.UNITS), np.float32)
        async with asyncnn.open_device() as device:
            recurrent = await device.prepare(models.recurrent(weights, len(x)))
            decision = await device.prepare(models.decision(weights, len(x)))
            hidden = (await recurrent.run([x, zeros, zeros]))["hidden"]
            found = (await decision.run([hidden]))["probabilities"]
        powers = np.exp(example.network.logits(weights, x[:, None])[:, 0])
        expected = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.exhaustive
class TestTraining:
    def test_gradients_agree_with_finite_differences(self, example: Example) -> None:
        rng = np.random.default_rng(0)
        weights = example.models.Weights(
            *(array.astype(np.float64) for array in example.network.new_weights(rng))
        )
        x = rng.normal(0, 1, (6, 3, example.models.FEATURES))
        classes = rng.integers(0, example.framing.CLASSES, (6, 3))
        _, gradients = example.network.gradients(weights, x, classes)
        for array, gradient in zip(weights, gradients, strict=True):
            at = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
            step = 1e-5
            array[at] += step
            above, _ = example.network.gradients(weights, x, classes)
            array[at] -= 2 * step
            below, _ = example.network.gradients(weights, x, classes)
            array[at] += step
            slope = (above - below) / (2 * step)
            assert gradient[at] == pytest.approx(slope, rel=1e-4)

    def test_a_quick_training_writes_weights(
        self, example: Example, tmp_path: Path
    ) -> None:
        path = tmp_path / "weights.npz"
        done = python(FOLDER / "train.py", "--quick", "--output", path, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "error rate" in done.stdout
        found, ours = map(example.models.load_weights, (path, example.models.WEIGHTS))
        assert [a.shape for a in found] == [a.shape for a in ours]

    async def test_on_held_out_recordings_less_than_2_percent_are_wrong(
        self, example: Example
    ) -> None:
        seeds = example.recordings.HELD_OUT_SEEDS
        held_out = list(map(example.synthesis.record, seeds))
        weights = example.models.load_weights()
        score = await example.train.evaluate(weights, held_out)
        assert score.pressed > 900
        assert score.error_rate < 0.02

    def test_no_recording_is_both_trained_on_and_held_out(
        self, example: Example
    ) -> None:
        recordings = example.recordings
        assert not {*recordings.TRAINING_SEEDS} & {*recordings.HELD_OUT_SEEDS}


class TestEvents:
    def probabilities(self, example: Example, keys: str) -> np.ndarray:
        """One frame for each key, a blank for silence and ? for doubt."""
        rows = np.full((len(keys), example.framing.CLASSES), 0.01)
        for row, key in zip(rows, keys, strict=True):
            if key != "?":
                row[(example.synthesis.KEYS + " ").index(key)] = 0.9
        return rows

    @pytest.mark.parametrize(
        ("frames", "keys"),
        [
            ("  555  ", "5"),
            ("  5  ", ""),
            ("  55 55  ", "5"),
            ("  55  55  ", "55"),
            ("  5566  ", "56"),
            ("  ??  ", ""),
            ("  55??", "5"),
            ("  55", "5"),
            ("55", "5"),
            ("  555", "5"),
        ],
    )
    def test_keys_are_found_in_frames(
        self, example: Example, frames: str, keys: str
    ) -> None:
        found = example.events.decode(self.probabilities(example, frames))
        assert "".join(press.key for press in found) == keys

    def test_times_are_those_of_the_first_frame_and_the_first_without(
        self, example: Example
    ) -> None:
        (found,) = example.events.decode(self.probabilities(example, "   777  "))
        assert found.start == example.framing.time_of(3)
        assert found.end == example.framing.time_of(6)

    def test_a_press_is_known_before_the_release(self, example: Example) -> None:
        decoder = example.events.Decoder()
        happened = [
            (event.key, event.released is None)
            for frame in self.probabilities(example, "  555  ")
            for event in decoder.step(frame)
        ]
        assert happened == [("5", True), ("5", False)]

    @pytest.mark.parametrize(
        ("found", "missed", "invented"),
        [
            ([("1", 1.0, 1.1), ("2", 2.0, 2.1)], 0, 0),
            ([("1", 1.02, 1.12), ("2", 2.0, 2.1)], 0, 0),
            ([("2", 2.0, 2.1)], 1, 0),
            ([("1", 1.0, 1.1), ("2", 2.0, 2.1), ("2", 2.05, 2.1)], 0, 1),
            ([("1", 1.0, 1.1), ("3", 2.0, 2.1)], 1, 1),
            ([("1", 1.5, 1.6), ("2", 2.0, 2.1)], 1, 1),
            ([], 2, 0),
        ],
        ids=["all", "late", "missed", "twice", "wrong", "elsewhere", "nothing"],
    )
    def test_detections_are_judged(
        self,
        example: Example,
        found: list[tuple[str, float, float]],
        missed: int,
        invented: int,
    ) -> None:
        expected = [press(example, "1", 1, 1.1), press(example, "2", 2, 2.1)]
        score = example.events.judge(
            expected, [press(example, *each) for each in found]
        )
        assert score == example.events.Score(2, missed, invented)
        assert score.error_rate == (missed + invented) / 2


class TestCamera:
    async def test_the_finder_finds_what_the_reader_reads(
        self, example: Example
    ) -> None:
        camera = example.camera
        async with asyncnn.open_device() as device:
            finder = await device.prepare(camera.finder())
            reader = await device.prepare(await camera.reader())
            right = 0
            for sight, _ in zip(camera.sights(), range(100), strict=False):
                place = int((await finder.run(sight.image))["place"][0])
                row, column = divmod(place, camera.PLACES)
                assert abs(row - sight.row) <= 6
                assert abs(column - sight.column) <= 6
                piece = camera.piece(sight.image, place)
                outputs = await reader.run(piece)
                right += outputs["probabilities"].argmax() == sight.digit
        assert right >= 75
