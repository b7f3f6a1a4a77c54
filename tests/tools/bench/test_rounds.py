"""Interleaved rounds and their statistics."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from asyncnn.tools.bench import rounds
from asyncnn.tools.bench.rounds import (
    ENERGY,
    OWN,
    Batches,
    Figure,
    Once,
    measure,
    percentile,
    rotated,
    runs_within,
    timed,
)


class TestFigure:
    def test_it_is_the_median_of_the_round_medians(self) -> None:
        assert Figure((5.0, 1.0, 100.0)).us == 5.0

    def test_one_disturbed_round_does_not_move_it(self) -> None:
        assert Figure((2.0, 2.0, 900.0, 2.0, 2.0)).us == 2.0

    def test_a_ratio_is_the_median_of_the_ratios_within_rounds(self) -> None:
        mine, theirs = Figure((1.0, 20.0, 3.0)), Figure((2.0, 10.0, 4.0))
        assert mine.ratio_to(theirs) == 0.75

    def test_a_slow_phase_that_hits_both_cancels_out_of_the_ratio(self) -> None:
        calm, theirs = Figure((1.0, 1.0, 1.0)), Figure((2.0, 2.0, 2.0))
        slowed, theirs_slowed = Figure((1.0, 9.0, 8.0)), Figure((2.0, 18.0, 16.0))
        assert slowed.ratio_to(theirs_slowed) == calm.ratio_to(theirs)

    def test_figures_of_different_numbers_of_rounds_have_no_ratio(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            Figure((1.0, 2.0)).ratio_to(Figure((1.0,)))


@pytest.mark.parametrize(
    ("by", "expected"), [(0, "abc"), (1, "bca"), (2, "cab"), (3, "abc"), (7, "bca")]
)
def test_rotation_keeps_the_circular_order(by: int, expected: str) -> None:
    assert rotated("abc", by) == list(expected)


def test_nothing_rotates_to_nothing() -> None:
    assert rotated([], 4) == []


@pytest.mark.parametrize(
    ("budget_us", "run_us", "runs"),
    [(60_000, 100, 600), (60_000, 300_000, 3), (60_000, 0.4, 2000), (60_000, 0, 2000)],
)
def test_a_batch_fills_its_budget_within_limits(
    budget_us: float, run_us: float, runs: int
) -> None:
    assert runs_within(budget_us, run_us) == runs


@pytest.mark.parametrize(("share", "expected"), [(0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentiles(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected


class Journal:
    """Makes contenders that note when they run and report what they are told."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def contender(self, name: str, by_round: Sequence[float]) -> Batches:
        warm_ups = 4
        values = iter([by_round[0]] * warm_ups + list(by_round))

        async def batch(runs: int) -> Mapping[str, Sequence[float]]:
            self.order.append(name)
            return {name: [next(values)] * runs}

        return Batches(batch)


class TestMeasuring:
    async def test_every_round_runs_every_contender_in_rotated_order(self) -> None:
        journal = Journal()
        contenders = {name: journal.contender(name, [1.0] * 3) for name in "abc"}
        await measure(contenders, rounds=3)
        assert "".join(journal.order) == "aaaabbbbcccc" + "abc" + "bca" + "cab"

    async def test_figures_hold_one_median_for_each_round(self) -> None:
        batch = Journal().contender("a", [3.0, 5.0, 4.0])
        figures = await measure({"a": batch}, rounds=3)
        assert figures == {"a": Figure((3.0, 5.0, 4.0))}

    async def test_a_disturbed_run_of_the_warm_up_does_not_make_batches_small(
        self,
    ) -> None:
        sizes: list[int] = []

        async def batch(runs: int) -> Mapping[str, Sequence[float]]:
            sizes.append(runs)
            await asyncio.sleep(0.1 if len(sizes) == 3 else 0)
            return {"a": [1.0] * runs}

        await measure({"a": Batches(batch)}, rounds=1, batch_us=50_000)
        assert sizes[-1] > 3

    async def test_a_contender_may_have_several_figures(self) -> None:
        async def batch(runs: int) -> Mapping[str, Sequence[float]]:
            return {"inside": [1.0] * runs, "outside": [2.0] * runs}

        figures = await measure({"both": Batches(batch)}, rounds=2)
        assert figures["outside"].ratio_to(figures["inside"]) == 2.0

    async def test_calls_and_awaits_are_timed_once_for_each_run(self) -> None:
        calls: list[str] = []

        async def awaited() -> None:
            calls.append("await")

        for call in (lambda: calls.append("call"), awaited):
            samples = (await (await timed(call))(4))[OWN]
            assert len(samples) == 4
            assert all(0 < sample < 1e6 for sample in samples)
        tried = 1
        assert calls == ["call"] * (tried + 4) + ["await"] * (tried + 4)

    async def test_what_takes_its_time_is_taken_once_in_each_round(self) -> None:
        taken: list[float] = []

        async def one() -> float:
            taken.append(len(taken))
            return taken[-1]

        async def two() -> Mapping[str, float]:
            return {"b": 1.0, "c": 2.0}

        found = await measure({"a": Once(one), "b": Once(two)}, rounds=3)
        assert found["a"] == Figure((0.0, 1.0, 2.0))
        assert found["c"].ratio_to(found["b"]) == 2.0


class TestEnergy:
    async def used_by_one(self) -> float:
        async def batch(count: int) -> dict[str, list[float]]:
            for _ in range(count):
                end = time.process_time_ns() + 10**7
                while time.process_time_ns() < end:
                    pass
            return {"run": [1.0]}

        figures = await measure(
            {"run": Batches(batch)}, rounds=1, batch_us=1.0, energy=True
        )
        assert figures["run"].us == 1.0
        return figures["run" + ENERGY].us

    async def test_it_is_processor_time_where_nothing_counts_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "RAPL", tmp_path)
        assert 10_000 <= await self.used_by_one() < 1_000_000

    async def test_it_is_what_the_processors_say_where_they_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "RAPL", tmp_path)
        folder = tmp_path / "intel-rapl:0"
        folder.mkdir()
        for name in ("energy_uj", "max_energy_range_uj"):
            (folder / name).write_text("700\n")
        assert await self.used_by_one() == 0.0
