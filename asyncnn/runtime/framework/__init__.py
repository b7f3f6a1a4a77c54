"""The framework above the drivers: chooses devices, divides models, falls back.

`device_registry`
    every device by its name: built in, or brought by a package
`sample_devices`
    devices that support a part of the operations, to try and to learn from
`partition`, `submodels`
    which operations run where, and each partition as a model; pure functions
`older_drivers`, `older_models`, `older_executions`
    a driver of HAL 1.0 to 1.2 as a device of 1.3
`opening`
    the devices of a framework are opened, and closed
`whole_device`
    `FrameworkDevice`, an `IDevice` over several devices
`planning`, `steps`, `partition_preparing`, `caching`
    a model is planned, and prepared on its devices or loaded from their caches
`divided_model`, `stepping`, `fenced_chain`
    it is executed partition by partition
`spaces`, `managed_memory`, `outcomes`
    the memory between partitions and of buffers, and the report of an execution's end
`fallback`
    what goes to the CPU instead, for which reasons, and devices that are left out

Only the settings are here. Source: the HAL's runtime (Manager, CompilationBuilder,
ExecutionPlan, ExecutionBuilder) and its property ``debug.nn.partition``.
"""

import os
from enum import IntEnum, StrEnum

import msgspec

from asyncnn.hal.errors import InvalidArgumentError, check_least, require_known

PARTITION_VARIABLE = "ASYNCNN_PARTITION"
"""Environment variable in place of the property ``debug.nn.partition``."""

FRAMEWORK = "framework"
"""Name of the device that is made of the others."""


class Partitioning(IntEnum):
    """Whether models are divided among devices; the numbers are the property's."""

    NO = 0
    """All of a model runs on the CPU."""
    WITH_FALLBACK = 1
    """It is divided; where that fails, the CPU takes its place."""
    ONLY = 2
    """It is divided; where that fails, it fails."""


class Fallback(StrEnum):
    """What the CPU computes if another device fails to execute.

    If a device fails to prepare its part, that is the whole model, or nothing.
    """

    FORBID = "forbid"
    """Nothing: the execution or the preparation fails."""
    PARTIAL = "partial"
    """The partition of that device."""
    FULL = "full"
    """The whole model."""


class FrameworkSettings(msgspec.Struct, frozen=True):
    """How a framework divides models, and what it does about failures.

    ``moving_weight`` is how much the estimated cost of handing tensors from device to
    device counts; with 0 each operation goes to the device that is best for it.

    A device that has failed ``failures_to_leave_out`` times in a row with one status is
    left out for ``pause_s`` seconds, for twice as long the next time, and so on up to
    ``longest_pause_s``. One that has died is left out at once. What requests are the
    cause of does not count (see `fallback`). Between partitions lie at most
    ``max_intermediate_bytes`` for one execution.

    With ``chains_drivers``, neighbouring partitions of driver processes follow each
    other by fences in executions that are not fenced, too: they go on while the event
    loop of this process is busy. That costs some hundred microseconds for each, which a
    loop that has time does not need: it hands them on faster.

    :raises InvalidArgumentError: if a number is out of range: the counts and the pauses
        are positive, the longest pause is no shorter than the first, and the weight is
        not negative.
    """

    partition: Partitioning = Partitioning.WITH_FALLBACK
    fallback: Fallback = Fallback.PARTIAL
    moving_weight: float = 1.0
    failures_to_leave_out: int = 3
    pause_s: float = 1.0
    longest_pause_s: float = 60.0
    max_intermediate_bytes: int = 2**30
    chains_drivers: bool = False

    def __post_init__(self) -> None:
        check_least(self, 1, "failures_to_leave_out", "max_intermediate_bytes")
        check_least(self, 0, "moving_weight")
        check_least(self, self.pause_s, "longest_pause_s")
        if not self.pause_s > 0:
            raise InvalidArgumentError(
                f"FrameworkSettings.pause_s is {self.pause_s}", hint="it is above 0"
            )

    @property
    def effective_fallback(self) -> Fallback:
        """What the CPU computes: nothing, if models are only divided."""
        if self.partition is Partitioning.ONLY:
            return Fallback.FORBID
        return self.fallback


def chosen_partitioning(setting: int | None) -> Partitioning:
    """Return ``setting`` or, without one, what the environment says; else 1.

    :raises InvalidArgumentError: if either is none of the three numbers.
    """
    text = os.environ.get(PARTITION_VARIABLE, "").strip() or "1"
    try:
        return Partitioning(int(text) if setting is None else setting)
    except ValueError:
        where = PARTITION_VARIABLE if setting is None else "partition"
        raise InvalidArgumentError(
            f"{where} is {text if setting is None else setting!r}",
            hint="0 does not divide models, 1 does with a fallback, 2 without one",
        ) from None


def chosen_fallback(setting: str) -> Fallback:
    """Return the fallback of that name.

    :raises InvalidArgumentError: if there is none.
    """
    require_known("fallback", setting, tuple(Fallback))
    return Fallback(setting)
