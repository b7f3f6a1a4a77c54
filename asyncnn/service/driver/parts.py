"""What the parts of a session have in common: preparations, executions, bursts, others.

Each part keeps the objects of one kind that its client has, by the client's numbers.
All of them belong to the event loop, and trust nothing that the client says: a message
that gives a number a second time, or contradicts itself, raises `InvalidArgumentError`,
which ends the connection. What goes wrong with a call is the answer to that call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.offload import SerialOffload
from asyncnn.service import wire
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.quotas import CountedTable
from asyncnn.service.driver.reporting import explained
from asyncnn.service.limits import OwnedTasks, ServiceLimits

if TYPE_CHECKING:
    from asyncnn.service.driver.isolating import Isolated
    from asyncnn.service.driver.recorder import ClientRecorder


class SessionFields:
    """What a session and all of its parts know by the same names.

    It is of the client called ``client_name``. ``_models`` are the client's prepared
    models by number. ``_tasks`` end with the session. ``_validating`` is the thread
    that checks large models of the client's process. ``_send`` sends a message to the
    client. It may run regions, which an engine reads as they are: on the device that is
    ``_isolated``, if there is one. What it calls is noted by ``_recorder``, if there is
    one.
    """

    client_name: str
    _device: IDevice
    _limits: ServiceLimits
    _models: CountedTable[IPreparedModel]
    _pools: AnnouncedPools
    _tasks: OwnedTasks
    _validating: SerialOffload
    _send: Callable[[wire.ToClient], None]
    _may_run_regions: bool
    _isolated: "Isolated | None"
    _recorder: "ClientRecorder | None"


class SessionPart(SessionFields):
    """Base of all parts, which have what is the session's."""

    def __init__(self, session: SessionFields) -> None:
        # Each itself: executions look these up for every message.
        for name in SessionFields.__annotations__:
            setattr(self, name, getattr(session, name))

    def _isolated_for(self, model: Model) -> "Isolated | None":
        """Return what runs a model with regions; None if it is the driver's device."""
        for entry in model.extension_name_to_prefix:
            if entry.name in DECLARED:
                if self._may_run_regions:
                    return self._isolated
                raise GeneralFailureError(
                    f"the driver runs regions of {entry.name} for its own user alone",
                    hint="translate the model, or serve it with --trust-regions",
                )
        return None

    def _model(self, number: int) -> IPreparedModel:
        """Return a prepared model of the client."""
        prepared = self._models.get(number)
        if prepared is None:
            raise InvalidArgumentError(f"no prepared model {number}")
        return prepared

    @contextmanager
    def _answering(
        self, answer: Callable[[ErrorStatus], wire.ToClient]
    ) -> Iterator[None]:
        """Answer whatever the block raises with its status."""
        try:
            yield
        except Exception as error:
            self._send(answer(explained(error).status))
