"""Floor 3: turns a model into a plan and runs it, one operation at a time.

A `Program` is a compiled model. It holds a `Plan` for every set of input shapes that
was asked for; a `Workspace` holds the buffers of one execution at a time; a
`PlanExecution` runs the plan's steps and can stop between any two of them. Knows
nothing of event loops.
"""

from asyncnn.engine.plan_execution import PlanExecution
from asyncnn.engine.program import Program
from asyncnn.engine.records import PlanRecord

__all__ = ("PlanExecution", "PlanRecord", "Program")
