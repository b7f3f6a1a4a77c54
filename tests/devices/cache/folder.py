"""Saves and loads programs without a device, and compares their plans."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncnn.devices.cache_files import (
    CacheFiles,
    opened_for_loading,
    opened_for_saving,
)
from asyncnn.devices.cache_format import CacheKey, Compiled
from asyncnn.devices.cache_saving import new_identity, saving
from asyncnn.devices.caching import ModelCaches
from asyncnn.engine import Program
from asyncnn.engine.delegation import Delegate
from asyncnn.engine.plan import Plan
from asyncnn.hal.refusals import CacheArguments
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority
from asyncnn.pacing import completed
from tests.devices.cache.client import TOKEN


class Folder:
    """Saves and loads with descriptors of their own each time, as clients do."""

    def __init__(self, path: Path, delegate: Delegate | None = None) -> None:
        self.delegate = delegate
        self.key = CacheKey(path / "key")
        self.model, self.data = path / "model", path / "data"
        self.caches = {
            may_map: ModelCaches(str(path / "key"), may_map=may_map, delegate=delegate)
            for may_map in (False, True)
        }

    @contextmanager
    def handles(self, *, writable: bool) -> Iterator[CacheArguments]:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fds = [os.open(path, flags, 0o600) for path in (self.model, self.data)]
        try:
            yield CacheArguments(*[(Handle((fd,)),) for fd in fds], TOKEN)
        finally:
            for fd in fds:
                os.close(fd)

    @contextmanager
    def files(self, *, writable: bool) -> Iterator[CacheFiles]:
        with self.handles(writable=writable) as cache:
            opened = opened_for_saving if writable else opened_for_loading
            files = opened(cache)
        assert files is not None
        yield files

    def save(self, model: Model, priority: Priority = Priority.MEDIUM) -> Program:
        identity = b"" if self.delegate is None else new_identity()
        program = Program(model, delegate=self.delegate, identity=identity)
        compiled = Compiled(program, ExecutionPreference.SUSTAINED_SPEED, priority)
        with self.files(writable=True) as files:
            completed(saving(compiled, files, self.key))
        return program

    def load(self, *, may_map: bool = True) -> Compiled:
        with self.handles(writable=False) as cache:
            load = self.caches[may_map].loading(cache)
        return completed(load())


def decisions(plan: Plan) -> list[object]:
    """What makes a plan what it is, in values that compare."""
    read = {index for step in plan.steps for index in step.inputs}
    return [
        plan.shapes,
        plan.arena,
        plan.known_outputs,
        plan.is_straight,
        [
            (step.position, step.inputs, step.outputs, step.kernel is None)
            for step in plan.steps
        ],
        [
            {
                name: [(array.dtype, array.tobytes()) for array in arrays]
                for name, arrays in step.operation.packed.items()
            }
            for step in plan.steps
        ],
        {
            index: (value.dtype, value.shape, value.tobytes())
            for index, value in plan.constants.items()
            if index in read
        },
    ]


def plans_of(program: Program) -> list[list[object]]:
    plans = []
    for number in program.records():
        graph = program.subgraph(number)
        shapes = tuple(graph.operands[i].dimensions for i in graph.input_indexes)
        plans.append(decisions(program.plan(shapes, number)))
    return plans


def shape_of_plans(program: Program) -> list[list[object]]:
    """What is left of plans without the numbers that operations compute with."""
    return [plan[:5] for plan in plans_of(program)]
