"""The page about what model files bring along, as a reader tries it out."""

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.extensions.regions import region_of
from asyncnn.hal.validate import validate_model
from tests.runtime.onnx.files import classifier as dictionaries
from tests.runtime.test_translation import sums
from tests.runtime.tflite.files import Op, Signature, T, write
from tests.runtime.tflite.metadata_files import Described, archive, written
from tests.runtime.tflite.region_cases import volumes
from tests.runtime.tflite.stepping import Steps
from tests.runtime.tflite.test_packaged_models import SPECTRUM, packaged
from tests.runtime.tflite.test_variables import accumulator
from tests.walk import code_of

PAGE = Path(__file__).parents[2] / "docs" / "model-files.md"
FORMS, CLASSES, REGION, BUILD, STATES, SIGNATURE, LENGTHS, METADATA, MAPPED = code_of(
    PAGE.read_text()
)


def classifier() -> bytes:
    image, scores = T(np.float32, (1, 2), name="image:0"), T(np.float32, (1, 2))
    return write(
        [Op("SOFTMAX", [image], [scores], "SoftmaxOptions", {"Beta": 1.0})],
        [image],
        [scores],
        signatures=[Signature("serve", {"image": image}, {"scores": scores})],
        metadata=written(
            [Described("image", mean=[0.5], std=[0.25])],
            [Described("class", files=[("labels.txt", 2, "")])],
        ),
    ) + archive({"labels.txt": "cat\ndog\n"})


async def run(code: str, **names: Any) -> dict[str, Any]:
    """Run code that may await; return its variables."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    names["asyncnn"] = asyncnn
    result = eval(compile(code, PAGE.name, "exec", flags), names)
    if inspect.isawaitable(result):
        await result
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wake_word.tflite").write_bytes(accumulator())
    Path("encoder.onnx").write_bytes(sums())
    Path("volumes.tflite").write_bytes(volumes())
    proto = dictionaries(["setosa", "virginica"])
    Path("iris.onnx").write_bytes(proto.SerializeToString())
    for name in ("model", "classifier"):
        Path(f"{name}.tflite").write_bytes(classifier())


async def test_a_file_is_translated_where_there_is_no_engine() -> None:
    names = await run(FORMS)
    assert region_of(names["model"].model) is not None
    assert names["prepared"].inputs[0].dtype == np.int32
    assert region_of(names["operations"].model) is None


async def test_classes_are_named() -> None:
    features = np.array([[0, 1, 2, 3]], np.float32)
    async with asyncnn.open_device("auto") as device:
        prepared = await device.prepare(asyncnn.load("iris.onnx"))
        names = await run(CLASSES, prepared=prepared, features=features)
    found = names["probabilities"]
    assert [*found] == ["setosa", "virginica"]
    assert names["names"] == [max(found, key=found.get)]


async def test_a_file_without_a_hal_form_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await run(REGION)
    assert capsys.readouterr().out == "(1, 4, 5, 6, 2) CONV_3D\n"


async def test_a_model_with_bodies_is_built() -> None:
    model = (await run(BUILD))["model"]
    validate_model(model.model)
    steps, x = Steps(model), np.array([-1, 0, 2], np.float32)
    np.testing.assert_allclose(steps.step([True], x), [np.exp(x)], 1e-6)
    np.testing.assert_array_equal(steps.step([False], x), [np.abs(x)])


async def test_states_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    await run(STATES)
    assert capsys.readouterr().out == "total (3,) [10. 20. 30.]\n"


async def test_a_signature_is_run() -> None:
    image = np.zeros((1, 2), np.float32)
    async with asyncnn.open_device("reference") as device:
        names = await run(SIGNATURE, device=device, image=image)
    np.testing.assert_array_equal(names["scores"], [[0.5, 0.5]])


async def test_sound_gets_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packaged(SPECTRUM).parent)
    names = await run(LENGTHS)
    assert names["spectrum"].outputs[0].dimensions == (1, 1, 8, 32)


async def test_an_image_is_normalised() -> None:
    names = await run(METADATA, image=np.ones((1, 2), np.float32))
    assert names["labels"] == ("cat", "dog")
    np.testing.assert_array_equal(names["image"], [[2, 2]])


async def test_a_file_is_mapped_by_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(classifier())  # noqa: ASYNC240 - of some bytes
    names = await run(MAPPED)
    assert names["model"].metadata.outputs[0].labels == ("cat", "dog")
