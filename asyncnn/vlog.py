"""Verbose logging by tag, as the HAL has it: free while off.

===============  =================================================================
tag              says
===============  =================================================================
``model``        what models come to be prepared
``compilation``  what became of a preparation; plans that were built
``execution``    each execution as it is launched, by whichever call, and as it ends
``cpuexe``       the operations that an execution computes
``manager``      devices that were opened, drivers that were connected to
``driver``       calls that reach a device; clients of a driver process
``memory``       pools that were mapped or copied, buffers that were allocated
===============  =================================================================

The environment variable ``ASYNCNN_VLOG`` names tags, separated by spaces, commas or
colons; ``all`` or ``1`` stands for every one. What they say then goes to standard
error. Expensive messages are guarded by the tag itself::

    if EXECUTION:
        EXECUTION("launched", inputs=describe(request))

Source: the HAL's property ``debug.nn.vlog`` and its macros VLOG and VLOG_IS_ON.
"""

import logging
import os
import re

logger = logging.getLogger(__name__)

VARIABLE = "ASYNCNN_VLOG"

_SEPARATORS = re.compile(r"[ ,:]+")
_EVERYTHING = frozenset({"1", "all"})


class Tag:
    """A topic; true while it is on. Calling it logs a message with its fields.

    The record has ``tag`` and ``fields`` as attributes, for handlers that store them.
    """

    __slots__ = ("_is_on", "_logger", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_on = False
        self._logger = logging.getLogger(f"{__name__}.{name}")

    def __bool__(self) -> bool:
        return self._is_on

    def __call__(self, message: str, **fields: object) -> None:
        """Log ``message`` and the fields, if this tag is on."""
        if self._is_on:
            told = [message, *(f"{key}={value}" for key, value in fields.items())]
            extra = {"tag": self.name, "fields": fields}
            self._logger.info(" ".join(told), extra=extra)

    def switch(self, is_on: bool) -> None:
        """Turn the tag on or off."""
        self._is_on = is_on
        self._logger.setLevel(logging.INFO if is_on else logging.NOTSET)


MODEL = Tag("model")
COMPILATION = Tag("compilation")
EXECUTION = Tag("execution")
CPUEXE = Tag("cpuexe")
MANAGER = Tag("manager")
DRIVER = Tag("driver")
MEMORY = Tag("memory")

TAGS = {
    tag.name: tag
    for tag in (MODEL, COMPILATION, EXECUTION, CPUEXE, MANAGER, DRIVER, MEMORY)
}
"""All tags; their order is that of the bits in the HAL's mask."""


def set_tags(setting: str) -> None:
    """Turn on the tags that ``setting`` names and the others off.

    A tag that does not exist is logged as an error; the others count.
    """
    names = set(filter(None, _SEPARATORS.split(setting)))
    if names & _EVERYTHING:
        names = set(TAGS)
    for name in sorted(names - TAGS.keys()):
        logger.error("there is no tag %r; known: %s", name, ", ".join(TAGS))
    for tag in TAGS.values():
        tag.switch(tag.name in names)


def obey_environment() -> None:
    """Turn on what the environment asks for, and show it on standard error."""
    setting = os.environ.get(VARIABLE, "")
    set_tags(setting)
    if any(TAGS.values()) and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter("asyncnn[%(process)d] %(tag)s: %(message)s")
        )
        handler.addFilter(_is_of_a_tag)
        logger.addHandler(handler)


def _is_of_a_tag(record: logging.LogRecord) -> bool:
    return hasattr(record, "tag")


obey_environment()
