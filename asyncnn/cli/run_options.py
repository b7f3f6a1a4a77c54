"""The options of ``asyncnn run``, as its arguments and for its work."""

from pathlib import Path
from typing import Literal

from asyncnn.cli import options


class RunOptions(options.LoadingToCompare, frozen=True, kw_only=True):
    """What ``asyncnn run`` is asked to do.

    output_file --output: Write output_K to this .npz file.
    check: Compare with output_K of this .npz file, or an .npy file.
    check_key: Compare with KEY_K instead of output_K.
    device: Device to run on, one of asyncnn devices; by default $ASYNCNN_DEVICE, or the
        fastest that works, or reference with --check.
    socket: Run in the driver that serves this socket instead.
    state INPUT=OUTPUT: An input that --session keeps, and its next value; repeatable.
        By default those whose names leave no doubt.
    priority: Which runs go first, beside others of the same device.
    deadline_ms: Deadline of each execution, after so many milliseconds.
    repeat: Runs of every sample.
    session: Keep the model's state from one sample to the next.
    explain: Say which operations are supported, and stop.
    """

    model: options.FileArgument
    input_file: Path | None = None
    output_file: Path | None = None
    check: Path | None = None
    check_key: str = "output"
    device: str | None = None
    socket: Path | None = None
    strict: bool = False
    state: list[str] | None = None
    path: str = "async"
    priority: Literal["low", "medium", "high"] = "medium"
    deadline_ms: float | None = None
    repeat: options.Positive = 1
    session: bool = False
    explain: bool = False
    json: bool = False

    @property
    def timeout_s(self) -> float | None:
        """Seconds that each execution has."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000
