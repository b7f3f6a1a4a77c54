"""What preparations find out of a model, before its runs go in batches."""

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, batch_axis, batching
from asyncnn.devices.cache_format import Compiled
from asyncnn.engine import Program
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.pacing import Steps
from asyncnn.qos import Policy
from asyncnn.runtime.opening_devices import open_device
from tests.networks import chain
from tests.runtime.tflite.files import Op, T, write

FAST = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the threads of all runs that preparations make, one by one."""
    found: list[int] = []
    run_bound = batching.run_bound

    def noted(*arguments: Any) -> None:
        found.append(threading.get_ident())
        run_bound(*arguments)

    monkeypatch.setattr(batching, "run_bound", noted)
    return found


@pytest.mark.parametrize(
    ("slice_us", "words"),
    [
        (1, "no: a batch takes longer than a time slice"),
        (6, "up to 4, bit-equal"),
        (20, "up to 8, bit-equal"),
    ],
)
async def test_only_batches_that_fit_into_a_time_slice_are_spoken_of(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], slice_us: int, words: str
) -> None:
    def timing(self: batching.BatchPreparations, program: Program) -> Steps[int]:
        yield
        assert program.fixed_plan is not None
        return program.fixed_plan.inputs[0].shape[0] * 1000  # type: ignore[index]

    monkeypatch.setattr(batching.BatchPreparations, "_timing", timing)
    settings = DeviceSettings(batching=8, policy=Policy(slice_ns=slice_us * 1000))
    async with open_device("reference", settings=settings) as device:
        said = await asyncnn.explain(device, chain(3, 1, 4))
    assert said.batching == words
    assert threading.get_ident() not in threads
    assert bool(threads) == (slice_us > 1)


@pytest.mark.parametrize(("most_ns", "most_runs"), [(10**12, 200), (1, 2)])
def test_a_preparation_may_be_left_between_any_two_runs(
    threads: list[int], most_ns: int, most_runs: int
) -> None:
    """And of a model that is too slow for batches there are few."""
    model = chain(3, 1, 4).model

    def prepare() -> Steps[Compiled]:
        program = yield from Program.compiling(model)
        return Compiled(program, *FAST)

    batches = batching.BatchPreparations(8, most_ns, None, nullcontext())
    count = 0
    for _ in batches.preparing(prepare):
        assert len(threads) <= count + 1
        count = len(threads)
    assert 2 <= len(threads) <= most_runs


X_OF_FILES, Y_OF_FILES = T(np.float32, [1, 4]), T(np.float32, [1, 4])


@pytest.mark.parametrize(
    ("name", "constant", "is_apt"),
    [
        ("REDUCE_MAX", [1], True),
        ("REDUCE_MAX", [-2], False),
        ("RESHAPE", [-1, 4], True),
        ("RESHAPE", [1, -1], False),
        ("TRANSPOSE", [0, 1], True),
        ("TRANSPOSE", [1, 0], False),
        ("CONCATENATION", [-1], True),
        ("CONCATENATION", [0], False),
        ("CONCATENATION", [-2], False),
        ("TOPK_V2", [1], False),
    ],
)
def test_operators_of_files_leave_the_first_axis_alone(
    name: str, constant: list[int], is_apt: bool
) -> None:
    """What two requests mix may not show for most values: all below a bound, say."""
    inputs = [X_OF_FILES, T.constant(constant, np.int32)]
    operator = Op(name, inputs, [Y_OF_FILES])
    if name == "CONCATENATION":
        options = "ConcatenationOptions", {"Axis": constant[0]}
        operator = Op(name, [X_OF_FILES] * 2, [Y_OF_FILES], *options)
    data = write([operator], [X_OF_FILES], [Y_OF_FILES])
    with nullcontext() if is_apt else pytest.raises(GeneralFailureError, match=name):
        batch_axis._check_file(data)
