"""Relaxed models as float16: where that was measured to gain, and nowhere else."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.devices import DeviceSettings
from asyncnn.devices.litert import delegate as delegates
from asyncnn.devices.litert.c_api import LiteRtLibrary
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import Engine
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ModelTime,
    ReferenceWorkload,
    store_measurement,
)
from asyncnn.engine import Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Model, OperandType
from asyncnn.runtime.explain import explain
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.conformance.judging import compare
from asyncnn.tools.conformance.vectors import find_specs, load_cases
from tests.conftest import SHARED
from tests.devices.cache.folder import Folder
from tests.devices.cache.models import INPUTS, dense

FORCED = 4
RELAXED = "Model.relax_computation_float32_to_float16"

Options = dict[str, int | str]


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing to the kernels: these models are small."""
    monkeypatch.setattr(delegates, "WORTHWHILE_NS", 0.0)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each graph that was compiled is to be computed as float16."""
    told: list[bool] = []
    compile_ = LiteRtLibrary.compile

    def compiling(library: LiteRtLibrary, model: int, options: Options) -> int:
        told.append(bool(int(options.get("flags", 0)) & FORCED))
        return compile_(library, model, options)

    monkeypatch.setattr(LiteRtLibrary, "compile", compiling)
    return told


def relaxed(model: Model) -> Model:
    return replace(model, relax_computation_float32_to_float16=True)


def settings(tmp_path: Path, times: Mapping[str, ModelTime] | None) -> DeviceSettings:
    """Return those of a device on a machine where this was measured before."""
    path = str(tmp_path / "figures.json")
    if times is not None:
        ones = dict.fromkeys(ReferenceWorkload, 1.0)
        made_up = CapabilityMeasurement.now(ones, times)
        store_measurement(replace(made_up, boot="an earlier one"), path)
    return DeviceSettings(capabilities_file=path)


def times_of(*ratios: float | None) -> dict[str, ModelTime]:
    return {
        f"model {n}": ModelTime(0.5, quantized=ratio is None, float16=ratio)
        for n, ratio in enumerate(ratios)
    }


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("times", "chosen", "told"),
    [
        (None, None, "not used: not measured before this boot"),
        (times_of(None), None, "not used: not measured"),
        (times_of(None, 2.0, 0.5), None, "not used: float16 takes 1.00 times as long"),
        (times_of(None, 0.25, 1.0), None, "used: float16 takes 0.50 times as long"),
        (times_of(0.5), False, "not used: by DeviceSettings.relaxed_as_float16"),
        (None, True, "used: by DeviceSettings.relaxed_as_float16"),
    ],
)
async def test_it_is_used_where_it_was_measured_to_gain(
    times: Mapping[str, ModelTime] | None,
    chosen: bool | None,
    told: str,
    quantized: bool,
    forced: list[bool],
    tmp_path: Path,
) -> None:
    exact = dense(quantized=quantized)
    named = NamedModel(relaxed(exact.model), exact.inputs, exact.outputs)
    x = np.random.default_rng(1).normal(size=(1, INPUTS)).astype(np.float32)
    x = x.astype(np.uint8) if quantized else x
    given = replace(settings(tmp_path, times), relaxed_as_float16=chosen)
    async with open_device("accelerated", settings=given) as device:
        runs = [await device.prepare(each) for each in (exact, named)]
        forced.clear()  # of the exact one
        results = [(await each.run(x))["y"] for each in runs]
        again = await device.prepare(named)
        results.append((await again.run(x))["y"])
        hints = (await explain(device, named)).hal_hints
        capabilities = device.capabilities
    is_used = told.startswith("used")
    assert any(forced) is (is_used and not quantized)
    assert hints[RELAXED].startswith(told)
    if any(forced):
        np.testing.assert_allclose(results[1], results[0], atol=0.3)
    else:
        np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[1], results[2])
    (usual,) = (
        each.info.exec_time
        for each in capabilities.operand_performance
        if each.type is OperandType.TENSOR_FLOAT32
    )
    share = 0.5 if is_used and times else 1.0
    tensor = capabilities.relaxed_float32_to_float16_performance_tensor
    assert tensor.exec_time == pytest.approx(share * usual)
    scalar = capabilities.relaxed_float32_to_float16_performance_scalar
    assert scalar.exec_time == share


async def test_what_is_not_relaxed_stays_as_it_is(forced: list[bool]) -> None:
    model = dense(quantized=False)
    given = DeviceSettings(relaxed_as_float16=True)
    async with open_device("accelerated", settings=given) as device:
        await device.prepare(model)
    assert forced
    assert not any(forced)


VECTORS = (
    *("avg_pool_float_5", "conv_float_channels", "depthwise_conv2d_float_large"),
    *("fully_connected_float", "l2_normalization_large", "local_response_norm_float_3"),
    *("logistic_float_2", "mean_float_1", "mobilenet_224_gender_basic_fixed"),
    *("resize_bilinear", "softmax_float_2", "tanh"),
)
SPECS = [
    path
    for path in find_specs(SHARED / "vts")
    if path.name.removesuffix("_relaxed.json.gz") in VECTORS
]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_vectors_stay_within_the_criterion(
    path: Path, c_api: Engine, forced: list[bool]
) -> None:
    delegate = LiteRtDelegate(c_api, float16=True)
    for case in load_cases(path):
        shapes = tuple(None if x is None else x.shape for x in case.inputs)
        program = Program(case.model, delegate=delegate)
        plan = program.plan(shapes)
        outputs = run_straight(program, plan, case.inputs, [None] * len(plan.outputs))
        assert not compare(case, outputs)
    assert any(forced)


def test_a_cpu_that_cannot_computes_float32(
    c_api: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(library: LiteRtLibrary, model: int, options: Options) -> int:
        if "flags" in options:
            raise GeneralFailureError("LiteRtCreateCompiledModel failed")
        return compile_(library, model, options)

    model = dense(quantized=False).model
    want = _outputs(LiteRtDelegate(c_api), model)
    compile_ = LiteRtLibrary.compile
    monkeypatch.setattr(LiteRtLibrary, "compile", refused)
    got = _outputs(LiteRtDelegate(c_api, float16=True), relaxed(model))
    np.testing.assert_array_equal(got, want)


def _outputs(delegate: LiteRtDelegate, model: Model) -> Array:
    program = Program(model, delegate=delegate)
    plan = program.plan(program.declared_shapes)
    x = np.random.default_rng(1).normal(size=(1, INPUTS)).astype(np.float32)
    (y,) = run_straight(program, plan, [x], [None])
    return y


@pytest.mark.parametrize("is_relaxed", [True, False])
@pytest.mark.parametrize("saves", [True, False])
def test_a_cache_of_one_kind_is_not_used_by_the_other(
    tmp_path: Path, c_api: Engine, saves: bool, is_relaxed: bool
) -> None:
    """Where the model is not relaxed there is but one kind."""
    model = dense(quantized=False).model
    folders = [
        Folder(tmp_path, LiteRtDelegate(c_api, float16=float16))
        for float16 in (saves, not saves)
    ]
    folders[0].save(relaxed(model) if is_relaxed else model)
    assert folders[0].load()
    if is_relaxed:
        with pytest.raises(GeneralFailureError, match="another engine"):
            folders[1].load()
    else:
        assert folders[1].load()
