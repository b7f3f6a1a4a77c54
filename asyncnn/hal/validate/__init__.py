"""Checks models, requests and their settings against the rules of the HAL.

`validate_model`
    the rules of a model structure, of the newest version of the HAL or an older one
`validate_request`
    the rules of a request for a model that is valid
`RequestRules`
    the same, prepared once for many requests of one model

A client is not trusted: whatever a structure holds, the outcome is None or an
`InvalidArgumentError` whose message names the subgraph, the operand or operation, and
the rule that is broken. No other error is raised, and nothing is changed. Checking a
model is linear in its size, and blocks meanwhile: `validating` does it step by step,
for callers that do other work in between. A model that has passed is remembered while
it lives. Functions may be called on any thread; a `RequestRules` by one at a time.

`signature_of` reduces a model to what the rules of requests need of it.
`validate_memory`, `validate_priority`, `validate_execution_preference` and
`validate_measure_timing` check what comes along with models and requests.

Rules of models are M1 to M17, of requests R1 to R7:

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

>>> from asyncnn import ModelBuilder, hal
>>> from asyncnn.hal.validate import validate_model, validate_request
>>> FLOATS = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (4,))
>>> builder = ModelBuilder()
>>> x = builder.input("x", FLOATS.type, FLOATS.dimensions)
>>> builder.output(builder.operation(hal.OperationType.ABS, [x], FLOATS), "y")
>>> model = builder.build().model
>>> validate_model(model)
>>> validate_request(hal.Request((), (), ()), model)
Traceback (most recent call last):
asyncnn.hal.errors.InvalidArgumentError: the request has 0 inputs, the model 1 [R1]
>>> try:
...     validate_model(model, hal.HalVersion.V1_0)
... except hal.InvalidArgumentError as error:
...     *place, reason, rule = error.message.split(": ")
>>> place, reason
(['main subgraph', 'operation 0'], 'ABS needs HAL 1.2, not HAL 1.0')
>>> rule
'it is used with TENSOR_FLOAT32 [M9]'
"""

from asyncnn.hal.validate.model import validate_model as validate_model
from asyncnn.hal.validate.model import validating as validating
from asyncnn.hal.validate.request import RequestRules as RequestRules
from asyncnn.hal.validate.request import plain_arguments as plain_arguments
from asyncnn.hal.validate.request import plain_request as plain_request
from asyncnn.hal.validate.request import signature_of as signature_of
from asyncnn.hal.validate.request import validate_request as validate_request
from asyncnn.hal.validate.rules import execution_options as execution_options
from asyncnn.hal.validate.rules import (
    validate_execution_preference as validate_execution_preference,
)
from asyncnn.hal.validate.rules import (
    validate_measure_timing as validate_measure_timing,
)
from asyncnn.hal.validate.rules import validate_memory as validate_memory
from asyncnn.hal.validate.rules import validate_priority as validate_priority
from asyncnn.lazy import exported as _exported

__all__ = _exported(__name__)
