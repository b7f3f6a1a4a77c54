"""The extension of examples/extension, and the program that uses it."""

import os
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.extensions import load_extension
from asyncnn.hal.types import Operand
from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "extension"


@pytest.fixture(scope="module")
def spectral() -> asyncnn.Extension:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return load_extension("spectral:spectral")


def spectrogram(
    extension: asyncnn.Extension, samples: int, window: int, hop: int
) -> asyncnn.NamedModel:
    builder = asyncnn.ModelBuilder()
    sound = builder.input("sound", asyncnn.OperandType.TENSOR_FLOAT32, (2, samples))
    result = builder.operation(
        extension.operation_types[0],
        [sound, builder.scalar(window), builder.scalar(hop)],
        Operand(extension.operand_types[0], (0, 0, 0)),
    )
    builder.output(result, "spectrogram")
    return builder.build()


def device_with(extension: asyncnn.Extension) -> asyncnn.DeviceSettings:
    return asyncnn.DeviceSettings(extensions=(extension,))


@pytest.mark.parametrize(("samples", "window", "hop"), [(64, 16, 4), (50, 15, 7)])
async def test_a_spectrogram_is_that_of_each_window(
    spectral: asyncnn.Extension, samples: int, window: int, hop: int
) -> None:
    sound = np.random.default_rng(1).normal(size=(2, samples)).astype(np.float32)
    async with asyncnn.open_device(settings=device_with(spectral)) as device:
        model = await device.prepare(spectrogram(spectral, samples, window, hop))
        (found,) = (await model.run([sound])).values()
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    starts = range(0, samples - window + 1, hop)
    expected = [np.fft.rfft(sound[:, k : k + window] * hann) for k in starts]
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=1e-5)


@pytest.mark.parametrize(("window", "hop"), [(65, 1), (1, 1), (16, 0)])
async def test_windows_that_do_not_fit_are_refused(
    spectral: asyncnn.Extension, window: int, hop: int
) -> None:
    async with asyncnn.open_device(settings=device_with(spectral)) as device:
        with pytest.raises(asyncnn.GeneralFailureError, match="SPECTROGRAM"):
            await device.prepare(spectrogram(spectral, 64, window, hop))


def test_the_pitch_is_the_same_in_this_process_and_in_a_driver(tmp_path: Path) -> None:
    ran = python(FOLDER / "app.py", tmp_path / "pitch.asyncnn", timeout=60, check=True)
    here, driver, *elsewhere = ran.stdout.splitlines()
    pitches = [int(pitch) for pitch in here.split(":")[1].split()]
    assert pitches == [int(pitch) for pitch in driver.split(":")[1].split()]
    rising = [500 + 2000 * (k * 1024 + 256) / 8000 for k in range(8)]
    np.testing.assert_allclose(pitches, rising, atol=16)
    assert [line.split(":")[0] for line in elsewhere] == [
        "elsewhere operation 0",
        "elsewhere operation 1",
    ]
    check_the_command_line(tmp_path / "pitch.asyncnn")


def check_the_command_line(model: Path) -> None:
    command = ["-m", "asyncnn", "run", model, "--explain"]
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])])
    extended = [*command, "--extension", "spectral:spectral"]
    environment = {**os.environ, "PYTHONPATH": path}
    ran = python(*extended, env=environment, timeout=60, check=True)
    assert "supports 3 of 3 operations" in ran.stdout
    ran = python(*command)
    assert ran.returncode == 1
    assert "com.example.spectral" in ran.stdout
