"""Compilation caching of models that several devices compute.

A framework needs a fixed number of files, as any device does. Its own two hold the plan
and the model itself, from which partitions are prepared that no device has saved, and
what falls back. The others are slots: each partition has one, of as many files as the
most demanding device needs, and a token that is derived from the model's, the
partition, its device and that device's version. So whatever has changed is not loaded,
and the model is prepared anew.

The plan is sealed, as a model cache of a device is, see `asyncnn.devices.cache_format`;
the weights beside it are numbers to compute with, and no more.

Source: the HAL's runtime (CompilationBuilder: setCaching; ExecutionPlan: CacheInfo).
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from asyncnn import __version__
from asyncnn.devices.cache_files import CacheFiles, check_unchanged
from asyncnn.devices.cache_format import COMPILATION_BYTES, CacheKey, ModelRecord
from asyncnn.devices.cache_saving import (
    DataLayout,
    new_identity,
    with_placed_constants,
    writing,
)
from asyncnn.devices.caching import reading, unsealed_at_once, unsealing
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import seals_caches
from asyncnn.hal.refusals import CacheArguments, checked_descriptors
from asyncnn.hal.slices import sliced
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Handle, Model, Priority
from asyncnn.memory.descriptors import Descriptor, duplicated, handles_of
from asyncnn.pacing import Steps
from asyncnn.runtime.framework import FrameworkSettings
from asyncnn.runtime.framework.fallback import Member
from asyncnn.runtime.framework.partition import Division

logger = logging.getLogger(__name__)

MOST_FILES = 32
"""Of each kind, for one model (HAL 1.2/Constant: MAX_NUMBER_OF_CACHE_FILES)."""

MOST_PARTITIONS = 8
"""A model of more partitions is not cached."""


class DivisionRecord(ModelRecord, frozen=True, array_like=True):
    """How a model is divided, and the model.

    ``made_for`` says what the plan depends on. ``devices`` are positions in the list of
    the framework's, one for each partition; ``saved`` says which partitions' devices
    have saved them.
    """

    kind: Literal["framework"]
    made_for: tuple[str, ...]
    division: Division
    devices: tuple[int, ...]
    saved: tuple[bool, ...]


class CacheLayout:
    """How the cache files of a framework over ``members`` are divided among these."""

    def __init__(self, members: Sequence[Member], settings: FrameworkSettings) -> None:
        self._members = members
        self._settings = settings
        self._needed = [_needed(member) for member in members]
        self._most = tuple(max(counts) for counts in zip(*self._needed, strict=True))
        slots = [(MOST_FILES - 1) // most for most in self._most if most]
        self.slots = min([MOST_PARTITIONS, *slots])

    @property
    def files(self) -> tuple[int, int]:
        """How many model and data files a framework needs; none if no device does."""
        if not any(self._most) or not self.slots:
            return 0, 0
        model, data = self._most
        return 1 + self.slots * model, 1 + self.slots * data

    def is_sealed_by(self, device: int) -> bool:
        """Return whether a device's model caches say that they were changed."""
        return seals_caches(self._members[device].hal)

    def made_for(self) -> tuple[str, ...]:
        """Return all that a plan depends on besides the model and its preference."""
        devices = [
            f"{member.kind}={member.hal.get_version_string()[1]}"
            for member in self._members
        ]
        settings = self._settings
        weight = f"moving_weight={settings.moving_weight}"
        return (__version__, f"partition={settings.partition}", weight, *devices)

    def opened(self, cache: CacheArguments) -> "OpenCache":
        """Return files as a call gives them, with descriptors of our own.

        :raises InvalidArgumentError: as `checked_descriptors`.
        :raises ResourceExhaustedTransientError: if there are no descriptors left.
        """
        fds = checked_descriptors(cache, self.files)
        if not all(self.files):
            raise InvalidArgumentError("the devices cache no models")
        return OpenCache(self, duplicated(fds), bytes(cache.token))

    def slot(
        self, files: "OpenCache", number: int, device: int, operations: Sequence[int]
    ) -> CacheArguments:
        """Return the files and the token of one partition; none for one too many."""
        needed = self._needed[device]
        if number >= self.slots or not any(needed):
            return CacheArguments()
        handles = handles_of(files.owned)
        models, datas = handles[: self.files[0]], handles[self.files[0] :]
        most_models, most_datas = self._most
        first_model, first_data = 1 + number * most_models, 1 + number * most_datas
        member = self._members[device]
        token = hashlib.sha256(files.own.token)
        version = member.hal.get_version_string()[1]
        token.update(
            msgspec.msgpack.encode((member.kind, version, number, tuple(operations)))
        )
        return CacheArguments(
            models[first_model : first_model + needed[0]],
            datas[first_data : first_data + needed[1]],
            token.digest(),
        )


