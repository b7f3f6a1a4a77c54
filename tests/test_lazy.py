"""What a process loads: the parts of the package that it uses."""

import ast
import pickle
import pydoc
import re
from importlib import import_module
from pathlib import Path

import pytest

import asyncnn
from asyncnn.service.process import driver_process
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.processes import python

LAZY = (
    "asyncnn",
    "asyncnn.burst",
    "asyncnn.devices",
    "asyncnn.kernels",
    "asyncnn.memory",
    "asyncnn.service",
)

CLIENT = """
import asyncio, sys
import numpy as np
from asyncnn import connect
from tests.networks import addition

async def main():
    async with connect(sys.argv[1]) as device:
        model = await device.prepare(addition(2))
        x = np.ones(2, np.float32)
        await model.run({"x": x, "y": x})

asyncio.run(main())
"""


RUN = """
import asyncio, sys
import asyncnn
import numpy as np

async def main():
    model = await asyncnn.load_model(sys.argv[1])
    async with asyncnn.open_device("accelerated") as device:
        prepared = await device.prepare(model)
        await prepared.run(np.zeros((1, 32, 32, 3), np.int8))

asyncio.run(main())
"""


def loaded_after(code: str, *arguments: str) -> set[str]:
    """Return the modules of the package, and of others, that ``code`` loads."""
    code += "\nimport sys; print(*sys.modules)"
    done = python("-c", code, *arguments, check=True, timeout=60)
    return set(done.stdout.split())


def parts_of(modules: set[str]) -> set[str]:
    return {m.split(".")[1] for m in modules if m.startswith("asyncnn.")}


def test_importing_the_package_loads_nothing_of_it() -> None:
    modules = loaded_after("import asyncnn")
    assert parts_of(modules) == {"lazy"}
    assert not {"asyncio", "msgspec", "numpy", "tflite", "typer"} & modules


def test_what_logs_imports_the_hal_which_keeps_it_quiet() -> None:
    root = Path(asyncnn.__file__).parent
    logging = [
        path for path in root.rglob("*.py") if "logging.getLogger" in path.read_text()
    ]
    assert len(logging) > 20
    for path in logging:
        if path != root / "hal" / "__init__.py":
            assert re.search(r"from asyncnn\.(hal|logs|qos)", path.read_text()), path


def test_a_client_of_a_driver_process_loads_no_engine_and_no_kernels() -> None:
    with driver_process() as driver:
        modules = loaded_after(CLIENT, str(driver.path))
    assert "asyncnn.service.client.remote_device" in modules
    assert not {"cli", "engine", "metrics", "pipeline", "tools"} & parts_of(modules)
    # Extensions are declared with the types of `kernel`, which computes nothing.
    assert {m for m in modules if m.startswith("asyncnn.kernels.")} == {
        "asyncnn.kernels.kernel"
    }
    assert not {m for m in modules if m.startswith("asyncnn.service.driver.")}
    assert not {"asyncnn.devices.reference", "tflite", "typer", "rich"} & modules


def test_a_device_in_this_process_loads_no_service() -> None:
    modules = loaded_after(
        "import asyncio, asyncnn\n"
        "async def main():\n"
        "    async with asyncnn.open_device(): pass\n"
        "asyncio.run(main())"
    )
    assert "asyncnn.devices.reference" in modules
    assert not {"cli", "pipeline", "service", "tools"} & parts_of(modules)
    assert "tflite" not in modules


def test_a_model_that_the_engine_computes_loads_what_it_needs(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    path = tmp_path / "mobilenet.tflite"
    path.write_bytes(mobilenet_v1(quantized=True, size=32, width=0.25))
    modules = loaded_after(RUN, str(path))
    assert not {"asyncnn.runtime.tflite.importer", "zipfile"} & modules
    assert "asyncnn.devices.litert.c_api_engine" in modules
    assert not {"cli", "pipeline", "service", "tools"} & parts_of(modules)
    assert {m for m in modules if m.startswith("asyncnn.kernels.")} == {
        "asyncnn.kernels.kernel",
        "asyncnn.kernels.registry",
    }
    others = {"onnx", "rich", "tflite", "typer", "ai_edge_litert"}
    assert not {m.partition(".")[0] for m in modules} & others
    assert "importlib.metadata" not in modules


@pytest.mark.parametrize("name", LAZY)
def test_every_public_name_is_found_and_typed(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for each in package.__all__:
        getattr(package, each)
    typed, table = declarations(name)
    assert typed == table
    assert {n for names in table.values() for n in names} <= set(package.__all__)


def declarations(name: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the public names by module: for type checkers, and at run time."""
    source = Path(str(import_module(name).__file__)).read_text()
    (either,) = (n for n in ast.parse(source).body if isinstance(n, ast.If))
    imports = [n for n in either.body if isinstance(n, ast.ImportFrom)]
    typed: dict[str, set[str]] = {}
    for each in imports:
        typed.setdefault(str(each.module), set()).update(a.name for a in each.names)
    below = (node for each in either.orelse for node in ast.walk(each))
    (table,) = (node for node in below if isinstance(node, ast.Dict))
    return typed, {k: set(v.split()) for k, v in ast.literal_eval(table).items()}


@pytest.mark.parametrize("name", LAZY)
def test_another_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(import_module(name), "nothing")  # noqa: B009


def test_subpackages_are_attributes() -> None:
    named = re.findall(r"^``(\w+)``", asyncnn.__doc__ or "", re.M)
    assert {"cluster", "fmq", "oip"} <= set(named)
    code = "; ".join(f"asyncnn.{name}" for name in (*named, "fmq.MessageQueue"))
    assert "asyncnn.fmq.queue" in loaded_after(f"import asyncnn; {code}")


def test_names_are_what_their_modules_have() -> None:
    settings = asyncnn.DeviceSettings(max_pending=3)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "open_device" in pydoc.render_doc(asyncnn)
    assert asyncnn.__version__
