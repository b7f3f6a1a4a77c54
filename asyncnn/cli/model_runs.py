"""The work behind ``asyncnn run``: samples go through a model on each path.

A check file may hold ``pre_softmax_K`` beside ``output_K``: what goes into the SOFTMAX
that ends the model. Any ``pre_OPERATION_K`` is understood likewise, an extension's too,
and says which operation is the first whose result differs.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import msgspec
import numpy as np

from asyncnn.cli.options import chosen, given_samples, progress
from asyncnn.cli.run_options import RunOptions
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import default_device_name
from asyncnn.execution import Outputs
from asyncnn.extensions import Extension
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, counted
from asyncnn.hal.operands import is_opaque_type
from asyncnn.hal.routes import RouteStep
from asyncnn.hal.types import Priority
from asyncnn.offload import offload_steps
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.translation import form_for, translating
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.samples import (
    Sample,
    Tolerance,
    compare,
    hinting_open_axes,
    load_arrays,
    named_arrays,
    random_sample,
    samples,
    save_arrays,
)

PATHS: tuple[AnyPath, ...] = ("async", "sync", "burst", "fenced")
"""Ways of executing, as the command line names them."""


class PathReport(msgspec.Struct, frozen=True):
    """One path's results; ``passed`` is None if nothing was checked.

    Latencies are of the runs after the first, which alone touches memory and
    compiles what was left to it. If there is no other, they are its own. ``route`` is
    of the last run, by the devices of a framework, and empty for others.
    """

    path: str
    samples: int
    runs: int
    first_run_us: float
    latency_us_p50: float
    latency_us_p99: float
    passed: bool | None
    mismatches: tuple[str, ...]
    route: tuple[RouteStep, ...] = ()
    fell_back: bool = False


class RunReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn run --json``."""

    model: str
    device: str
    version: str
    passed: bool
    paths: tuple[PathReport, ...]
    first_difference: str = ""


class _Job(msgspec.Struct, frozen=True):
    """What is run; ``outputs`` are the ones that it returns, all or a step's."""

    model: NamedModel
    outputs: tuple[TensorInfo, ...]
    extensions: tuple[Extension, ...]
    inputs: list[Sample]
    expected: list[Sample] | None
    arrays: dict[str, np.ndarray]
    is_random: bool


async def run_model(options: RunOptions) -> RunReport:
    """Load, prepare and run; write and check outputs as asked.

    :raises AsyncnnError: if a file is bad or the driver refuses the model.
    """
    job = _collect(options)
    paths = chosen("path", options.path, PATHS)
    reports: list[PathReport] = []
    difference = ""
    async with _opened(options, job.extensions) as device:
        priority = Priority[options.priority.upper()]
        prepared = await device.prepare(job.model, priority=priority)
        for path in paths:
            with hinting_open_axes(job.model if job.is_random else None):
                outputs, latencies = await _run_path(prepared, job, path, options)
            reports.append(_report(path, job, outputs, latencies, options))
        if options.output_file is not None:
            save_arrays(options.output_file, _named(outputs, job.outputs))
        # In a session nothing is known of the state that a sample began with.
        has_failed = any(report.passed is False for report in reports)
        if has_failed and not (options.session and prepared.states):
            difference = await _first_difference(device, job, options.tolerance())
    return RunReport(
        model=str(options.model),
        device=device.name,
        version=device.version,
        passed=all(report.passed is not False for report in reports),
        paths=tuple(reports),
        first_difference=difference,
    )


def _named(results: Sequence[Sample], infos: Sequence[TensorInfo]) -> Sample:
    found: Sample = {}
    for number, sample in enumerate(results):
        arrays = [sample[info.name] for info in infos]
        found |= named_arrays("output", infos, arrays, number)
    return found


def _opened(
    options: RunOptions, extensions: Sequence[Extension]
) -> AbstractAsyncContextManager[Device]:
    if options.socket is None:
        name = options.device
        if name is None and options.check is not None:
            name = default_device_name(exact=True)
        return open_device(name, settings=OWN_PROCESS, extensions=extensions)
    return connect(options.socket, device=options.device)


