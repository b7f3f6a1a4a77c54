"""Wake words of a public package, step by step beside LiteRT's interpreter."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.tools.bench.measured_models import LiteRt
from tests.conftest import one_in

STEPS = 1000
WORDS = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")


@pytest.fixture(scope="module")
def models() -> Path:
    """The folder of the package's models."""
    pytest.importorskip("ai_edge_litert")
    found = importlib.util.find_spec("pymicro_wakeword")
    if found is None or found.origin is None:
        if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
            pytest.fail(
                "pymicro-wakeword is not installed: see tests/model_packages.txt"
            )
        pytest.skip("pymicro-wakeword is not installed: see tests/model_packages.txt")
    return Path(found.origin).parent / "models"


@pytest.mark.parametrize("path", one_in(4, ["async", "burst", "sync", "fenced"]))
@pytest.mark.parametrize("word", WORDS)
async def test_steps_give_what_litert_gives_to_the_bit(
    models: Path, word: str, path: Any
) -> None:
    file = models / f"{word}.tflite"
    litert = LiteRt(file)
    rng = np.random.default_rng(3)
    async with asyncnn.open_device("accelerated") as device:
        prepared = await device.prepare(asyncnn.load(file))
        (info,), (output,) = prepared.inputs, prepared.outputs
        async with prepared.session(path=path) as session:
            for step in range(STEPS):
                # Loud and soft in turn, as what a microphone hears.
                loudness = 1 + step % 200
                shape, high = info.dimensions, loudness + 1
                features = rng.integers(-loudness, high, shape).clip(-128, 127)
                x = features.astype(info.dtype)
                (expected,) = litert.run([x])
                outputs = await session.run(x)
                np.testing.assert_array_equal(outputs[output.name], expected, str(step))
            assert session.is_managed
            assert len(prepared.states) == len(await session.state()) > 1


@pytest.mark.parametrize("word", WORDS)
async def test_the_reference_device_gives_what_reference_kernels_give(
    models: Path, word: str
) -> None:
    file = models / f"{word}.tflite"
    litert = LiteRt(file, reference=True)
    rng = np.random.default_rng(0)
    async with asyncnn.open_device("reference") as device:
        prepared = await device.prepare(asyncnn.load(file))
        (info,), (output,) = prepared.inputs, prepared.outputs
        async with prepared.session() as session:
            # LiteRT's other kernels give another code of hey_mycroft in step 22.
            for step in range(300):
                x = rng.integers(-128, 128, info.dimensions).astype(info.dtype)
                (expected,) = litert.run([x])
                outputs = await session.run(x)
                np.testing.assert_array_equal(outputs[output.name], expected, str(step))


async def test_a_plain_run_is_the_first_step(models: Path) -> None:
    file = models / "hey_jarvis.tflite"
    x = np.full((1, 3, 40), 50, np.int8)
    async with asyncnn.open_device("accelerated") as device:
        prepared = await device.prepare(asyncnn.load(file))
        (expected,) = LiteRt(file).run([x])
        for _ in range(2):
            (actual,) = (await prepared.run(x)).values()
            np.testing.assert_array_equal(actual, expected)
