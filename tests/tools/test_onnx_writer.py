"""Models written as ONNX compute the same in ONNX Runtime."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.measured_models import inputs_of
from asyncnn.tools.mobilenets import mobilenet_v1, mobilenet_v2
from asyncnn.tools.onnx_writer import OnnxRuntime, onnx_file
from asyncnn.tools.other_runtimes import PeerRefusedError
from tests.processes import python


@pytest.fixture
def _installed() -> None:
    for package in ("ai_edge_litert", "onnx", "onnxruntime"):
        pytest.importorskip(package)


def exact(named: NamedModel, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run as `OnnxRuntime`, but for sums that saturate on some processors."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4
    found: list[np.ndarray] = runtime.InferenceSession(onnx_file(named), options).run(
        None, feed
    )
    return found


async def check(path: Path, steps: float, atol: float) -> None:
    named = load(path)
    inputs = inputs_of(named)
    peer = OnnxRuntime(named)
    feed = peer.converted(inputs)
    outputs = exact(named, feed)
    assert [each.shape for each in peer.run(feed)] == [each.shape for each in outputs]
    async with open_device() as device:
        expected = (await (await device.prepare(named)).run(inputs)).values()
    for actual, wanted in zip(outputs, expected, strict=True):
        if wanted.dtype == np.int8:
            wanted = wanted.astype(np.int32) + 128
        limit = steps if actual.dtype == np.uint8 else atol
        np.testing.assert_allclose(actual.astype(np.float64), wanted, atol=limit)
    peer.bound(feed)()


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("make", [mobilenet_v1, mobilenet_v2], ids=["v1", "v2"])
async def test_mobilenets(tmp_path: Path, make: object, quantized: bool) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(make(quantized=quantized, size=32, width=0.25))  # type: ignore[operator]
    await check(path, steps=8, atol=1e-4)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "name", ["ad01_fp32", "kws_ref_model", "micro_speech_quantized", "pretrainedResnet"]
)
async def test_trained_models(shared: Path, name: str) -> None:
    await check(shared / "models" / f"{name}.tflite", steps=2, atol=1e-3)


@pytest.mark.usefixtures("_installed")
def test_what_is_not_written_is_refused_by_name() -> None:
    builder = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = builder.input("x", kind, (4,))
    none = builder.scalar(FusedActivationFunc.NONE)
    product = builder.operation(OperationType.MUL, [x, x, none], Operand(kind, (4,)))
    builder.output(product, "y")
    with pytest.raises(PeerRefusedError, match="MUL cannot be rewritten as ONNX"):
        onnx_file(builder.build())


def test_without_onnx_runtime_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    named = load(shared / "models" / "ad01_fp32.tflite")
    with pytest.raises(PeerMissingError, match=r"pip install asyncnn\[bench\]"):
        OnnxRuntime(named)


REPORTING = """
import os
from asyncnn.tools.other_runtimes import onnx_runtime_version

onnx_runtime_version()
for entry in os.scandir("/proc/self/fd"):
    print(os.path.realpath(entry.path))
"""


@pytest.mark.usefixtures("_installed")
def test_reports_to_the_makers_of_a_peer_do_not_run_beside_it() -> None:
    others = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    ran = python("-c", REPORTING, env=others, timeout=60, check=True)
    assert "onnxruntime" not in ran.stdout