def _collect(options: RunOptions) -> _Job:
    model, extensions = options.load(
        options.model, options.state or (), strict=options.strict
    )
    _check_known(model)
    pairs = dict(model.pairs) if options.session else {}
    given = [info for info in model.inputs if info.name not in pairs]
    outputs = tuple(i for i in model.outputs if i.name not in pairs.values())
    is_random = options.input_file is None
    inputs = [*given_samples(options.input_file, given)] or [random_sample(given)]
    if options.check is None:
        return _Job(model, outputs, extensions, inputs, None, {}, is_random)
    arrays = load_arrays(options.check)
    expected = samples(arrays, options.check_key, outputs, options.check)
    if len(expected) != len(inputs):
        raise InvalidArgumentError(
            f"{counted(len(inputs), 'input sample')}, but "
            f"{counted(len(expected), 'expected output')}"
        )
    return _Job(model, outputs, extensions, inputs, expected, arrays, is_random)


def _check_known(model: NamedModel) -> None:
    """Check that arrays can be made for all inputs and outputs of a model.

    :raises InvalidArgumentError: if one is of an extension's type that is not known.
    """
    for info in (*model.inputs, *model.outputs):
        if is_opaque_type(info.type):
            name = model.vocabulary.operand_type(info.type)
            raise InvalidArgumentError(
                f"{info.name} is of the type {name}, which is not known here",
                hint="install its extension, or give it with --extension",
            )


async def _run_path(
    prepared: PreparedModel, job: _Job, path: AnyPath, options: RunOptions
) -> tuple[list[Sample], list[float]]:
    outputs: list[Sample] = []
    latencies: list[float] = []
    async with (
        _in_session(prepared, path, options)
        if options.session
        else prepared.runner(path, timeout=options.timeout_s)
    ) as run:
        for sample in progress(job.inputs, path):
            for _ in range(options.repeat):
                started = time.perf_counter()
                result = await run(sample)
                latencies.append((time.perf_counter() - started) * 1e6)
            outputs.append(result)
    return outputs, latencies


@asynccontextmanager
async def _in_session(
    prepared: PreparedModel, path: AnyPath, options: RunOptions
) -> AsyncIterator[Callable[[Sample], Awaitable[Outputs]]]:
    async with prepared.session(path=path) as session:
        yield partial(session.run, timeout=options.timeout_s)


def _report(
    path: AnyPath,
    job: _Job,
    outputs: list[Sample],
    latencies: list[float],
    options: RunOptions,
) -> PathReport:
    expected_of = job.expected or [Sample()] * len(outputs)
    tolerance = options.tolerance()
    comparisons = [
        compare(f"sample {number}, {name}", output[name], expected, tolerance)
        for number, (output, wanted) in enumerate(
            zip(outputs, expected_of, strict=True)
        )
        for name, expected in wanted.items()
    ]
    failures = tuple(str(each) for each in comparisons if not each.passed)
    last = outputs[-1]
    route = last.route if isinstance(last, Outputs) else None
    p50, p99 = np.percentile(latencies[1:] or latencies, (50, 99))
    return PathReport(
        path=path,
        samples=len(outputs),
        runs=len(latencies),
        first_run_us=latencies[0],
        latency_us_p50=float(p50),
        latency_us_p99=float(p99),
        passed=None if job.expected is None else not failures,
        mismatches=failures,
        route=() if route is None else route.steps,
        fell_back=route is not None and route.fell_back,
    )


async def _first_difference(device: Device, job: _Job, tolerance: Tolerance) -> str:
    """Return a line that names where results begin to differ; empty if unknown."""
    form, recorded = await form_for(device.hal, job.model), job.arrays
    try:  # within a region there is nothing to name
        model = await offload_steps(translating(form))
    except AsyncnnError:
        return ""
    first = {state.info.name: state.first_value() for state in model.states}
    graph = ModelGraph(model.with_open_states(), job.extensions)
    for position, operation in enumerate(graph.main.operations):
        name, tapped = graph.operation_name(position), operation.inputs[0]
        key = f"pre_{name.lower().rpartition('/')[2]}"
        if f"{key}_0" not in recorded or tapped not in graph.writers:
            continue
        needed = graph.needed(graph.writers[tapped], ())
        extract = graph.extract(needed, {}, [tapped])
        prepared = await device.prepare(extract.named)
        for number, sample in enumerate(job.inputs):
            if f"{key}_{number}" not in recorded:
                continue
            given = graph.values_of({**sample, **first})
            ran = await prepared.run([given[index] for index in extract.inputs])
            (actual,) = ran.values()
            expected = recorded[f"{key}_{number}"].reshape(actual.shape)
            result = compare(f"sample {number}", actual, expected, tolerance)
            if not result.passed:
                return f"differs before operation {position} ({name}): {result}"
        return f"first differing operation: {position} ({name})"
    return ""
