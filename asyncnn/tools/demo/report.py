"""What came out of a demonstration, in numbers and in a picture."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

NOTHING = "·"
"""Stands for a count of 0, so that the others catch the eye."""

_RIGHT, _WRONG = (0, 130, 75), (200, 35, 35)

_FAINTEST = 0.4
"""Strength of the colour of a single count: it must not drown in the background."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in microseconds, and how many runs a second went one by one."""

    p50_us: float
    p99_us: float
    throughput: float


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


def latency(durations_ns: Sequence[int]) -> Latency:
    """Summarise the durations of runs that followed one another."""
    p50, p99 = np.percentile(durations_ns, (50, 99))
    throughput = len(durations_ns) * 1e9 / sum(durations_ns)
    return Latency(float(p50) / 1e3, float(p99) / 1e3, throughput)


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
