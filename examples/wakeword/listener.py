"""From chunks of sound to the scores of wake words.

A chunk goes through a window of samples, the melspectrogram, a window of those, the
embedding, and windows of embeddings; then all words are scored at once. What is kept
from one chunk to the next is the state of sessions, and stays with the device.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn import Device, NamedModel
from microphone import CHUNK, RATE, Samples
from models import (
    EMBEDDED_ROWS,
    MEL_ROWS,
    audio_window,
    embedding,
    embedding_window,
    mel_window,
    melspectrogram,
    word,
)

CHUNK_SECONDS = CHUNK / RATE

Array: TypeAlias = NDArray[np.float32]
Run: TypeAlias = Callable[[Array], Awaitable[Array]]

Windows: TypeAlias = Mapping[int, Array]
"""Windows of embeddings, by their length."""

Scores: TypeAlias = Mapping[str, float]
"""Between 0 and 1 for each word."""


class Listener:
    """Hears chunks, one after the other, and scores words; made by `opened`."""

    def __init__(
        self, front: Sequence[Run], windows: Mapping[int, Run], words: Mapping[str, Run]
    ) -> None:
        self._front = front
        self._windows = windows
        self._words = words
        self._rows: dict[str, int] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, device: Device, words: Sequence[str]) -> AsyncIterator[Self]:
        """Prepare the models and open their sessions, after some silence."""
        async with AsyncExitStack() as stack:
            front = [
                await _opened(device, stack, model)
                for model in (
                    audio_window(),
                    await melspectrogram(),
                    mel_window(),
                    await embedding(),
                )
            ]
            models = {name: await word(name) for name in words}
            rows = {n: model.inputs[0].dimensions[1] for n, model in models.items()}
            listener = cls(
                front,
                {
                    length: await _opened(device, stack, embedding_window(length))
                    for length in set(rows.values())
                },
                {n: await _opened(device, stack, m) for n, m in models.items()},
            )
            listener._rows = rows
            for _ in range(silent_chunks(max(rows.values()))):
                await listener.hear(np.zeros((1, CHUNK), np.float32))
            yield listener

    async def hear(self, chunk: Samples) -> Windows:
        """Return the windows of embeddings that end with a chunk."""
        value: Array = chunk
        for run in self._front:
            value = await run(value)
        windows = await asyncio.gather(*(run(value) for run in self._windows.values()))
        return dict(zip(self._windows, windows, strict=True))

    async def score(self, windows: Windows) -> Scores:
        """Return the score of each word; all are computed at the same time."""
        scores = await asyncio.gather(
            *(run(windows[self._rows[name]]) for name, run in self._words.items())
        )
        values = (float(score.item()) for score in scores)
        return dict(zip(self._words, values, strict=True))


def silent_chunks(rows: int) -> int:
    """Return how many chunks fill all windows with silence."""
    return 1 + -(-EMBEDDED_ROWS // MEL_ROWS) + rows


async def _opened(device: Device, stack: AsyncExitStack, named: NamedModel) -> Run:
    """Return what runs a model: step by step if it keeps anything."""
    prepared = await device.prepare(named)
    if prepared.states:
        run = (await stack.enter_async_context(prepared.session())).run
    else:
        run = prepared.run

    async def only_output(value: Array) -> Array:
        (output,) = (await run([value])).values()
        return output

    return only_output
