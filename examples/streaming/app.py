"""Listens to a telephone line and watches a camera, live, and says how it went.

Run ``python examples/streaming/app.py``; see the README beside this file.
"""

import argparse
import asyncio
import time
import wave
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from itertools import islice
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

import asyncnn
from asyncnn import tracing
from camera import FRAME_RATE, sights
from events import Event, Score, judge, presses
from lookout import Lookout
from pacing import CHUNK_SECONDS, chunks, paced
from recordings import HELD_OUT_SEEDS, read
from report import HeldOutReport, LineReport, Report
from switchboard import Switchboard
from synthesis import RATE, Recording, record
from view import View


def main() -> None:
    """Run it; exit with 1 if it was too slow or too often wrong."""
    options = _options()
    console = Console()
    recording = options.wav or record(options.seed)
    with tracing.recording(options.trace, "app") if options.trace else nullcontext():
        report = asyncio.run(run(options, recording, console))
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        console.print(str(report), highlight=False, soft_wrap=True)
    raise SystemExit(not report.is_good)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--wav", type=_wav, metavar="FILE", help="recording to play, 8 kHz mono")
    add("--seed", type=int, default=0, help="else: the one to make (default: 0)")
    add("--seconds", type=float, help="play only so much of it")
    add("--held-out", type=int, default=len(HELD_OUT_SEEDS), metavar="N",
        help="recordings to judge by (default: %(default)s)")  # fmt: skip
    add("--no-camera", action="store_true", help="only listen")
    add("--driver", nargs="?", const="", metavar="SOCKET",
        help="run the models in another process (default: one of its own)")  # fmt: skip
    add("--headless", action="store_true", help="print events, draw nothing")
    add("--json", action="store_true", help="print the report only, as JSON")
    add("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto")
    return parser.parse_args()


def _wav(path: str) -> Recording:
    try:
        return read(Path(path))
    except (OSError, EOFError, ValueError, wave.Error) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


async def run(
    options: argparse.Namespace, recording: Recording, console: Console
) -> Report:
    """Play the recording in real time beside the camera, then judge the detector."""
    samples = recording.samples
    if options.seconds is not None:
        samples = samples[: round(options.seconds * RATE)]
    async with _device(options.driver) as device:
        line = await Switchboard.on(device)
        camera = None if options.no_camera else await Lookout.on(device)
        is_live = console.is_terminal and not options.headless and not options.json
        live = Live(View(line, camera), console=console, refresh_per_second=15)
        with live if is_live else nullcontext():
            async with asyncio.TaskGroup() as group:
                if camera is not None:
                    frames = islice(sights(), round(len(samples) / RATE * FRAME_RATE))
                    group.create_task(camera.watch(paced(frames, 1 / FRAME_RATE)))
                sound = paced(chunks(samples, RATE), CHUNK_SECONDS)
                async with aclosing(line.listen(sound)) as events:
                    async for event in events:
                        if not is_live and not options.json:
                            console.print(_described(event), highlight=False)
        heard = LineReport(line.frames, line.keys, line.timing(), line.stages)
        held_out = [record(seed) for seed in HELD_OUT_SEEDS[: options.held_out]]
        judged = await evaluate(line, held_out)
        return Report(heard, None if camera is None else camera.report(), judged)


async def evaluate(line: Switchboard, held_out: Sequence[Recording]) -> HeldOutReport:
    """Stream recordings as fast as they are taken, and judge what was heard."""
    score, seconds = Score(), 0.0
    started = time.perf_counter()
    for recording in held_out:
        sound = paced(chunks(recording.samples, RATE), 0)
        found = presses([event async for event in line.listen(sound)])
        score += judge(recording.presses, found)
        seconds += len(recording.samples) / RATE
    return HeldOutReport(
        recordings=len(held_out),
        score=score,
        error_rate=round(score.error_rate, 5),
        times_real_time=round(seconds / (time.perf_counter() - started), 1),
    )


def _device(driver: str | None) -> AbstractAsyncContextManager[asyncnn.Device]:
    if driver is None:
        return asyncnn.open_device()
    return asyncnn.connect(driver or None)


def _described(event: Event) -> str:
    if event.released is None:
        return f"{event.pressed:7.2f} s  {event.key} pressed"
    held = event.released - event.pressed
    return f"{event.released:7.2f} s  {event.key} released after {1e3 * held:.0f} ms"


if __name__ == "__main__":
    main()
