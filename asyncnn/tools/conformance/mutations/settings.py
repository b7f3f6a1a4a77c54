"""Mutations of what is said beside a model when it is prepared."""

from asyncnn.hal.types import ExecutionPreference, HalVersion, Model, Priority
from asyncnn.tools.conformance.mutations.mutant import Mutant, Mutants, Row


def _unknown_preferences(model: Model, version: HalVersion) -> Mutants:
    if version >= HalVersion.V1_1:
        for bad in (min(ExecutionPreference) - 1, max(ExecutionPreference) + 1):
            yield Mutant(f"preference {bad}", model, preference=bad)


def _unknown_priorities(model: Model, version: HalVersion) -> Mutants:
    if version >= HalVersion.V1_3:
        for bad in (min(Priority) - 1, max(Priority) + 1):
            yield Mutant(f"priority {bad}", model, priority=bad)


ROWS = (
    Row("VM22", "the preference is none", _unknown_preferences, False),
    Row("VM23", "the priority is none", _unknown_priorities, False),
)
