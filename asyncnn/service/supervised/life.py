"""How it stands with a supervised device: whether there is hope, and what was lost."""

from asyncnn.errors import DeviceUnavailableError
from asyncnn.forking import own
from asyncnn.service.causes import Cause, forked
from asyncnn.service.client.device import RemoteDevice


class Life:
    """What a supervised device and its prepared models know of their drivers.

    Whoever asks for the cause of death was just refused, maybe by a driver that has a
    successor by now: the loss of the last driver is told until the device ends.
    """

    def __init__(self) -> None:
        self._end: Cause | None = None
        self._loss: Cause | None = None
        own(self)

    @property
    def has_ended(self) -> bool:
        """Whether there is going to be no other driver."""
        return self._end is not None

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the device's process."""
        return self._end is forked

    def lose(self, cause: Cause) -> None:
        """Remember why a driver was lost; there may be another."""
        self._loss = cause

    def end(self, cause: Cause) -> None:
        """Remember why there is going to be no other driver."""
        if self._end is None:
            self._end = cause

    def check(self) -> None:
        """Check that there may be another driver.

        :raises DeviceUnavailableError: if not.
        """
        if self._end is not None:
            raise self._end()

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return a new error that says what was lost; None while nothing was."""
        cause = self._end or self._loss
        return None if cause is None else cause()

    def disown(self) -> None:
        """Give up hope in a forked child, which has no driver."""
        self._end = forked


def cause_of_death(
    life: Life, remote: RemoteDevice | None
) -> DeviceUnavailableError | None:
    """Return why a call was refused: ``remote`` may be lost and nobody has noticed."""
    if not life.has_ended and remote is not None and remote.is_lost:
        return remote.cause_of_death()
    return life.cause_of_death()
