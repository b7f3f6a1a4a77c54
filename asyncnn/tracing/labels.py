"""Where a span was spent and what for, in the words of the HAL's systrace labels.

Source: the tracing utilities of the HAL (Tracing.h): ``[NN_<layer>_<phase>]detail``.
"""

from enum import StrEnum


class Layer(StrEnum):
    """The part of the system that did it."""

    APPLICATION = "LA"
    RUNTIME = "LR"
    UTILITY = "LU"
    IPC = "LI"
    DRIVER = "LD"
    CPU = "LC"
    OTHER = "LO"


class Phase(StrEnum):
    """What it was done for; the last four are parts of an execution."""

    OVERALL = "PO"
    WARM_UP = "PWU"
    BENCHMARK = "PBM"
    INITIALIZATION = "PI"
    PREPARATION = "PP"
    COMPILATION = "PC"
    EXECUTION = "PE"
    TERMINATION = "PT"
    UNSPECIFIED = "PU"
    INPUTS_AND_OUTPUTS = "PIO"
    TRANSFORMATION = "PTR"
    COMPUTATION = "PCO"
    RESULTS = "PR"


def label(layer: Layer, phase: Phase, detail: str) -> str:
    """Return the label by which the HAL's trace tools know a span."""
    return f"[NN_{layer}_{phase}]{detail}"
