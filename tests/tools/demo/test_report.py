import io

import numpy as np
import pytest
from rich.console import Console

from asyncnn.tools.demo import (
    DemoLatency,
    accuracy,
    confusion_matrix,
    confusion_picture,
    latency,
)


@pytest.mark.parametrize(
    ("predictions", "labels", "expected"),
    [([1, 2, 3], [1, 2, 3], 1.0), ([1, 2, 0, 0], [1, 2, 3, 4], 0.5), ([1], [0], 0.0)],
)
def test_accuracy_is_the_share_of_right_answers(
    predictions: list[int], labels: list[int], expected: float
) -> None:
    assert accuracy(np.array(predictions), np.array(labels)) == expected


def test_a_confusion_matrix_counts_labels_by_row_and_predictions_by_column() -> None:
    matrix = confusion_matrix(np.array([0, 2, 2, 1]), np.array([0, 2, 1, 1]), 3)
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_latency_is_in_microseconds_and_throughput_per_second() -> None:
    assert latency([1_000_000] * 4) == DemoLatency(1000.0, 1000.0, 1000.0)


def test_a_single_slow_run_moves_the_99th_percentile_but_not_the_median() -> None:
    summary = latency([1_000] * 50 + [100_000])
    assert summary.p50_us == 1.0
    assert summary.p99_us == pytest.approx(50.5)


class TestConfusionPicture:
    matrix = np.array([[38, 0, 0], [1, 35, 0], [0, 0, 0]])

    def drawn(self, color_system: str | None) -> str:
        console = Console(
            file=io.StringIO(),
            force_terminal=color_system is not None,
            color_system=color_system,
            width=80,
        )
        console.print(confusion_picture(self.matrix, title="float"))
        return console.file.getvalue()

    def test_it_can_be_read_without_colour(self) -> None:
        lines = [line.split() for line in self.drawn(None).splitlines()]
        assert lines == [
            ["float"],
            ["0", "1", "2"],
            ["0", "38", "·", "·"],
            ["1", "1", "35", "·"],
            ["2", "·", "·", "·"],
        ]

    def test_columns_line_up(self) -> None:
        _, *rows = self.drawn(None).splitlines()
        assert len({len(row.rstrip()) for row in rows}) == 1

    def test_right_answers_are_green_and_wrong_ones_red(self) -> None:
        _, _, first, second, _ = self.drawn("truecolor").splitlines()
        right, wrong = "48;2;0;130;75m", "48;2;83;15;15m"
        assert right in first
        assert wrong not in first
        assert wrong in second

    def test_a_larger_share_of_the_row_is_stronger(self) -> None:
        _, _, first, second, _ = self.drawn("truecolor").splitlines()
        assert "48;2;0;130;75m" in first
        assert "48;2;0;128;74m" in second
