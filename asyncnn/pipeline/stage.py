"""A stage as a user describes it."""

from collections.abc import Mapping

import msgspec
from numpy.typing import ArrayLike

from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel


class Stage(msgspec.Struct, frozen=True, eq=False):
    """One model that every frame runs through. All its shapes must be fixed.

    ``state`` names outputs, each with the input that takes it in the next frame. The
    first frame takes the array of ``initial``, by name of the input, or zeros. With
    ``state_on``, the device that the model is on, state that no other stage takes stays
    in its driver.

    ``inputs`` tells for inputs by name what they take: ``"STAGE.OUTPUT"`` of a stage
    before, or ``"put.NAME"``, something that is put. The others take, in order, the
    outputs of the stage before that are not state; in the first stage, what is put
    under their own names.
    """

    name: str
    model: PreparedModel
    inputs: Mapping[str, str] = {}
    state: Mapping[str, str] = {}
    initial: Mapping[str, ArrayLike] = {}
    state_on: Device | None = None