class OpenCache:
    """The files of one model, for as long as this lives: ours, and the slots."""

    def __init__(
        self, layout: CacheLayout, owned: Sequence[Descriptor], token: bytes
    ) -> None:
        self.layout = layout
        self.owned = owned
        self.own = CacheFiles(owned[0], owned[layout.files[0]], token)
        self._unsealed: tuple[DivisionRecord, memoryview] | None = None

    def check(self, key: CacheKey) -> None:
        """Check the model caches, as far as that takes no time to speak of.

        :raises GeneralFailureError: as `loading`, or if a partition's has changed.
        """
        self._unsealed = unsealed_at_once(DivisionRecord, self.own, key)
        if self._unsealed is None:
            return
        record, _ = self._unsealed
        self._check_use(record)
        for number, device in enumerate(record.devices):
            if record.saved[number] and self.layout.is_sealed_by(device):
                operations = record.division.partitions[number].operations
                models, _, token = self.layout.slot(self, number, device, operations)
                check_unchanged(models[0].fds[0], token)

    def _check_use(self, record: DivisionRecord) -> None:
        if record.made_for != self.layout.made_for():
            raise GeneralFailureError("the plan is for other devices, or settings")

    def loading(
        self, key: CacheKey, *, may_map: bool
    ) -> Steps[tuple[DivisionRecord, Model]]:
        """Load plan and model, in steps.

        :raises GeneralFailureError: if they are not as they were saved, or the plan is
            one of other devices or settings.
        """
        if self._unsealed is None:
            self._unsealed = yield from unsealing(DivisionRecord, self.own, key)
            self._check_use(self._unsealed[0])
        record, slices = self._unsealed
        model, _ = yield from reading(record, slices, self.own, may_map=may_map)
        return record, model

    def saving(
        self,
        model: Model,
        order: tuple[ExecutionPreference, Priority],
        division: Division,
        devices: Sequence[int],
        key: CacheKey,
    ) -> Steps[None]:
        """Save plan and model, in steps; the devices have saved what they could.

        :raises AsyncnnError: if they are not saved.
        """
        layout = DataLayout(new_identity())
        placed = with_placed_constants(model, layout)
        yield
        head, slices = sliced(replace(placed, operand_values=bytes(layout.values)))
        yield
        saved = tuple(
            self._is_saved(number, device, division.partitions[number].operations)
            for number, device in enumerate(devices)
        )
        record = DivisionRecord(
            bytes(layout.chunks[0][1])[-COMPILATION_BYTES:],
            layout.data_bytes,
            *order,
            head,
            sum(map(len, slices)),
            "framework",
            self.layout.made_for(),
            division,
            tuple(devices),
            saved,
        )
        yield from writing(record, slices, layout, self.own, key)

    def _is_saved(self, number: int, device: int, operations: Sequence[int]) -> bool:
        models, datas, _ = self.layout.slot(self, number, device, operations)
        first: Sequence[Handle] = (*models, *datas)[:1]
        return bool(first) and os.fstat(first[0].fds[0]).st_size > 0


def _needed(member: Member) -> tuple[int, int]:
    try:
        status, model, data = member.hal.get_number_of_cache_files_needed()
    except Exception as error:  # a stranger's
        logger.warning("%s does not say what it caches: %s", member.name, error)
        return 0, 0
    known = status is ErrorStatus.NONE and min(model, data) >= 0
    return (model, data) if known else (0, 0)
