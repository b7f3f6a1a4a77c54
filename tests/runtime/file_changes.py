"""Changes model files and caches in place, at every moment.

A process of its own: where a mapping of a file has lost bytes, the system ends it.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.container import save
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel

SIZE, LAYERS = 760, 2
"""Weights of more than a mebibyte are kept as the engine packs them."""

rng = np.random.default_rng(7)
WEIGHTS = [rng.uniform(-0.05, 0.05, (SIZE, SIZE)).astype(np.float32) for _ in "ab"]
X = rng.uniform(-1, 1, (1, SIZE)).astype(np.float32)
Y = X @ WEIGHTS[0].T @ WEIGHTS[1].T


def container(folder: Path) -> list[Path]:
    builder = asyncnn.ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    value = builder.input("x", kind, (1, SIZE))
    for weights in WEIGHTS:
        bias = builder.constant(np.zeros(SIZE, np.float32))
        none = builder.scalar(FusedActivationFunc.NONE)
        value = builder.operation(
            OperationType.FULLY_CONNECTED,
            [value, builder.constant(weights), bias, none],
            Operand(kind, (1, SIZE)),
        )
    builder.output(value, "y")
    save(builder.build(), folder / "model.asyncnn")
    return [folder / "model.asyncnn"]


def tflite(folder: Path) -> list[Path]:
    from tests.runtime.tflite.files import Op, T, write

    value = first = T(np.float32, (1, SIZE))
    operators = []
    for weights in WEIGHTS:
        result = T(np.float32, (1, SIZE))
        given = [value, T.constant(weights, np.float32), None]
        name = "FULLY_CONNECTED"
        operators.append(Op(name, given, [result], "FullyConnectedOptions"))
        value = result
    path = folder / "model.tflite"
    path.write_bytes(write(operators, [first], [value]))
    return [path]


def onnx(folder: Path, *, is_external: bool = False) -> list[Path]:
    import onnx as package
    from onnx import helper

    from tests.runtime.onnx.files import model, tensor

    names = ["x", "h", "y"]
    nodes = [
        helper.make_node("Gemm", [names[i], f"w{i}"], [names[i + 1]], transB=1)
        for i in range(LAYERS)
    ]
    given = {f"w{i}": weights for i, weights in enumerate(WEIGHTS)}
    proto = model(nodes, [tensor("x", (1, SIZE))], ["y"], given)
    path, beside = folder / "model.onnx", folder / "weights.bin"
    beside.unlink(missing_ok=True)  # the package adds to a file that is there
    package.save(proto, path, save_as_external_data=is_external, location=beside.name)
    return [path, beside] if is_external else [path]


def external(folder: Path) -> list[Path]:
    return onnx(folder, is_external=True)


KINDS: dict[str, Callable[[Path], list[Path]]] = {
    each.__name__: each for each in (container, tflite, onnx, external)
}


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_part(path: Path) -> None:
    os.truncate(path, min(5000, path.stat().st_size))


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


def copy_over(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"\xff" * 100)
    shutil.copyfile(other, path)


CHANGES = (cut, cut_in_part, overwrite, copy_over)
MOMENTS = ("loaded", "prepared", "run")


@asynccontextmanager
async def opened(way: str, device: str, folder: Path) -> AsyncIterator[Device]:
    """Open a device that keeps models in ``folder / "cache"``."""
    settings = DeviceSettings(
        cache_key_file=str(folder / "key"), packed_weights_dir=str(folder / "packed")
    )
    cache = folder / "cache"
    if way == "in process":
        one = asyncnn.open_device(device, settings=settings, cache_dir=cache)
        async with one as here:
            yield here
        return
    async with asyncnn.connect(
        device=device,
        settings=settings,
        cache_dir=None if way == "framework" else cache,
    ) as driver:
        if way == "driver":
            yield driver
            return
        async with asyncnn.open_devices(
            driver, "reference", settings=settings, cache_dir=cache
        ) as both:
            yield both


def tell(*what: str) -> None:
    """Say what comes: this process may end there."""
    sys.stdout.write(" ".join(what) + "\n")
    sys.stdout.flush()


def kept_in(folder: Path) -> list[Path]:
    found = [*folder.glob("cache/*"), *folder.glob("packed/*")]
    assert len(found) >= 2, found
    return found


WAYS = ("in process", "driver", "framework")


async def check(prepared: PreparedModel) -> None:
    (y,) = (await prepared.run(X)).values()
    np.testing.assert_allclose(y, Y, rtol=1e-3, atol=1e-4)


async def change_models(kind: str, way: str, folder: Path) -> None:
    """Change the files of a model after it was loaded, prepared, or run."""
    for device in ("reference", "accelerated"):
        async with opened(way, device, folder) as target:
            for change in CHANGES:
                for moment in MOMENTS:
                    tell(way, device, change.__name__, moment)
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                    files = KINDS[kind](folder)
                    named = asyncnn.load(files[0])
                    for now in MOMENTS:
                        if now == "prepared":
                            prepared = await target.prepare(named)
                        elif now == "run":
                            await check(prepared)
                        if now == moment:
                            for file in files:
                                change(file)
                    await check(prepared)
                    await check(await target.prepare(named))


async def change_caches(kind: str, way: str, folder: Path) -> None:
    """Change the files that a model was loaded from, before and after it was run."""
    named = asyncnn.load(KINDS[kind](folder)[0], strict=True)
    for device in ("reference", "accelerated"):
        async with opened(way, device, folder) as target:
            for change in CHANGES:
                for moment in MOMENTS[1:]:
                    tell(way, device, change.__name__, moment)
                    for kept in ("cache", "packed"):
                        shutil.rmtree(folder / kept, ignore_errors=True)
                    await check(await target.prepare(named))
                    prepared = await target.prepare(named)
                    if moment == "run":
                        await check(prepared)
                    for file in kept_in(folder):
                        change(file)
                    await check(prepared)
                    await check(await target.prepare(named))


SCENES = {"models": change_models, "caches": change_caches}

if __name__ == "__main__":
    scene, kind, way, folder = sys.argv[1:]
    asyncio.run(SCENES[scene](kind, way, Path(folder)))
    tell("done")
