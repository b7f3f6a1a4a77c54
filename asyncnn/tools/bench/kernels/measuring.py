"""Measures single operations."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.engine import Program
from asyncnn.engine.execution import run_straight
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.container import load
from asyncnn.tools.bench.arrays import Difference, largest_difference, random_inputs
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.goals import LITERT
from asyncnn.tools.bench.kernels.cases import CASES, Case
from asyncnn.tools.bench.kernels.files import kernel_file
from asyncnn.tools.bench.kernels.report import (
    ENGINE,
    KernelReport,
    KernelsReport,
    judge_median,
    summarize_kernel,
)
from asyncnn.tools.bench.litert import LiteRt, litert_version
from asyncnn.tools.bench.placement import ONE_CPU, placement
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Batch, measure, timed_call

Progress: TypeAlias = Callable[[Sequence[Case]], Iterable[Case]]

_BATCH_US = 20_000.0


async def bench_kernels(
    pattern: str = "*",
    *,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> KernelsReport:
    """Measure the kernels whose name matches ``pattern``.

    ``progress`` iterates over them.

    :raises InvalidArgumentError: if there are none.
    :raises PeerMissingError: if LiteRT is not installed.
    """
    cases = [case for case in CASES if fnmatchcase(case.name, pattern)]
    if not cases:
        raise InvalidArgumentError(f"there is no kernel {pattern!r} to measure")
    environment = describe_environment(litert=litert_version())
    # As many threads of the BLAS as the device gives it.
    with placement(ONE_CPU) as where, threadpool_limits(1, user_api="blas"):
        kernels = [await _bench_kernel(case, rounds) for case in progress(cases)]
    return KernelsReport(
        environment, where, rounds, tuple(kernels), judge_median(kernels)
    )


async def _bench_kernel(case: Case, rounds: int) -> KernelReport:
    batches, difference = _contenders(case)
    figures = await measure(batches, rounds=rounds, batch_us=_BATCH_US)
    return summarize_kernel(case.name, figures, difference)


def _contenders(case: Case) -> tuple[list[Batch], Difference | None]:
    """Return what to measure, and how far the results are apart."""
    with TemporaryDirectory(prefix="asyncnn-bench-") as folder:
        path = Path(folder, f"{case.name}.tflite")
        path.write_bytes(kernel_file(case))
        peer, reference = LiteRt(path), LiteRt(path, reference=True)
        inputs = random_inputs(peer.input_kinds())
        call, outputs = _engine_call(path, inputs)
    for interpreter in (peer, reference):
        interpreter.set_inputs(inputs)
    difference = largest_difference(outputs, reference.first_outputs())
    return [timed_call(ENGINE, call), timed_call(LITERT, peer.invoke)], difference


def _engine_call(
    path: Path, inputs: Sequence[Array]
) -> tuple[Callable[[], object], list[Array]]:
    """Return what runs the plan, and its outputs, which each run writes again."""
    program = Program(load(path).model)
    plan = program.plan(tuple(array.shape for array in inputs))
    outputs = run_straight(program, plan, inputs, [None])
    return partial(run_straight, program, plan, inputs, outputs), outputs
