"""Operations of extensions as the engine runs them: with a kernel."""

from asyncnn.hal.extensions import ExtensionOperationType
from asyncnn.kernels.kernel import Compute, Prepare


class ExtensionOperation(ExtensionOperationType):
    """An operation type with its kernel.

    It is ``compute`` if output shapes depend on the data, else ``prepare``. A client
    that only builds models needs neither.
    """

    prepare: Prepare | None = None
    compute: Compute | None = None
