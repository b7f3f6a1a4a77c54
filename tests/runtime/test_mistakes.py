"""Mistakes that newcomers make: each ends with one sentence that says what to do."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.model import shapes_by_name
from tests.networks import addition
from tests.runtime.stateful import counting

MODEL = asyncnn.bundled_file("digits_float.asyncnn")
IMAGE = np.zeros((1, 8, 8, 1), np.float32)
X = np.zeros(4, np.float32)

Case = Callable[[Any], Any]


@pytest.fixture
async def given(tmp_path: Path) -> AsyncIterator[Any]:
    """What the mistakes are made with."""
    (tmp_path / "empty.tflite").touch()
    (tmp_path / "text.tflite").write_text("this is text, and no model")
    (tmp_path / "cut.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(20))
    async with asyncnn.open_device("reference") as closed:
        ended = await closed.prepare(asyncnn.load(MODEL))
    async with asyncnn.open_device("reference") as device:
        model = asyncnn.load(MODEL)
        prepared = await device.prepare(model)
        async with prepared.burst() as burst:
            yield SimpleNamespace(
                folder=tmp_path,
                closed=closed,
                ended=ended,
                device=device,
                model=model,
                prepared=prepared,
                burst=burst,
                two=await device.prepare(addition(4)),
                keeping=await device.prepare(counting()),
            )


async def twice_at_once(burst: asyncnn.Burst) -> None:
    await asyncio.gather(burst.run(IMAGE), burst.run(IMAGE))


async def prepared_in(cache_dir: Path, model: asyncnn.NamedModel) -> None:
    async with asyncnn.open_device("reference", cache_dir=cache_dir) as device:
        await device.prepare(model)


async def unknown_output(prepared: asyncnn.PreparedModel) -> Any:
    return (await prepared.run(IMAGE))["digits"]


MISTAKES: dict[str, tuple[Case, str]] = {
    # What is passed to a run
    "another dtype": (
        lambda g: g.prepared.run(IMAGE.astype(np.float64)),
        "float64, the model takes float32 (convert it with astype('float32')",
    ),
    "no batch axis": (
        lambda g: g.prepared.run(IMAGE[0]),
        "shape [8, 8, 1], the model takes [1, 8, 8, 1] (array[numpy.newaxis]",
    ),
    "another shape": (
        lambda g: g.prepared.run(IMAGE[:, :4]),
        "has shape [1, 4, 8, 1], the model takes [1, 8, 8, 1]",
    ),
    "a batch": (
        lambda g: g.prepared.run(np.concatenate([IMAGE, IMAGE])),
        "takes [1, 8, 8, 1] (each array[k:k+1] is a run of its own: asyncio.gather",
    ),
    "another name": (
        lambda g: g.prepared.run({"img": IMAGE}),
        "missing input: image; unknown input: img",
    ),
    "a name too many": (
        lambda g: g.prepared.run({"image": IMAGE, "mask": IMAGE}),
        "unknown input: mask; the model has image",
    ),
    "an input left out": (lambda g: g.two.run({"x": X}), "missing input: y"),
    "nothing": (lambda g: g.two.run({}), "missing inputs: x, y"),
    "too few in order": (
        lambda g: g.two.run([X]),
        "a list of 1 given for 2 inputs: x, y (it has one array for each input",
    ),
    "one array for two inputs": (
        lambda g: g.two.run(X),
        "type ndarray, and the model has 2 inputs: x, y (pass arrays by name",
    ),
    "numbers instead of arrays": (
        lambda g: g.prepared.run([1, 2, 3]),
        "a list of 3 given for 1 input: image (it has one array for each input; "
        "numbers go into numpy.array",
    ),
    "text": (lambda g: g.prepared.run("image"), "of type str, and the model has 1"),
    "None": (lambda g: g.prepared.run(None), "cannot be of type NoneType"),
    "words in a list": (
        lambda g: g.prepared.run(["a"]),
        "input image is not float32 data: could not convert string",
    ),
    "another name for out": (
        lambda g: g.prepared.run(IMAGE, out={"p": np.zeros((1, 10), np.float32)}),
        "missing output: probabilities; unknown output: p",
    ),
    "another dtype for out": (
        lambda g: g.prepared.run(IMAGE, out=np.zeros((1, 10))),
        "must be given a float32 array of shape [1, 10]",
    ),
    "an unknown output": (
        lambda g: unknown_output(g.prepared),
        "there is no output 'digits' (known: probabilities)",
    ),
    "an unknown path": (
        lambda g: g.prepared.run(IMAGE, path="brst"),
        "there is no path 'brst' here (known: async, sync, fenced)",
    ),
    "a burst as a path": (
        lambda g: g.prepared.run(IMAGE, path="burst"),
        "a burst is opened by prepared.burst()",
    ),
    # Times
    "a negative timeout": (
        lambda g: g.prepared.run(IMAGE, timeout=-1),
        "the deadline has passed already",
    ),
    "a timeout of zero": (
        lambda g: g.prepared.run(IMAGE, timeout=0),
        "the deadline has passed already",
    ),
    "an endless timeout": (
        lambda g: g.prepared.run(IMAGE, timeout=math.inf),
        "inf is no number of seconds (None sets no limit)",
    ),
    "a timeout as text": (
        lambda g: g.prepared.run(IMAGE, timeout="1s"),
        "'1s' is no number of seconds",
    ),
    # After the end, and too early
    "a run after closing": (lambda g: g.ended.run(IMAGE), "the device is closed"),
    "preparing after closing": (
        lambda g: g.closed.prepare(g.model),
        "the device is closed",
    ),
    "a device that is not open": (
        lambda g: asyncnn.open_device().prepare(g.model),  # type: ignore[attr-defined]
        "the device is not open yet, so it has no 'prepare' (write 'async with",
    ),
    "a burst that is not open": (
        lambda g: g.prepared.burst().run(IMAGE),
        "the burst is not open yet, so it has no 'run' (write 'async with",
    ),
    "two runs of one burst": (
        lambda g: twice_at_once(g.burst),
        "another run on the same arrays has not returned (await it first",
    ),
    # Files
    "a folder": (lambda g: asyncnn.load(g.folder), "a directory, not a file"),
    "a missing file": (
        lambda g: asyncnn.load(g.folder / "no.tflite"),
        "no.tflite: No such file or directory",
    ),
    "an empty file": (
        lambda g: asyncnn.load(g.folder / "empty.tflite"),
        "empty.tflite: the file is empty",
    ),
    "a file of text": (
        lambda g: asyncnn.load(g.folder / "text.tflite"),
        "an asyncnn model file (files of other kinds are converted",
    ),
    "a damaged file": (
        lambda g: asyncnn.load(g.folder / "cut.tflite"),
        "cut.tflite: damaged TFLite file",
    ),
    "a number as a model": (
        lambda g: asyncnn.load(3),
        "a model is loaded from a path or bytes, not int",
    ),
    "no bytes": (lambda g: asyncnn.load(b""), "the model in memory: it is empty"),
    "shapes for a file that has them": (
        lambda g: asyncnn.load(MODEL, input_shapes=[(1,)]),
        "input_shapes cannot be given for asyncnn files",
    ),
    "saving what is prepared": (
        lambda g: asyncnn.save(g.prepared, g.folder / "model"),
        "PreparedModel cannot be saved (save what asyncnn.load",
    ),
    "saving to nowhere": (
        lambda g: asyncnn.save(g.model, g.folder / "no" / "model"),
        "cannot be written: No such file or directory",
    ),
    "preparing a path": (
        lambda g: g.device.prepare(str(MODEL)),
        "type str cannot be prepared (asyncnn.load_model reads one: prepare(",
    ),
    "a file that is not bundled": (
        lambda g: asyncnn.bundled_file("digits"),
        "no file 'digits' comes with asyncnn (known: digits_float",
    ),
    # Devices
    "an unknown device": (
        lambda g: asyncnn.open_device("gpu"),
        "there is no device 'gpu' (known: reference, auto, accelerated",
    ),
    "a socket as a device": (
        lambda g: asyncnn.open_device("/tmp/a.sock"),
        "no device '/tmp/a.sock' (a driver at a path is reached by asyncnn.connect",
    ),
    "a number as a device": (
        lambda g: asyncnn.open_device(3),  # type: ignore[arg-type]
        "3 is no name of a device (known: reference",
    ),
    "settings as a dict": (
        lambda g: asyncnn.open_device(settings={"lanes": 2}),  # type: ignore[arg-type]
        "settings of type dict (give asyncnn.DeviceSettings(lanes=2), say)",
    ),
    "an unknown extension": (
        lambda g: asyncnn.open_device(extensions="com.example.no"),
        "no installed extension 'com.example.no' (installed: ",
    ),
    "what is no extension": (
        lambda g: asyncnn.open_device(extensions=[3]),  # type: ignore[list-item]
        "3 is no extension (give an asyncnn.Extension, or a name",
    ),
    "no run in flight": (
        lambda g: asyncnn.open_device(max_in_flight=0),
        "max_in_flight is 0 (give 1 or more)",
    ),
    "a file as a cache": (
        lambda g: prepared_in(g.folder / "empty.tflite", g.model),
        "empty.tflite is a file, not a folder",
    ),
    "a driver that is not there": (
        lambda g: asyncnn.connect(g.folder / "no.sock"),
        "No such file or directory (start one with: asyncnn serve --socket",
    ),
    "a priority as text": (
        lambda g: g.device.prepare(g.model, priority="high"),
        "'high' is text (give asyncnn.Priority.LOW, asyncnn.Priority.MEDIUM",
    ),
    "a priority of no name": (
        lambda g: g.device.prepare(g.model, priority=7),
        "7 is no Priority (give asyncnn.Priority.LOW, asyncnn.Priority.MEDIUM",
    ),
    "supervision as text": (
        lambda g: asyncnn.connect(supervised="yes"),  # type: ignore[arg-type]
        "supervised is 'yes' (give True, or asyncnn.Supervision(",
    ),
    "supervision by text": (
        lambda g: asyncnn.Supervision(wait="1"),  # type: ignore[arg-type]
        "Supervision.wait is a str (it is a number)",
    ),
    "supervision backwards": (
        lambda g: asyncnn.Supervision(first_delay=-1),
        "Supervision.first_delay is -1 (it is 0 at least)",
    ),
    "a path that is explained": (
        lambda g: asyncnn.explain(g.device, str(MODEL)),  # type: ignore[arg-type]
        "type str cannot be explained (asyncnn.load_model reads one",
    ),
    # Pipelines and builders
    "a model as a stage": (
        lambda g: Pipeline(g.prepared),
        "is no stage of a model that is prepared (give Stage('name', await",
    ),
    "a stage that is not prepared": (
        lambda g: Pipeline(Stage("read", g.model)),
        "is no stage of a model that is prepared (give Stage('name', await",
    ),
    "no frame in flight": (
        lambda g: Pipeline(Stage("read", g.prepared), in_flight=0),
        "not positive: in_flight=0, backlog=1, timeout=None",
    ),
    "a dtype as a type": (
        lambda g: asyncnn.ModelBuilder().input("x", np.float32, (2,)),  # type: ignore[arg-type]
        "is no OperandType (give asyncnn.OperandType.TENSOR_FLOAT32)",
    ),
    "an operation as text": (
        lambda g: asyncnn.ModelBuilder().operation("ADD", [], ()),  # type: ignore[call-overload]
        "'ADD' is no OperationType (give asyncnn.OperationType.TANH)",
    ),
    # All else
    "an unknown input": (
        lambda g: g.prepared.input("img"),
        "there is no input 'img' (known: image)",
    ),
    "a buffer for a name": (
        lambda g: g.device.buffer_for("image"),
        "a buffer is for inputs and outputs of prepared models (device.buffer_for(",
    ),
    "waiting for one run": (
        lambda g: g.prepared.run_fenced(IMAGE, wait_for=g.prepared.run_fenced(IMAGE)),
        "(give a list of fenced runs and fences: wait_for=[run])",
    ),
    "state of a model without": (
        lambda g: g.prepared.session(state={"h": IMAGE}),
        "keeps no state, so it has no sessions (if an input is to be an output of",
    ),
    "another state": (
        lambda g: g.keeping.session(state={"h": X}),
        "the state consists of ['total', 'steps'], not ['h']",
    ),
    "no step between checkpoints": (
        lambda g: g.keeping.session(checkpoint=0),
        "checkpoint=0 (the state is saved after every 1 or more steps)",
    ),
    "an unknown signature": (
        lambda g: g.prepared.signature("serve"),
        "the model has no signature 'serve' (it has: none",
    ),
    "an array of no dtype": (
        lambda g: asyncnn.shared_array(3, "flot"),
        "no array of shape 3 and dtype 'flot': data type 'flot' not understood",
    ),
    "an array of a negative length": (
        lambda g: asyncnn.shared_array((2, -1)),
        "an axis of (2, -1) is negative",
    ),
}


OF_WRONG_TYPES = {
    "one array for two inputs",
    "text",
    "None",
    "a timeout as text",
    "a number as a model",
    "saving what is prepared",
    "preparing a path",
    "a number as a device",
    "settings as a dict",
    "what is no extension",
    "a priority as text",
    "supervision as text",
    "supervision by text",
    "a path that is explained",
    "a model as a stage",
    "a stage that is not prepared",
    "a dtype as a type",
    "an operation as text",
    "a buffer for a name",
    "waiting for one run",
}
"""Those that Python itself would call a `TypeError`."""


@pytest.mark.parametrize("mistake", list(MISTAKES))
async def test_it_is_told_in_one_sentence(given: Any, mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises((asyncnn.AsyncnnError, KeyError)) as caught:  # noqa: PT012
        result = make(given)
        if hasattr(result, "__await__"):
            await result
    told = str(caught.value)
    assert sentence in told
    assert "\n" not in told
    if isinstance(caught.value, asyncnn.InvalidArgumentError):
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, TypeError) is (mistake in OF_WRONG_TYPES)


async def test_a_file_that_leaves_shapes_open_says_so(given: Any) -> None:
    package = pytest.importorskip("pyopen_wakeword")
    path = Path(package.__file__).with_name("models") / "melspectrogram.tflite"
    name = "serving_default_input:0"
    model = asyncnn.load(path)
    assert model.open_inputs == (name,)
    with pytest.raises(asyncnn.AsyncnnError, match="leaves shapes to the application"):
        await given.device.prepare(model)
    for shapes in ([(1, 1280)], {name: (1, 1280)}):
        whole = asyncnn.load(path, input_shapes=shapes)
        assert whole.open_inputs == ()
        prepared = await given.device.prepare(whole)
        assert prepared.inputs[0].dimensions == (1, 1280)


def test_states_and_shapes_that_are_none_are_refused_by_their_type() -> None:
    file = asyncnn.bundled_file("digits_float.asyncnn")
    with pytest.raises(asyncnn.WrongTypeError, match="a mapping, not a list") as caught:
        asyncnn.load(file, states=[("h", "hn")])  # type: ignore[arg-type]
    assert "states={'h': 'hn'}" in str(caught.value)
    with pytest.raises(asyncnn.WrongTypeError, match="is text, not shapes"):
        shapes_by_name(["x"], "x=1,3")  # type: ignore[arg-type]
