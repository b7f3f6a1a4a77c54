"""Writes the figures of ONNX's backend tests into ``docs/onnx.md``, by running them.

Run it from a checkout: ``python -m docs.backend_page``. It takes some minutes for each
device, and is no part of ``make docs``.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from docs.generated import ROOT, GeneratedPart, table

PART = GeneratedPart(
    ROOT / "docs" / "onnx.md",
    "<!-- the figures of the backend tests: python -m docs.backend_page -->",
    "<!-- the end of the figures of the backend tests -->",
)

DEVICES = ("auto", "onnxruntime", "accelerated", "reference")

Ended = Mapping[str, str]
"""How cases ended, by name: see `tests.runtime.onnx.backend_cases`."""

_CAUSES = {
    r"type STRING|String|Regex": "it has texts",
    r"[Ss]equence": "it has a sequence",
    r"[Oo]ptional|_opt_": "it has an optional",
    r"type FLOAT8|type FLOAT4": "it has elements of 8 or 4 bits with a point",
    r"type U?INT[24]\b": "it has elements of 4 or 2 bits",
    r"preview": "it is of a preview domain",
    r"Could not find an implementation|translated|NOT_IMPLEMENTED": (
        "ONNX Runtime has no kernel for it, and it has no form in the HAL"
    ),
}
"""Why cases are refused, by what is said of them; the first that fits counts."""


def run_on(device: str) -> Ended:
    """Run all cases on a device, in a process of their own."""
    command = [sys.executable, "-m", "tests.runtime.onnx.backend_cases"]
    ran = subprocess.run(
        command,
        env={**os.environ, "ASYNCNN_DEVICE": device},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    ended: Ended = json.loads(ran.stdout)
    return ended


def state_of(text: str) -> str:
    """Return in one word how a case ended."""
    return {"failures": "differs", "errors": "refused"}.get(text.split(":")[0], text)


def render(by_device: Mapping[str, Ended]) -> str:
    """Return the figures by device, and why the first one refuses cases."""
    first, ended = next(iter(by_device.items()))
    return "\n".join(
        [
            *table(
                ("device", "cases", "passed", "refused", "other results"),
                [*_rows(by_device)],
            ),
            f"Refused by `{first}` are:",
            "",
            *table(("because", "cases"), _reasons(ended)),
            "Other results, as ONNX Runtime alone has them (those of training are "
            f"random), has `{first}` in:",
            "",
            *textwrap.wrap(
                f"{', '.join(_differing(ended))}.", 88, break_long_words=False
            ),
            "",
        ]
    )


def _rows(by_device: Mapping[str, Ended]) -> Iterator[Sequence[str]]:
    for device, ended in by_device.items():
        states = Counter(map(state_of, ended.values()))
        counts = [states[state] for state in ("passed", "refused", "differs")]
        yield f"`{device}`", str(len(ended)), *map(str, counts)


def _reasons(ended: Ended) -> Iterator[Sequence[str]]:
    counts = Counter(
        cause_of(name, text)
        for name, text in ended.items()
        if state_of(text) == "refused"
    )
    for cause, count in sorted(counts.items(), key=lambda row: (-row[1], row[0])):
        yield cause, str(count)


def cause_of(name: str, text: str) -> str:
    """Return why a case was refused."""
    for pattern, cause in _CAUSES.items():
        if re.search(pattern, f"{name} {text}"):
            return cause
    return "ONNX Runtime refuses what it is given"


def _differing(ended: Ended) -> Iterator[str]:
    for name, text in ended.items():
        if state_of(text) == "differs":
            yield name.removeprefix("test_").removesuffix("_cpu")


if __name__ == "__main__":
    made = {device: run_on(device) for device in DEVICES}
    PART.page.write_text(PART.replaced(PART.page.read_text(), render(made)))
