"""Models that a device with an extension does not take, and what is said of them."""

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.explain import Cause, explain
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import open_device
from tests.extensions.models import magnitude
from tests.extensions.vendor import (
    COMPLEX,
    COMPLEX_SCALAR,
    DECLARED_ONLY,
    F32,
    MAGNITUDE,
    RGB,
    SCALE,
    vendor,
)
from tests.preparing import launch_preparation

X = np.array([3 + 4j, 0, -1j], np.complex64)


class TestNotSupported:
    """Models whose extension the device lacks, or that it cannot compute."""

    @pytest.mark.parametrize(
        "model",
        [
            NamedModel.of(
                replace(
                    magnitude().model,
                    extension_name_to_prefix=(
                        ExtensionNameAndPrefix("com.example.elsewhere", 1),
                    ),
                ),
                ["x"],
                ["y"],
            ),
            magnitude(type_=DECLARED_ONLY),
            magnitude(type_=0x1_00FF),
        ],
        ids=["extension", "kernel", "number"],
    )
    async def test_it_is_told_and_preparing_fails(
        self, device: Device, model: NamedModel
    ) -> None:
        status, supported = await device.hal.get_supported_operations_1_3(model.model)
        assert (status, supported) == (ErrorStatus.NONE, (False,))
        assert await _prepared(device, model.model) == (
            ErrorStatus.NONE,
            ErrorStatus.GENERAL_FAILURE,
        )

    async def test_the_reason_names_what_is_missing(self) -> None:
        async with open_device() as device:
            (report,) = (await explain(device, magnitude())).operations
            assert report.cause is Cause.EXTENSION
            assert "com.example.vendor" in report.reason
            with pytest.raises(GeneralFailureError, match=r"com\.example\.vendor"):
                await device.prepare(magnitude())

    async def test_the_reason_names_what_has_no_kernel(self, device: Device) -> None:
        named = magnitude(type_=DECLARED_ONLY)
        (report,) = (await explain(device, named)).operations
        assert report.type == "com.example.vendor/DECLARED_ONLY"
        assert report.main_type == "com.example.vendor/TENSOR_COMPLEX64"
        assert report.cause is Cause.KERNEL
        assert "com.example.vendor/DECLARED_ONLY" in report.reason

    async def test_other_operations_of_the_model_are_supported(
        self, device: Device
    ) -> None:
        builder = ModelBuilder()
        x = builder.input("x", COMPLEX, (3,))
        y = builder.operation(DECLARED_ONLY, [x], Operand(F32, (3,)))
        builder.output(
            builder.operation(OperationType.RELU, [y], Operand(F32, (3,))), "y"
        )
        builder.output(
            builder.operation(MAGNITUDE, [x], Operand(F32, (3,))), "magnitude"
        )
        _, supported = await device.hal.get_supported_operations_1_3(
            builder.build().model
        )
        assert supported == (False, True, True)


def _broken_models() -> dict[str, NamedModel]:
    """Return models that break what only the extension demands."""

    def scaling(*inputs: int | None, builder: ModelBuilder) -> NamedModel:
        reads = [index for index in inputs if index is not None]
        builder.output(builder.operation(SCALE, reads, Operand(COMPLEX, (3,))), "y")
        return builder.build()

    models = {}
    b = ModelBuilder()
    models["count"] = scaling(b.input("x", COMPLEX, (3,)), builder=b)
    b = ModelBuilder()
    real = b.scalar(2.0)
    models["type"] = scaling(b.input("x", COMPLEX, (3,)), real, builder=b)
    b = ModelBuilder()
    two = b.scalar(2, COMPLEX_SCALAR)
    models["rank"] = scaling(b.input("x", COMPLEX, (1, 1, 3)), two, builder=b)
    b = ModelBuilder()
    x, two = b.input("x", COMPLEX, (3,)), b.input("two", COMPLEX_SCALAR, (1,))
    models["scalar with dimensions"] = scaling(x, two, builder=b)
    b = ModelBuilder()
    omitted = b.omitted(COMPLEX_SCALAR)
    models["omitted"] = scaling(b.input("x", COMPLEX, (3,)), omitted, builder=b)
    b = ModelBuilder()
    models["other type of the extension"] = scaling(
        b.input("x", RGB, (3,)), b.scalar(2, COMPLEX_SCALAR), builder=b
    )
    b = ModelBuilder()
    two = b.scalar(2, COMPLEX_SCALAR)
    model = scaling(b.constant(X, COMPLEX), two, builder=b).model
    constant = model.main.operands[1]
    for name, changed in {
        "short constant": replace(constant, location=DataLocation(0, 8, 16)),
        "open constant": replace(constant, dimensions=(0,)),
    }.items():
        operands = list(model.main.operands)
        operands[1] = changed
        main = replace(model.main, operands=tuple(operands))
        models[name] = NamedModel.of(replace(model, main=main), [], ["y"])
    b = ModelBuilder()
    x = b.operation(
        SCALE,
        [b.input("x", COMPLEX, (3,)), b.scalar(1, COMPLEX_SCALAR)],
        Operand(COMPLEX, (3,), extra_params=b"broadcast"),
    )
    models["check"] = scaling(x, b.scalar(2, COMPLEX_SCALAR), builder=b)
    return models


BROKEN = _broken_models()


RULES = {
    "count": "SCALE has 1 input",
    "type": "is FLOAT32, expected COMPLEX64",
    "rank": "has rank 3, expected 1 or 2",
    "scalar with dimensions": "is a scalar, but has dimensions",
    "omitted": "must not be omitted",
    "other type of the extension": "is TENSOR_RGB",
    "short constant": "is a constant of 16 bytes, expected 24",
    "open constant": "is a constant with open dimensions",
    "check": "cannot be broadcast",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_rule_is_told_where_the_extension_is_known(
    device: Device, name: str
) -> None:
    explanation = await explain(device, BROKEN[name], extensions=[vendor])
    (report,) = [r for r in explanation.operations if not r.is_supported]
    assert report.cause is Cause.SIGNATURE
    assert RULES[name] in report.reason
    (report,) = [
        r for r in (await explain(device, BROKEN[name])).operations if r.reason
    ]
    assert report.cause is Cause.KERNEL


@pytest.mark.parametrize("name", BROKEN)
async def test_rules_of_an_extension_are_enforced(device: Device, name: str) -> None:
    model = BROKEN[name].model
    status, supported = await device.hal.get_supported_operations_1_3(model)
    assert status is ErrorStatus.NONE
    assert supported[-1] is False
    assert await _prepared(device, model) == (
        ErrorStatus.NONE,
        ErrorStatus.INVALID_ARGUMENT,
    )


async def _prepared(device: Device, model: Model) -> tuple[ErrorStatus, ErrorStatus]:
    """Return the status of the launch and that of the preparation."""
    callback = PreparedModelFuture()
    launch = launch_preparation(device.hal, model, callback)
    try:
        await callback
    except AsyncnnError as error:
        return launch, error.status
    return launch, ErrorStatus.NONE
