"""Models that ship in public packages load, and step by step agree with LiteRT."""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from tests.conftest import one_in
from tests.runtime.tflite.stepping import LiteRtSteps, Steps, assert_steps_agree

MICRO = [
    f"pymicro_wakeword/models/{name}.tflite"
    for name in ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
]
OPEN = [
    f"pyopen_wakeword/models/{name}.tflite"
    for name in (
        *("alexa", "embedding_model", "hey_jarvis", "hey_mycroft", "hey_rhasspy"),
        "okay_nabu",
    )
]
PITCH = "basic_pitch/saved_models/icassp_2022/nmp.tflite"
SPECTRUM = "pyopen_wakeword/models/melspectrogram.tflite"


def packaged(file: str) -> Path:
    """Return the path of a file in an installed package, which is not imported."""
    package, rest = file.split("/", 1)
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
            pytest.fail(f"{package} is not installed; see tests/model_packages.txt")
        pytest.skip(f"{package} is not installed; see tests/model_packages.txt")
    return Path(next(iter(spec.submodule_search_locations))) / rest


@pytest.mark.parametrize("file", one_in(4, MICRO))
def test_integer_models_with_variables_give_the_bits_of_litert(file: str) -> None:
    path = packaged(file)
    named = asyncnn.load(path)
    rng = np.random.default_rng(0)
    shape = named.inputs[0].dimensions
    samples = [(rng.integers(-128, 128, shape),) for _ in range(1000)]
    steps = assert_steps_agree(path.read_bytes(), samples)
    assert len(steps.states) == 6
    assert all(int(state.max()) - int(state.min()) > 50 for state in steps.states)


@pytest.mark.parametrize(
    "file", [*OPEN, pytest.param(PITCH, marks=pytest.mark.exhaustive)]
)
def test_float_models_agree_with_litert(file: str) -> None:
    path = packaged(file)
    rng = np.random.default_rng(0)
    inputs = asyncnn.load(path).inputs
    samples = [
        [rng.normal(0, scale, info.dimensions) for info in inputs] for scale in (1, 5)
    ]
    assert_steps_agree(path.read_bytes(), samples, tolerance=1e-4, reference=False)


def test_a_model_with_two_branches_agrees_on_either() -> None:
    path = packaged(OPEN[2])
    named = asyncnn.load(path, strict=True)
    assert len(named.model.referenced) == 2
    rng = np.random.default_rng(1)
    samples = [[rng.normal(0, 5, named.inputs[0].dimensions)] for _ in range(40)]
    steps = Steps(named)
    scores = [float(steps.step(*sample)[0].item()) for sample in samples]
    assert min(scores) < 0.1
    assert max(scores) > 0.9
    assert_steps_agree(path.read_bytes(), samples, tolerance=1e-4, reference=False)


@pytest.mark.parametrize("length", [512, 1760, 16_000])
def test_sound_of_any_length_becomes_a_spectrum(length: int) -> None:
    path = packaged(SPECTRUM)
    (name,) = (info.name for info in asyncnn.load(path).inputs)
    sound = np.random.default_rng(0).normal(0, 1000, (1, length)).astype(np.float32)
    named = asyncnn.load(path, input_shapes={name: sound.shape})
    (actual,) = Steps(named).step(sound)
    reference = LiteRtSteps(path.read_bytes(), reference=False, shapes=[sound.shape])
    (expected,) = reference.step(sound)
    assert actual.shape == expected.shape == (1, 1, (length - 512) // 160 + 1, 32)
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-3)
