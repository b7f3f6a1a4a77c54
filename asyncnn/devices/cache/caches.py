"""The caching of one device."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import (
    CacheFiles,
    opened_for_loading,
    opened_for_saving,
)
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.loading import load
from asyncnn.devices.cache.saving import save
from asyncnn.engine import Program
from asyncnn.errors import AsyncnnError
from asyncnn.extensions import NO_EXTENSIONS, Extensions
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority

logger = logging.getLogger(__name__)

Prepare = Callable[[], Compiled]
"""Prepares a model; it takes a while. Raises an `AsyncnnError` if it cannot."""


class ModelCaches:
    """Turns the calls that prepare models into what is to be done for them.

    ``key_file`` is where the key lies, see `CacheKey`. With ``may_map``, files of
    this user are mapped.
    """

    def __init__(
        self,
        key_file: str,
        *,
        may_map: bool,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        self._key = CacheKey(key_file)
        self._may_map = may_map
        self._extensions = extensions

    def preparation(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
    ) -> Prepare:
        """Return what prepares a validated model, and saves it if that is possible."""
        try:
            files = opened_for_saving(model_cache, data_cache, token)
        except AsyncnnError as error:
            logger.warning("a model is not cached: %s", error)
            files = None
        return partial(self._prepare, model, preference, priority, files)

    def loading(
        self, model_cache: Sequence[Handle], data_cache: Sequence[Handle], token: bytes
    ) -> Prepare:
        """Return what prepares a model from its cache.

        :raises InvalidArgumentError: if the files are not what `asyncnn` needs.
        :raises GeneralFailureError: if one cannot be read.
        """
        files = opened_for_loading(model_cache, data_cache, token)
        return partial(load, files, self._key, self._extensions, may_map=self._may_map)

    def _prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        files: CacheFiles | None,
    ) -> Compiled:
        program = Program(model, extensions=self._extensions)
        compiled = Compiled(program, preference, priority)
        if files is not None:
            try:
                save(compiled, files, self._key)
            except AsyncnnError as error:
                logger.warning("a model is not cached: %s", error)
        return compiled
