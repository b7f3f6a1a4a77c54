"""Checks models, requests and their settings against the rules of the HAL.

A client is not trusted: whatever a structure holds, the outcome is None or an
`InvalidArgumentError` whose message names the subgraph, the operand or operation, and
the rule that is broken. Rules of models are M1 to M17, of requests R1 to R7:

== ===========================  ===  ============================  == ==================
M1 nothing is empty             M7   lifetimes                     R1 argument counts
M2 operand types                M8   operation types and indices   R2 omitted arguments
M3 ranks and dimensions         M9   operation signatures          R3 locations
M4 quantisation                 M10  what operations may write     R4 given dimensions
M5 locations                    M11  inputs and outputs            R5 open dimensions
M6 sizes of constants           M12  execution order               R6 pools
M13 numbers of consumers        M14  pools of memory               R7 sizes of inputs
M15 extensions                  M16  referenced subgraphs
M17 preference and priority
== ===========================  ===  ============================  == ==================

`asyncnn.hal.validate.buffers` has the rules of device-managed buffers: A1 to A5 for
their allocation, B1 and B2 for copies.

Imports only `asyncnn.hal`, `asyncnn.hal.errors` and `asyncnn.pacing`.
"""

from asyncnn.hal.validate.model import validate_model, validating
from asyncnn.hal.validate.request import RequestRules, signature_of, validate_request
from asyncnn.hal.validate.rules import (
    execution_options,
    validate_execution_preference,
    validate_measure_timing,
    validate_memory,
    validate_priority,
)

__all__ = (
    "RequestRules",
    "execution_options",
    "signature_of",
    "validate_execution_preference",
    "validate_measure_timing",
    "validate_memory",
    "validate_model",
    "validate_priority",
    "validate_request",
    "validating",
)
