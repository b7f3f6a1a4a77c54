"""``asyncnn record``, ``asyncnn replay``: the last calls of a driver, and again."""

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from asyncnn.cli import options

if TYPE_CHECKING:
    from asyncnn.tools.replay.differing_calls import ReplayReport

_MOST_ROWS = 20

_LISTENS = "00010000"
"""Of flags in ``/proc/net/unix``."""


class RecordOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn record`` is asked to do.

    socket PATH: Where the driver serves; by default this user's path.
    output FILE: File to write, for this user alone.
    """

    socket: Path | None = None
    output: Annotated[Path, typer.Option()] = Path("driver.calls")


def record(asked: RecordOptions) -> None:
    """Write the last calls of a running driver, also of one that hangs, to a file.

    Models and tensors are in it only if asyncnn serve was asked to record them.

    Exits with 2 if there is no driver, or it records nothing.
    """
    from asyncnn.output_files import check_writable
    from asyncnn.service.process import default_socket_path
    from asyncnn.service.recorded_memory import open_memory
    from asyncnn.service.recording import save_memory

    check_writable(asked.output)
    fd = open_memory(driver_pid(asked.socket or default_socket_path()))
    written = save_memory(fd, asked.output)
    typer.echo(f"{options.counted(len(written.calls), 'call')} in {asked.output}")


def driver_pid(path: Path) -> int:
    """Return the process that serves ``path``, whether it answers or not.

    :raises InvalidArgumentError: if that is no path of a socket.
    :raises NoDriverError: if there is none.
    """
    from asyncnn.hal.errors import NoDriverError
    from asyncnn.service.process import peer_of, socket_address

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket_address(path))
        except BlockingIOError:  # so many wait that it takes nobody, as if it hangs
            pid = _listener_of(socket_address(path))
            if pid is None:
                raise NoDriverError(f"nobody is found who serves {path}") from None
            return pid
        except OSError as error:
            reason = f"no driver serves {path}: {error.strerror}"
            raise NoDriverError(reason) from error
        return peer_of(probe).pid


def _listener_of(address: str) -> int | None:
    """Return the process that listens there, as the kernel's tables have it."""
    name = address.replace("\0", "@")
    for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines():
        _, _, _, flags, _, _, inode, *bound = line.split(maxsplit=7)
        if bound != [name] or flags != _LISTENS:
            continue
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with contextlib.suppress(OSError):  # it has gone, or is another user's
                if f"socket:[{inode}]" in map(os.readlink, folder.iterdir()):
                    return int(folder.parent.name)
    return None


class ReplayOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn replay`` is asked to do.

    file: A recording, as of asyncnn record.
    device: Device to repeat the calls on, by default the recorded one, in a process of
        its own.
    model FILE: A model that is recorded by its digest only; repeatable.
    paced: Make the calls at the times that they were made at, not as soon as may be.
    bench: Repeat them several times, and print how long they take beside what they
        took.
    bisect: Cut the recording down to the calls that still fail, and write these to
        FILE.cut.
    lsb: Steps that integer outputs may be off; without a tolerance, none by any bit.
    """

    file: options.FileArgument
    device: str | None = None
    model: list[Path] | None = None
    extension: list[str] | None = None
    lsb: options.Natural = 0
    rtol: float | None = None
    atol: float | None = None
    paced: bool = False
    bench: bool = False
    bisect: bool = False
    json: bool = False


def replay(asked: ReplayOptions) -> None:
    """Repeat recorded calls of a driver, and compare statuses and outputs.

    What time has decided is pinned: calls that were cancelled, or missed their
    deadlines, are so again, and others have none. Outputs are compared if they
    were recorded: bit by bit, or within --rtol, --atol and --lsb. What another
    engine computes in floats differs in the last bits.

    Exits with 1 if a call differs, with 2 on bad input, and if no call could be
    repeated.
    """
    import anyio

    from asyncnn.hal.errors import InvalidArgumentError
    from asyncnn.output_files import check_writable
    from asyncnn.service.recording import read_record, write_record
    from asyncnn.tools.replay.replaying import ReplayRequest, cut_down, replayed
    from asyncnn.tools.samples import Tolerance

    is_exact = asked.rtol is asked.atol is None and not asked.lsb
    tolerance = Tolerance.asked(asked.lsb, asked.rtol, asked.atol)
    request = ReplayRequest(
        record=read_record(asked.file),
        device=asked.device,
        models=asked.model or (),
        extensions=asked.extension or (),
        paced=asked.paced,
        rounds=5 if asked.bench else 1,
        allowed=None if is_exact else tolerance,
    )
    part = Path(f"{asked.file}.cut")
    check_writable(part if asked.bisect else None)
    report = anyio.run(replayed, request)
    if asked.bisect and not report.passed:
        left = anyio.run(cut_down, request)
        write_record(left, part)
        report = msgspec.structs.replace(report, cut_calls=len(left.calls))
    options.show(
        report,
        lambda shown: _print(shown, part, times=asked.bench),
        json=asked.json,
        passed=report.passed,
    )
    if not report.repeated:
        raise InvalidArgumentError(f"no call of {asked.file} could be repeated")


def _print(report: "ReplayReport", part: Path, *, times: bool) -> None:
    calls = options.counted(report.calls, "call")
    typer.echo(
        f"{calls}, {report.repeated} repeated on {report.device}, outputs of "
        f"{report.compared} compared"
    )
    if report.by_time:
        typer.echo(f"{report.by_time} may end otherwise, as time decides")
    for reason, count in report.refusals.items():
        typer.echo(f"not repeated: {count}, {reason}")
    for each in report.times if times else ():
        typer.echo(
            f"{each.kind}: {each.calls}, {each.recorded_us:.1f} us recorded, "
            f"{each.replayed_us:.1f} us repeated"
        )
    for found in report.differences[:_MOST_ROWS]:
        then = f"{found.recorded} recorded, " if found.recorded else ""
        typer.echo(
            f"call {found.call} ({found.kind}): {found.what}: {then}{found.repeated}"
        )
    if len(report.differences) > _MOST_ROWS:
        typer.echo(f"and {len(report.differences) - _MOST_ROWS} more")
    if report.cut_calls is not None:
        typer.echo(f"{options.counted(report.cut_calls, 'call')} in {part}")
