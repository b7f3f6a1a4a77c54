"""examples/wakeword, beside LiteRT on the same stream."""

import asyncio
import importlib.util
import json
import os
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "examples" / "wakeword"
WORDS = ("alexa", "hey_jarvis", "hey_mycroft", "hey_rhasspy", "okay_nabu")
CHUNK, RATE = 1280, 16_000
SILENT = 27
"""Chunks of silence that the listener begins with."""


@pytest.fixture(scope="module")
def models() -> Path:
    found = importlib.util.find_spec("pyopen_wakeword")
    pytest.importorskip("ai_edge_litert")
    if found is None or found.origin is None:
        if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
            pytest.fail(
                "pyopen-wakeword is not installed: see tests/model_packages.txt"
            )
        pytest.skip("pyopen-wakeword is not installed: see tests/model_packages.txt")
    return Path(found.origin).parent / "models"


def sound(seconds: float) -> NDArray[np.int16]:
    """Return vowels of changing pitch and loudness, with noise between them."""
    rng = np.random.default_rng(8)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 110 + 40 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = 500 + 300 * np.sin(2 * np.pi * 1.9 * time)
    voice = sum(
        np.sin(k * phase) * np.exp(-(((k * pitch - formants) / 400) ** 2))
        for k in range(1, 20)
    )
    envelope = np.clip(np.sin(2 * np.pi * 1.3 * time), 0, 1)
    mixed = 6000 * voice * envelope + 300 * rng.standard_normal(len(time))
    return np.clip(mixed, -32768, 32767).astype(np.int16)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(sound(2.5).astype("<i2").tobytes())
    return path


class Interpreter:
    """LiteRT's, of one input and one output."""

    def __init__(self, path: Path, shape: tuple[int, ...] | None = None) -> None:
        from ai_edge_litert import interpreter

        self._of: Any = interpreter.Interpreter(str(path), num_threads=1)
        self._input = self._of.get_input_details()[0]["index"]
        if shape is not None:
            self._of.resize_tensor_input(self._input, shape)
        self._of.allocate_tensors()
        self._output = self._of.get_output_details()[0]["index"]

    def __call__(self, value: NDArray[Any]) -> NDArray[Any]:
        self._of.set_tensor(self._input, value.astype(np.float32))
        self._of.invoke()
        result: NDArray[Any] = self._of.get_tensor(self._output)
        return result


def expected_scores(models: Path, samples: NDArray[np.int16]) -> dict[str, list[float]]:
    """Compute the same on whole arrays: no windows that are kept, no sessions."""
    mel = Interpreter(models / "melspectrogram.tflite", (1, 1760))
    embed = Interpreter(models / "embedding_model.tflite")
    words = {word: Interpreter(models / f"{word}.tflite") for word in WORDS}
    chunks = SILENT + -(-len(samples) // CHUNK)
    audio = np.zeros(480 + chunks * CHUNK, np.float32)
    start = 480 + SILENT * CHUNK
    audio[start : start + len(samples)] = samples
    rows = [np.zeros((68, 32), np.float32)]
    embeddings = [np.zeros((1, 96), np.float32)] * 15
    scores: dict[str, list[float]] = {word: [] for word in WORDS}
    for chunk in range(chunks):
        heard = audio[chunk * CHUNK :][:1760]
        rows.append(mel(heard[None])[0, 0] / np.float32(10) + np.float32(2))
        seen = np.concatenate(rows)[-76:]
        embeddings.append(embed(seen[None, :, :, None])[0, 0])
        window = np.concatenate(embeddings)[None, -16:]
        if chunk >= SILENT:
            for word, interpreter in words.items():
                scores[word].append(interpreter(window).item())
    return scores


async def app(*arguments: object) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "app.py",
        *map(str, arguments),
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "ASYNCNN_DEVICE": "accelerated"},
    )
    async with asyncio.timeout(60):
        out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


@pytest.mark.parametrize("where", [(), ("--isolated",)], ids=["inprocess", "driver"])
async def test_scores_are_those_of_litert(
    models: Path, recording: Path, where: tuple[str, ...]
) -> None:
    scores = json.loads(await app(recording, "--fast", "--json", *where))
    expected = expected_scores(models, sound(2.5))
    assert scores.keys() == expected.keys()
    for word in WORDS:
        assert len(scores[word]) == len(expected[word]) == 32
        np.testing.assert_allclose(scores[word], expected[word], rtol=1e-4, atol=1e-6)
        assert len(set(scores[word])) > 16  # the sound does make a difference


async def test_a_timeline_tells_what_was_heard_when(
    models: Path, recording: Path
) -> None:
    # Of a sound without words something is likeliest all the same.
    expected = expected_scores(models, sound(2.5))
    word = max(WORDS, key=lambda each: max(expected[each]))
    best = max(expected[word])
    first = next(k for k, s in enumerate(expected[word], 1) if s >= best * 0.9)
    out = await app(
        recording, "--fast", "--words", word, "--threshold", str(best * 0.9)
    )
    lines = out.splitlines()
    assert lines[0].split()[:3] == [f"{first * 0.08:.2f}", "s", word]
    assert lines[-2].startswith(f"{word} |")
    assert lines[-1].startswith("2.6 s of sound in")


async def test_it_takes_as_long_as_the_sound_in_real_time(
    models: Path, recording: Path
) -> None:
    out = await app(recording, "--words", "alexa")
    took = float(out.splitlines()[-1].split(" in ")[1].split()[0])
    assert took >= 2.5


async def test_another_file_is_refused(models: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.wav").write_bytes(b"no sound")
    with pytest.raises(AssertionError, match=r"wakeword: .*noise\.wav"):
        await app(tmp_path / "noise.wav")
