"""Executions: requests that are bound to arrays once, for one prepared model.

Source: aidl/android/hardware/neuralnetworks/IExecution.aidl.
"""

from collections.abc import Sequence

from asyncnn.engine.plan import Plan
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Request


class Execution(Request, frozen=True, eq=False):
    """A request with ``arrays`` for all ports of ``plan``, inputs first.

    They have the dtypes and shapes of the ports, are C-contiguous and aligned, and
    those of outputs are writable: nothing is left to check or to look up. Its pools are
    those of the arrays if it may reach another process, and left out otherwise.
    """

    plan: Plan
    arrays: Sequence[Array]
