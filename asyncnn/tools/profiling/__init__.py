"""Where the time of a model's runs goes: by stage, partition, segment and operation.

This file has what a profile says; `observed_runs` takes one, `page` draws it. Imports
what applications do, and the engine to report its steps; knows no command line.
"""

from typing import TypeAlias

import msgspec

Subgraph: TypeAlias = int | None
"""Number of a referenced subgraph; None is the main one."""


class OperationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: ``index`` of the main subgraph, or of a referenced one.

    ``time_us`` is the median, over runs, of what all its ``calls`` of a run take; that
    of an IF or a WHILE is without the operations that it runs. ``share`` is of a run.
    If it ``is_apportioned``, only the ``segment`` that it is part of was measured.
    Bytes are its tensors', whether they come from memory or a cache.
    ``temporary_bytes`` are of results that only the plan keeps, and of its
    kernel's scratch memory; None if another engine has them. ``reads`` are the
    positions, in `Profile.operations`, of those that compute what it reads, and that
    run it.
    """

    partition: int
    subgraph: Subgraph
    index: int
    type: str
    device: str
    kernel: str
    rounding: str
    segment: int | None
    time_us: float
    share: float
    calls: float
    is_apportioned: bool
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    temporary_bytes: int | None
    shapes: tuple[tuple[int, ...] | None, ...]
    reads: tuple[int, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads or writes."""
        return self.input_bytes + self.output_bytes + self.weight_bytes

    @property
    def place(self) -> str:
        """Its number, and its subgraph's."""
        number = str(self.index)
        return number if self.subgraph is None else f"{number} of {self.subgraph}"


class SegmentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that another engine computes at once; ``time_us`` was measured.

    ``parts_us`` is what its operations take together when each is a graph of its own;
    None if that could not be measured and estimates give each its share.
    """

    partition: int
    subgraph: Subgraph
    engine: str
    operations: tuple[int, ...]
    time_us: float
    share: float
    parts_us: float | None


class PartitionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of the main subgraph that one device computes together.

    ``instead_of`` is the device that was to do it. ``arena_bytes`` hold temporaries.
    Of a device in another process, whose operations are not seen, ``time_us`` is what
    it reports of the whole partition, and ``is_reported``; None if it reports nothing.
    """

    device: str
    operations: tuple[int, ...]
    time_us: float | None
    share: float | None
    arena_bytes: int
    instead_of: str = ""
    is_reported: bool = False


class StageProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A part of runs that is no operation."""

    name: str
    meaning: str
    time_us: float
    share: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn profile --json``.

    Times are medians of the runs; shares are of the half of them that took neither long
    nor short, of which they add up to all that is accounted for.

    ``run_us`` is a run as its caller sees it, and ``observed_us`` one of the ``runs``
    that were observed, of which ``observing_us`` is what reporting steps takes.
    ``accounted`` is the share of the latter that operations and stages have, without
    observing; ``operations_share`` is operations' alone. ``folded`` operations
    are computed when the model is prepared, or not needed.
    """

    model: str
    device: str
    version: str
    inputs: str
    runs: int
    run_us: float
    observed_us: float
    observing_us: float
    accounted: float
    operations_share: float
    operations: tuple[OperationProfile, ...]
    segments: tuple[SegmentProfile, ...]
    partitions: tuple[PartitionProfile, ...]
    stages: tuple[StageProfile, ...]
    folded: int
    environment: str
