"""What the parts of a session have in common: preparations, executions, bursts, others.

Each part keeps the objects of one kind that its client has, by the client's numbers.
All of them belong to the event loop, and trust nothing that the client says: a message
that gives a number a second time, or contradicts itself, raises `InvalidArgumentError`,
which ends the connection. What goes wrong with a call is the answer to that call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

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


class Common(msgspec.Struct, frozen=True, eq=False):
    """What the session of the client called ``client_name`` gives to all of its parts.

    ``models`` are the client's prepared models by number. ``tasks`` end with the
    session. ``validating`` is the thread that checks large models of the client's
    process. ``send`` sends a message to the client. It ``may_run_regions``, which an
    engine reads as they are: on the device that is ``isolated``, if there is one. What
    it calls is noted by ``recorder``, if there is one.
    """

    client_name: str
    device: IDevice
    limits: ServiceLimits
    models: CountedTable[IPreparedModel]
    pools: AnnouncedPools
    tasks: OwnedTasks
    validating: SerialOffload
    send: Callable[[wire.ToClient], None]
    may_run_regions: bool
    isolated: "Isolated | None"
    recorder: "ClientRecorder | None"


class SessionPart:
    """Base of all parts, which refer to what they have in common by short names."""

    def __init__(self, common: Common) -> None:
        # Taken out of it once: executions look these up for every message.
        self.client_name = common.client_name
        self._device = common.device
        self._limits = common.limits
        self._models = common.models
        self._pools = common.pools
        self._tasks = common.tasks
        self._validating = common.validating
        self._send = common.send
        self._may_run_regions = common.may_run_regions
        self._isolated = common.isolated
        self._recorder = common.recorder

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
