"""What one warm run passes: counted, and kept from growing."""

import pytest

from asyncnn.runtime.model_file import bundled_file, load
from asyncnn.tools.bench.bench_steps import (
    BURST,
    BURST_IN_PLACE,
    CALLBACK,
    EXECUTION,
    FENCED,
    INPROCESS,
    MODEL,
    REMOTE,
    RUN,
    Passed,
    count,
)

MOST = {
    ("accelerated", INPROCESS): {
        RUN: 12,
        EXECUTION: 11,
        FENCED: 17,
        CALLBACK: 22,
        BURST: 18,
        BURST_IN_PLACE: 14,
    },
    ("reference", INPROCESS): {
        RUN: 73,
        EXECUTION: 72,
        FENCED: 77,
        CALLBACK: 81,
        BURST: 79,
        BURST_IN_PLACE: 75,
    },
    ("accelerated", REMOTE): {
        RUN: 18,
        EXECUTION: 18,
        FENCED: 37,
        CALLBACK: 29,
        BURST: 36,
        BURST_IN_PLACE: 31,
    },
}
"""The most functions that a run may enter, on all threads."""


def listed(passed: Passed) -> str:
    return "\n".join(
        f"{count:5.1f} {file}: {function}"
        for (file, function), count in passed.by_function.items()
    )


@pytest.mark.alone
@pytest.mark.parametrize(("device", "transport"), MOST)
async def test_a_run_enters_few_functions(device: str, transport: str) -> None:
    passed = await count(device, transport, load(bundled_file(MODEL)))
    for way, most in MOST[device, transport].items():
        seen = passed[way]
        assert seen.functions <= most, f"{way}:\n{listed(seen)}"


async def test_loop_lanes_and_turns_are_told_apart() -> None:
    passed = (await count("reference", INPROCESS, load(bundled_file(MODEL))))[RUN]
    functions = {function for _, function in passed.by_function}
    assert {"PreparedModel.run", "Run.advance"} <= functions
    assert passed.on_loop >= 1
    assert passed.on_lanes >= 1
    assert 1 <= passed.files <= len(passed.by_function)
    assert passed.turns >= 0
