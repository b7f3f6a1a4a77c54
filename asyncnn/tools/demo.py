"""The main job end to end, on two classifiers of handwritten digits and their images.

`run_demo` streams the images through a device and turns results into numbers and
pictures. Images have 8x8 pixels with grey levels 0 to 16. They come from the test set
of the UCI Machine Learning Repository's "Optical Recognition of Handwritten Digits", as
scikit-learn ships it; the models never saw these ones in training. The files come with
the package (`asyncnn.bundled_file`), and are made by ``examples/digits``.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import TensorInfo
from asyncnn.runtime.model_file import BUNDLED, bundled_file, load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel

Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.uint8]
ModelKind: TypeAlias = Literal["float", "int8"]

MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)
CLASSES = 10
MAX_GREY = 16

ACCURACY_FLOORS: dict[ModelKind, float] = {"float": 0.97, "int8": 0.96}
"""Share of right answers that each model must reach on the held-out images."""


def load_digits_test() -> tuple[Images, Labels]:
    """Return the held-out images, uint8 [N, 8, 8], and their labels, uint8 [N]."""
    with np.load(bundled_file("digits_test.npz")) as arrays:
        return arrays["images"], arrays["labels"]


def model_path(kind: ModelKind, folder: Path = BUNDLED) -> Path:
    """Return where the model of this kind lies."""
    return folder / f"digits_{kind}.asyncnn"


def encode(images: Images, info: TensorInfo) -> Array:
    """Return images as arrays [N, 1, 8, 8, 1] for the model input ``info``.

    Real values are grey levels from 0 to 1, quantised if the input is.
    """
    real = images[:, None, :, :, None].astype(np.float32) / MAX_GREY
    if not info.scale:
        return real.astype(info.dtype)
    limits = np.iinfo(info.dtype)
    codes = np.rint(real / info.scale) + info.zero_point
    stored: Array = np.clip(codes, limits.min, limits.max).astype(info.dtype)
    return stored


PATHS: tuple[AnyPath, ...] = ("async", "sync", "burst", "fenced")
WARM_UP_RUNS = 10
RUNS_PER_REDRAW = 30

NOTHING = "·"
"""Stands for a count of 0, so that the others catch the eye."""

_RIGHT, _WRONG = (0, 130, 75), (200, 35, 35)

_FAINTEST = 0.4
"""Strength of the colour of a single count: it must not drown in the background."""


class DemoLatency(msgspec.Struct, frozen=True):
    """Percentiles in microseconds, and how many runs a second went one by one."""

    p50_us: float
    p99_us: float
    throughput: float


class PathResult(msgspec.Struct, frozen=True):
    """One model on one path."""

    path: str
    accuracy: float
    latency: DemoLatency


class ModelResult(msgspec.Struct, frozen=True):
    """One model; ``confusion`` counts [label][prediction] on the first path.

    ``passed`` says whether every path reached ``accuracy_floor``.
    """

    model: str
    accuracy_floor: float
    passed: bool
    paths: tuple[PathResult, ...]
    confusion: tuple[tuple[int, ...], ...]


class DemoResult(msgspec.Struct, frozen=True):
    """All models on ``images`` held-out images; ``passed`` if every model did."""

    images: int
    passed: bool
    models: tuple[ModelResult, ...]


async def run_demo(
    console: Console, json: bool = False, *, paths: Sequence[AnyPath] = PATHS
) -> DemoResult:
    """Classify the held-out digits one by one and print accuracy and latency.

    With ``json`` nothing is printed: the result is for the caller to print.

    :raises AsyncnnError: if a model cannot be read, prepared or run.
    """
    images, labels = load_digits_test()
    total = len(MODEL_KINDS) * len(paths) * len(images)
    is_drawn = console.is_terminal and not json
    async with open_device(settings=OWN_PROCESS) as device:
        with _progress_bar(console, total, is_drawn=is_drawn) as after_run:
            models = [
                await _try_model(device, kind, paths, images, labels, after_run)
                for kind in MODEL_KINDS
            ]
    passed = all(model.passed for model in models)
    result = DemoResult(len(images), passed, tuple(models))
    if not json:
        console.print(_picture(result))
    return result


@contextmanager
def _progress_bar(
    console: Console, total: int, *, is_drawn: bool
) -> Iterator[Callable[[], None]]:
    """Yield what counts a run. The bar is drawn between runs, never during one."""
    progress = Progress(
        console=console, auto_refresh=False, transient=True, disable=not is_drawn
    )
    task = progress.add_task("classifying digits", total=total)

    def count_run() -> None:
        progress.advance(task)
        if progress.tasks[task].completed % RUNS_PER_REDRAW == 0:
            progress.refresh()

    with progress:
        yield count_run


async def classify(
    prepared: PreparedModel,
    images: Images,
    *,
    path: AnyPath = "async",
    after_run: Callable[[], None] = lambda: None,
) -> tuple[Array, list[int]]:
    """Return the predictions for images [N, 8, 8] and the nanoseconds each one took.

    Images go one by one, the next when the previous one is answered.
    """
    predictions, durations = np.empty(len(images), np.int64), []
    async with prepared.runner(path) as run:
        for index, image in enumerate(encode(images, prepared.inputs[0])):
            start = time.perf_counter_ns()
            outputs = await run(image)
            durations.append(time.perf_counter_ns() - start)
            predictions[index] = outputs["probabilities"].argmax()
            after_run()
    return predictions, durations


async def _try_model(
    device: Device,
    kind: ModelKind,
    paths: Sequence[AnyPath],
    images: Images,
    labels: Labels,
    after_run: Callable[[], None],
) -> ModelResult:
    prepared = await device.prepare(load(model_path(kind)))
    results, confusions = [], []
    for path in paths:
        await classify(prepared, images[:WARM_UP_RUNS], path=path)
        predictions, durations = await classify(
            prepared, images, path=path, after_run=after_run
        )
        right = accuracy(predictions, labels)
        results.append(PathResult(path, right, latency(durations)))
        confusions.append(confusion_matrix(predictions, labels, CLASSES))
    floor = ACCURACY_FLOORS[kind]
    return ModelResult(
        model=kind,
        accuracy_floor=floor,
        passed=all(result.accuracy >= floor for result in results),
        paths=tuple(results),
        confusion=tuple(tuple(row) for row in confusions[0].tolist()),
    )


def _picture(result: DemoResult) -> Group:
    pictures = [
        confusion_picture(np.array(model.confusion), title=model.model)
        for model in result.models
    ]
    numbers = Table("model", "path", box=None, pad_edge=False)
    for heading in ("accuracy", "floor", "p50 us", "p99 us", "images/s"):
        numbers.add_column(heading, justify="right")
    for model in result.models:
        for path in model.paths:
            numbers.add_row(
                model.model,
                path.path,
                f"{path.accuracy:.2%}",
                f"{model.accuracy_floor:.0%}",
                f"{path.latency.p50_us:.0f}",
                f"{path.latency.p99_us:.0f}",
                f"{path.latency.throughput:.0f}",
            )
    verdict = "passed" if result.passed else "FAILED: accuracy is below its floor"
    return Group(
        f"{result.images} handwritten digits, held out from training, one by one\n"
        "Rows: the digit that was written. Columns: the digit that the model read.\n",
        Columns(pictures, padding=(0, 4)),
        "",
        numbers,
        f"\n{verdict}",
    )


def accuracy(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the share of predictions that equal their label."""
    return float(np.mean(predictions == labels))


