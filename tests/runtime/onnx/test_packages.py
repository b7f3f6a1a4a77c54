"""The ONNX models that ship in public packages, beside ONNX Runtime."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import asyncnn
from asyncnn.runtime.tflite import UnsupportedOperatorError

VAD = {"input": (1, 576), "state": (2, 1, 128)}
RATE = {"sr": 16000}

CASES: list[tuple[str, dict[str, tuple[int, ...]], dict[str, int]]] = [
    ("silero_vad/data/silero_vad.onnx", VAD, RATE),
    (
        "silero_vad/data/silero_vad.onnx",
        {"input": (1, 288), "state": (2, 1, 128)},
        {"sr": 8000},
    ),
    ("silero_vad/data/silero_vad_16k_op15.onnx", VAD, RATE),
    ("silero_vad/data/silero_vad_op18_ifless.onnx", VAD, RATE),
    ("silero_vad/data/silero_vad_half.onnx", VAD, {}),
    ("silero_vad/data/silero_vad_openvino_16k.onnx", {}, {}),
    ("silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (20, 576)}, {}),
    (
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        {"x": (1, 3, 48, 192)},
        {},
    ),
    ("rapidocr/models/PP-OCRv6_det_small.onnx", {"x": (1, 3, 96, 128)}, {}),
    ("rapidocr/models/PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 160)}, {}),
    (
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
        {},
    ),
    ("onnxruntime/datasets/mul_1.onnx", {}, {}),
    ("onnxruntime/datasets/sigmoid.onnx", {}, {}),
]

ABSOLUTE, RELATIVE = 1e-6, 1e-4
"""Within these, of the largest result, are runtimes that sum up in another order."""


def path_of(model: str) -> Path:
    """Return where a package has a model; skip if the package is not there."""
    package, _, rest = model.partition("/")
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(found.submodule_search_locations[0]) / rest


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize(("model", "shapes", "constants"), CASES)
@pytest.mark.parametrize(
    "leave_open", [False, pytest.param(True, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("device", ["reference", "onnxruntime"])
async def test_models_of_packages_agree_with_onnx_runtime(
    model: str, shapes: Any, constants: Any, leave_open: bool, device: str
) -> None:
    path = path_of(model)
    session = session_of(path)
    rng = np.random.default_rng(7)
    inputs = {
        info.name: (
            0.3 * rng.standard_normal(shapes.get(info.name, info.shape))
        ).astype(np.float32)
        if info.name not in constants
        else np.array(constants[info.name])
        for info in session.get_inputs()
    }
    options = {} if leave_open else {"input_shapes": shapes}
    named = asyncnn.load(path, constants=constants, **options)
    given = {name: array for name, array in inputs.items() if name not in constants}
    async with asyncnn.open_device(device) as opened:
        refusal = ""
        try:
            prepared = await opened.prepare(named)
        except asyncnn.AsyncnnError as error:
            refusal = error.hint or "no hint"
        if refusal:
            # What cannot be open in the HAL says so, and what to give.
            assert leave_open
            assert device == "reference"
            assert "input_shapes=" in refusal
            return
        found = await prepared.run(given)
    for name, wanted in zip(found, session.run(None, inputs), strict=True):
        limit = max(ABSOLUTE, RELATIVE * abs(wanted).max())
        np.testing.assert_allclose(
            found[name].reshape(wanted.shape), wanted, rtol=0, atol=limit
        )


def test_some_keep_their_axes_open() -> None:
    for model, open_axes in (
        ("rapidocr/models/PP-OCRv6_det_small.onnx", (0, 3, 0, 0)),
        ("silero_vad/data/silero_vad_16k_sequence.onnx", (0, 576)),
    ):
        named = asyncnn.load(path_of(model))
        assert named.inputs[0].dimensions == open_axes


def test_a_model_of_another_domain_is_refused_by_name() -> None:
    path = path_of("onnxruntime/datasets/logreg_iris.onnx")
    with pytest.raises(UnsupportedOperatorError) as found:
        asyncnn.load(path, strict=True)
    for name in ("LinearClassifier", "Normalizer", "ZipMap"):
        assert f"(ai.onnx.ml.{name})" in str(found.value)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("silero_vad.onnx", {"input_shapes": VAD, "constants": RATE}),
        ("silero_vad_half.onnx", {"input_shapes": {"input": (0, 576)}}),
        ("silero_vad_op18_ifless.onnx", {"input_shapes": VAD, "constants": RATE}),
        ("silero_vad_openvino_16k.onnx", {}),
        ("silero_vad_16k_sequence.onnx", {"input_shapes": {"input": (3, 576)}}),
    ],
)
@pytest.mark.parametrize("device", ["reference", "accelerated", "auto"])
async def test_sessions_keep_what_detectors_of_voices_are_given_back(
    model: str, options: Any, device: str
) -> None:
    path = path_of(f"silero_vad/data/{model}")
    peer = session_of(path)
    named = asyncnn.load(path, **options)
    pairs = dict(named.pairs)
    assert pairs in ({"state": "stateN"}, {"h": "hn", "c": "cn"})
    fed: dict[str, Any] = {s.info.name: s.first_value() for s in named.kept}
    if any(info.name == "sr" for info in peer.get_inputs()):
        fed["sr"] = np.array(16000)
    rng = np.random.default_rng(3)
    length = named.inputs[0].dimensions[0] or 1
    async with asyncnn.open_device(device) as opened:
        prepared = await opened.prepare(named)
        async with prepared.session() as session:
            for _ in range(4):
                sound = (0.3 * rng.standard_normal((length, 576))).astype(np.float32)
                found = await session.run(sound)
                names = [info.name for info in peer.get_outputs()]
                values = peer.run(None, {"input": sound, **fed})
                wanted = dict(zip(names, values, strict=True))
                fed.update({before: wanted[after] for before, after in pairs.items()})
                (name,) = found
                np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-5)
            for name, array in (await session.state()).items():
                np.testing.assert_allclose(array, fed[name], rtol=0, atol=1e-4)
