"""The backend interface of the `onnx` package, by its own runner and by hand."""

import importlib.util
import json
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from asyncnn import onnx_backend
from tests.processes import python

RUNNER = """
import json, os, sys
from asyncnn import onnx_backend
from tests.runtime.onnx.backend_cases import ended

found = {}
for device, patterns in json.loads(sys.argv[1]).items():
    os.environ["ASYNCNN_DEVICE"] = device
    found[device] = ended(patterns)
    onnx_backend.close()
print(json.dumps(found))
"""
"""Runs cases on several devices in one process, as to make them takes long."""


@pytest.fixture(autouse=True)
def closed_at_last() -> Iterator[None]:
    yield
    onnx_backend.close()


def test_a_prepared_model_runs_with_arrays_in_order_by_name_and_alone() -> None:
    prepared = onnx_backend.prepare(onnx.ModelProto.FromString(doubling()))
    x = np.arange(3, dtype=np.float32)
    for given in ([x], {"x": x}, x):
        outputs = prepared.run(given)
        np.testing.assert_array_equal(outputs[0], 2 * x)
        np.testing.assert_array_equal(outputs["y"], 2 * x)


def doubling() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "doubling",
        [info("x", TensorProto.FLOAT, [3])],
        [info("y", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def test_a_node_runs_alone() -> None:
    node = helper.make_node("Mul", ["a", "b"], ["c"])
    a, b = np.full((2, 2), 3, np.float32), np.eye(2, dtype=np.float32)
    (result,) = onnx_backend.run_node(node, [a, b])
    np.testing.assert_array_equal(result, a * b)


def test_only_the_cpu_is_a_device_of_it() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    model = onnx.ModelProto.FromString(doubling())
    assert onnx_backend.is_compatible(model)


def test_the_runner_of_the_package_takes_it() -> None:
    chosen = ["relu", "add", "add_bcast", "softmax_axis_1", "BatchNorm3d_eval"]
    on = {"accelerated": chosen, "auto": chosen}
    if importlib.util.find_spec("onnxruntime") is not None:  # not to be imported
        on["auto"] = [*chosen, "reduce_sum_empty_set", "nonzero_example"]
    patterns = {each: [f"^test_{name}_cpu$" for name in on[each]] for each in on}
    ran = python("-c", RUNNER, json.dumps(patterns))
    assert not ran.returncode, ran.stderr
    assert json.loads(ran.stdout) == {
        each: {f"test_{name}_cpu": "passed" for name in on[each]} for each in on
    }
