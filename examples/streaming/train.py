"""Trains the detector of keys and writes its weights.

Run ``python examples/streaming/train.py``; see the README beside this file.
"""

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from threadpoolctl import threadpool_limits

import asyncnn
from events import Score, decode, judge
from framing import Floats, all_windows, labels
from models import UNITS, WEIGHTS, Weights, decision, features, load_weights, recurrent
from network import gradients, new_weights
from recordings import HELD_OUT_SEEDS, TRAINING_SEEDS
from report import MAX_ERROR_RATE
from synthesis import Recording, record

SEED = 0
SEQUENCE = 90
"""Frames that a gradient goes back in time."""

BATCH = 64
STEPS = 2500
LEARNING_RATE = 8e-3


class Examples(NamedTuple):
    """Features [frames, 33] of recordings one after another, and their classes."""

    features: Floats
    classes: NDArray[np.intp]


def main() -> None:
    """Train, write, and check what was written on the held-out recordings."""
    options = _options()
    console = Console()
    seeds = TRAINING_SEEDS[:20] if options.quick else TRAINING_SEEDS
    with threadpool_limits(limits=1):  # sums have one order, so results repeat
        examples = asyncio.run(prepare(seeds))
        weights = train(examples, 50 if options.quick else STEPS, console)
    np.savez_compressed(options.output, **weights._asdict())
    held_out = [record(seed) for seed in HELD_OUT_SEEDS]
    score = asyncio.run(evaluate(load_weights(options.output), held_out))
    console.print(
        f"{score.pressed} keys in held-out recordings: {score.missed} missed, "
        f"{score.invented} invented, error rate {score.error_rate:.2%}"
    )
    if score.error_rate > MAX_ERROR_RATE and not options.quick:
        raise SystemExit(f"above the limit of {MAX_ERROR_RATE:.0%}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=WEIGHTS, help="file (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="50 steps, to see that everything works"
    )
    return parser.parse_args()


async def prepare(seeds: Iterable[int]) -> Examples:
    """Compute features by the model that will compute them in the stream."""
    found = []
    async with asyncnn.open_device() as device:
        for recording in map(record, seeds):
            windows = all_windows(recording.samples)
            model = await device.prepare(features(len(windows)))
            outputs = await model.run(windows)
            found.append((outputs["features"], labels(recording, len(windows))))
    return Examples(*(np.concatenate(part) for part in zip(*found, strict=True)))


def train(examples: Examples, steps: int, console: Console) -> Weights:
    """Return weights trained with Adam and a learning rate that falls to 0."""
    rng = np.random.default_rng(SEED)
    weights = new_weights(rng)
    optimizer = Adam(weights)
    indexes = np.arange(SEQUENCE)[:, None]
    latest = len(examples.classes) - SEQUENCE
    for step in track(
        range(steps), "training", console=console, disable=not console.is_terminal
    ):
        frames = indexes + rng.integers(0, latest, BATCH)
        _, found = gradients(
            weights, examples.features[frames], examples.classes[frames]
        )
        optimizer.step(found, LEARNING_RATE * (1 + np.cos(np.pi * step / steps)) / 2)
    return weights


class Adam:
    """Updates the weights in place; a gradient that is too long is shortened."""

    def __init__(self, weights: Weights, max_norm: float = 1.0) -> None:
        self._weights = weights
        self._max_norm = max_norm
        self._means = [np.zeros_like(array) for array in weights]
        self._squares = [np.zeros_like(array) for array in weights]
        self._steps = 0

    def step(self, gradients: Weights, rate: float) -> None:
        """Move every weight against its gradient."""
        self._steps += 1
        norm = np.sqrt(sum(float((array**2).sum()) for array in gradients))
        shrink = np.float32(min(1, self._max_norm / (norm + 1e-9)))
        mean_bias, square_bias = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        state = zip(self._weights, gradients, self._means, self._squares, strict=True)
        for weight, gradient, mean, square in state:
            mean += 0.1 * (shrink * gradient - mean)
            square += 0.001 * ((shrink * gradient) ** 2 - square)
            move = (mean / mean_bias) / (np.sqrt(square / square_bias) + 1e-7)
            weight -= np.float32(rate) * move


async def evaluate(weights: Weights, recordings: Sequence[Recording]) -> Score:
    """Judge what the models find in recordings, each run as one sequence."""
    score = Score()
    async with asyncnn.open_device() as device:
        for recording in recordings:
            windows = all_windows(recording.samples)
            frames = len(windows)
            zeros = np.zeros((1, UNITS), np.float32)
            first = await device.prepare(features(frames))
            second = await device.prepare(recurrent(weights, frames))
            third = await device.prepare(decision(weights, frames))
            x = (await first.run(windows))["features"]
            x = (await second.run([x, zeros, zeros]))["hidden"]
            x = (await third.run([x]))["probabilities"]
            score += judge(recording.presses, decode(x))
    return score


if __name__ == "__main__":
    main()
