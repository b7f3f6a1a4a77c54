"""Listens to a WAV file as to a microphone, for several wake words at once.

``python examples/wakeword/app.py recording.wav``; see the README beside this file.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncnn
from listener import CHUNK_SECONDS, Listener, Scores
from microphone import chunks, samples_of
from models import WORDS, MissingModelsError
from timeline import Timeline

_WAITING = 2
"""Chunks between two parts of the pipeline: the microphone waits beyond that."""


def main() -> None:
    """Run it."""
    options = _options()
    try:
        asyncio.run(listen(options))
    except (MissingModelsError, ValueError, OSError) as error:
        raise SystemExit(f"wakeword: {error}") from error


async def listen(options: argparse.Namespace) -> None:
    """Hear a file from its beginning to its end, and print what was heard when."""
    samples = samples_of(options.wav)
    timeline = Timeline(options.words, options.threshold)
    started = time.perf_counter()
    async with (
        asyncnn.open_device(options.device, isolated=options.isolated) as device,
        Listener.opened(device, options.words) as listener,
        asyncio.TaskGroup() as tasks,
    ):
        heard: asyncio.Queue[object | None] = asyncio.Queue(_WAITING)
        scored: asyncio.Queue[Scores | None] = asyncio.Queue(_WAITING)

        async def hear() -> None:
            async for chunk in chunks(samples, in_real_time=not options.fast):
                await heard.put(await listener.hear(chunk))
            await heard.put(None)

        async def score() -> None:
            async for windows in _taken(heard):
                await scored.put(await listener.score(windows))
            await scored.put(None)

        tasks.create_task(hear())
        tasks.create_task(score())
        async for scores in _taken(scored):
            for line in timeline.add(scores):
                if not options.json:
                    print(line, flush=True)
    if options.json:
        print(json.dumps(timeline.scores))
        return
    print(timeline.drawn())
    seconds = len(timeline) * CHUNK_SECONDS
    took = time.perf_counter() - started
    print(f"{seconds:.1f} s of sound in {took:.1f} s, {len(options.words)} words")


async def _taken(queue: asyncio.Queue) -> AsyncIterator:
    """Yield what comes out of a queue, up to None."""
    while (item := await queue.get()) is not None:
        yield item


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wav", type=Path, metavar="FILE.wav")
    parser.add_argument(
        "--words",
        nargs="+",
        default=list(WORDS),
        choices=WORDS,
        metavar="WORD",
        help=f"what to listen for, of {', '.join(WORDS)}; all by default",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        help="score, 0 to 1, from which on a word counts as heard",
    )
    parser.add_argument("--fast", action="store_true", help="do not wait for the sound")
    parser.add_argument("--device", help="the default one if left out")
    parser.add_argument("--isolated", action="store_true", help="in a driver process")
    parser.add_argument("--json", action="store_true", help="print all scores instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