def confusion_matrix(
    predictions: NDArray[Any], labels: NDArray[Any], classes: int
) -> NDArray[np.int64]:
    """Count the pairs ``[label, prediction]``; shape [classes, classes]."""
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    return matrix


def latency(durations_ns: Sequence[int]) -> DemoLatency:
    """Summarise the durations of runs that followed one another."""
    p50, p99 = np.percentile(durations_ns, (50, 99))
    throughput = len(durations_ns) * 1e9 / sum(durations_ns)
    return DemoLatency(float(p50) / 1e3, float(p99) / 1e3, throughput)


def confusion_picture(matrix: NDArray[np.int64], *, title: str = "") -> Table:
    """Draw a confusion matrix as a heat map whose cells hold the counts.

    Rows are labels, columns predictions. Right answers are green, wrong ones red, the
    stronger the larger their share of the row; without colour the counts remain.
    """
    width = len(str(matrix.max(initial=0))) + 1
    table = Table(
        title=title, title_justify="left", box=None, padding=0, pad_edge=False
    )
    table.add_column("", style="bold")
    for prediction in range(matrix.shape[1]):
        table.add_column(str(prediction), justify="right", min_width=width)
    for label, row in enumerate(matrix.tolist()):
        table.add_row(
            str(label),
            *(
                _cell(count, sum(row), width, is_right=label == prediction)
                for prediction, count in enumerate(row)
            ),
        )
    return table


def _cell(count: int, total: int, width: int, *, is_right: bool) -> Text:
    if not count:
        return Text(NOTHING, style="dim")
    strength = _FAINTEST + (1 - _FAINTEST) * count / total
    hue = _RIGHT if is_right else _WRONG
    colour = ",".join(str(round(channel * strength)) for channel in hue)
    return Text(str(count).rjust(width), style=f"bold white on rgb({colour})")
