"""Trains the digit classifiers that come with asyncnn and writes them as its data.

Run ``python examples/digits/train.py``; see the README beside this file.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import asyncnn
from asyncnn.runtime.model_file import BUNDLED
from asyncnn.tools.demo import (
    ACCURACY_FLOORS,
    MAX_GREY,
    MODEL_KINDS,
    ModelKind,
    accuracy,
    classify,
    model_path,
)
from export import float_model, int8_model
from network import Floats, Layer, gradients, new_network

SEED = 0
HELD_OUT = 360
EPOCHS = 120
BATCH = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
MAX_BLEND = 0.7
"""Largest share of the shifted copy in an augmented image."""


class Digits(NamedTuple):
    """Images uint8 [N, 8, 8] of grey levels 0 to 16, and their labels uint8 [N]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def main() -> None:
    """Train, export, and check the files that were written on the held-out images."""
    options = _options()
    console = Console()
    training, held_out = split()
    epochs = 1 if options.quick else EPOCHS
    options.output.mkdir(parents=True, exist_ok=True)
    with threadpool_limits(limits=1):  # sums have one order, so results repeat
        layers = train(training, epochs, console)
        quantized = int8_model(layers, _real(training.images))
    asyncnn.save(float_model(layers), model_path("float", options.output))
    asyncnn.save(quantized, model_path("int8", options.output))
    np.savez_compressed(options.output / "digits_test.npz", **held_out._asdict())
    scores = asyncio.run(evaluate(options.output, held_out))
    for kind, score in scores.items():
        console.print(f"{kind}: {score:.2%} of {len(held_out.labels)} held-out images")
    failed = [kind for kind, score in scores.items() if score < ACCURACY_FLOORS[kind]]
    if failed and not options.quick:
        raise SystemExit(f"below the floor: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=BUNDLED,
        help="folder to write (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one epoch, to see that everything works"
    )
    return parser.parse_args()


def split() -> tuple[Digits, Digits]:
    """Return the images to train on, and those held out, both stratified by digit."""
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    parts = train_test_split(
        images, labels, test_size=HELD_OUT, stratify=labels, random_state=SEED
    )
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])


def train(digits: Digits, epochs: int, console: Console) -> list[Layer]:
    """Return layers trained with AdamW and a learning rate that falls to 0."""
    rng = np.random.default_rng(SEED)
    layers = new_network(rng)
    optimizer = AdamW([array for layer in layers for array in layer.parameters])
    images = _real(digits.images)
    steps = epochs * (len(images) // BATCH)
    batches = track(
        _batches(rng, len(images), steps),
        "training",
        steps,
        console=console,
        disable=not console.is_terminal,
    )
    for step, batch in enumerate(batches):
        seen = blended(rng, images[batch])
        rate = LEARNING_RATE * (1 + np.cos(np.pi * step / steps)) / 2
        optimizer.step(gradients(layers, seen, digits.labels[batch]), rate)
    return layers


def _batches(
    rng: np.random.Generator, count: int, steps: int
) -> Iterator[NDArray[np.intp]]:
    """Yield indexes in random order, every image at most once in an epoch."""
    per_epoch = count // BATCH
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(count)
        start = step % per_epoch * BATCH
        yield order[start : start + BATCH]


def blended(rng: np.random.Generator, images: Floats) -> Floats:
    """Mix each image with a copy of itself that is shifted by up to one pixel."""
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    rows, columns = rng.integers(0, 3, (2, len(images)))
    shifted = shifts[np.arange(len(images)), rows, columns].transpose(0, 2, 3, 1)
    share = rng.uniform(0, MAX_BLEND, (len(images), 1, 1, 1)).astype(np.float32)
    mixed: Floats = images + share * (shifted - images)
    return mixed


class AdamW:
    """Adam with decoupled weight decay; updates the parameters in place."""

    def __init__(self, parameters: Sequence[Floats]) -> None:
        self._parameters = parameters
        self._means = [np.zeros_like(array) for array in parameters]
        self._squares = [np.zeros_like(array) for array in parameters]
        self._steps = 0

    def step(self, gradients: Sequence[Floats], rate: float) -> None:
        """Move every parameter against its gradient."""
        self._steps += 1
        mean_bias, square_bias = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        state = zip(
            self._parameters, gradients, self._means, self._squares, strict=True
        )
        for parameter, gradient, mean, square in state:
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            move = (mean / mean_bias) / (np.sqrt(square / square_bias) + 1e-7)
            parameter -= np.float32(rate) * (move + WEIGHT_DECAY * parameter)


async def evaluate(folder: Path, digits: Digits) -> dict[ModelKind, float]:
    """Return the accuracy of each model file in ``folder``, run by asyncnn."""
    scores = {}
    async with asyncnn.open_device() as device:
        for kind in MODEL_KINDS:
            prepared = await device.prepare(
                await asyncnn.load_model(model_path(kind, folder))
            )
            predictions, _ = await classify(prepared, digits.images)
            scores[kind] = accuracy(predictions, digits.labels)
    return scores


def _real(images: NDArray[Any]) -> Floats:
    return images[..., None].astype(np.float32) / np.float32(MAX_GREY)


if __name__ == "__main__":
    main()
