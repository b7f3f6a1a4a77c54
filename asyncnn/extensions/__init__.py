"""Floor 2: operand and operation types beyond those of the HAL.

An `Extension` is declared once, by vendor and application alike, as a module-level
object: its types stand for themselves wherever the HAL's own do. A device has the
extensions that it is opened with, and computes with those kernels. In models they are
numbers, to which each model gives its own meaning: `numbered` writes them so,
`Extensions.resolved` reads them, `check_extended` checks what only the extension knows,
and `Vocabulary` has words for them. `load_extension` finds what was named in a command.

The words that operations are declared in are those of `asyncnn.hal.operations` and
`asyncnn.kernels`, gathered here: arguments, bound operations, kernels.

Imports only `asyncnn.hal`, `asyncnn.kernels` and `asyncnn.hal.errors`.
"""

from asyncnn.extensions.extension import Extension, installed_extensions, load_extension
from asyncnn.extensions.names import (
    ExtensionNames,
    Vocabulary,
    joined,
    names_in,
    numbered,
)
from asyncnn.extensions.resolution import (
    NO_EXTENSIONS,
    Extensions,
    check_extended,
    check_extended_operation,
)
from asyncnn.hal.operations.bound import (
    BoundOperation,
    OperationFailedError,
    ValueNeededError,
)
from asyncnn.hal.operations.signature import V1_2, Argument, TypeRow, Usage, row
from asyncnn.kernels.kernel import Scratch, TiledRun, stateless

__all__ = (
    "NO_EXTENSIONS",
    "V1_2",
    "Argument",
    "BoundOperation",
    "Extension",
    "ExtensionNames",
    "Extensions",
    "OperationFailedError",
    "Scratch",
    "TiledRun",
    "TypeRow",
    "Usage",
    "ValueNeededError",
    "Vocabulary",
    "check_extended",
    "check_extended_operation",
    "installed_extensions",
    "joined",
    "load_extension",
    "names_in",
    "numbered",
    "row",
    "stateless",
)
