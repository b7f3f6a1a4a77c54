"""Runs the cases of the `onnx` package on our backend: a process of its own.

The package can make its cases once in a process only. Names of cases are patterns given
as arguments; none stands for all. Prints how each ended, as JSON by name.
"""

import json
import re
import sys
import unittest
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

from onnx.backend.test import BackendTest, runner

from asyncnn import onnx_backend
from tests.runtime.onnx.kept_cases import load_model_tests, load_node_tests


def _tests(kind: str) -> list[Any]:
    return load_node_tests() if kind == "node" else load_model_tests(kind=kind)


@cache
def _all_of_them() -> list[type[unittest.TestCase]]:
    runner.load_model_tests = _tests
    return list(BackendTest(onnx_backend, __name__).test_cases.values())


def cases(patterns: list[str]) -> Iterator[unittest.TestCase]:
    """Yield the cases of the CPU whose names have one of the patterns."""
    for case in _all_of_them():
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
            assert isinstance(test, unittest.TestCase)
            name = test.id().rpartition(".")[2]
            if name.endswith("_cpu") and (
                not patterns or any(re.search(each, name) for each in patterns)
            ):
                yield test


def outcome(test: unittest.TestCase) -> str:
    """Run a case; return ``passed``, or the last line of what is wrong with it."""
    result = unittest.TestResult()
    test.run(result)
    for kind in ("failures", "errors", "skipped"):
        for _, text in getattr(result, kind):
            return f"{kind}: {text.strip().splitlines()[-1][:300]}"
    return "passed"


def ended(patterns: list[str]) -> dict[str, str]:
    """Return how cases have ended, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {test.id().rpartition(".")[2]: outcome(test) for test in cases(patterns)}


if __name__ == "__main__":
    json.dump(ended(sys.argv[1:]), sys.stdout, indent=1)
