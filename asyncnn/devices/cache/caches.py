"""The caching of one device."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from asyncnn.collector import building_large
from asyncnn.cooperative import Steps
from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import (
    CacheFiles,
    opened_for_loading,
    opened_for_saving,
)
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.loading import loading
from asyncnn.devices.cache.saving import saving
from asyncnn.engine import Program
from asyncnn.engine.program import is_large
from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.extensions import NO_EXTENSIONS, Extensions
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority

logger = logging.getLogger(__name__)

Prepare = Callable[[], Steps[Compiled]]
"""Prepares a model, in steps that raise an `AsyncnnError` if they cannot."""


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
        return partial(
            loading, files, self._key, self._extensions, may_map=self._may_map
        )

    def saving(
        self,
        compiled: Compiled,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
    ) -> Steps[None]:
        """Save a model that was prepared before, in steps.

        :raises InvalidArgumentError: if the files are not what `asyncnn` needs.
        :raises GeneralFailureError: if it is not saved.
        """
        files = opened_for_saving(model_cache, data_cache, token)
        if files is None:
            raise InvalidArgumentError("there are no files to save the model in")
        yield from saving(compiled, files, self._key)

    def _prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        files: CacheFiles | None,
    ) -> Steps[Compiled]:
        with building_large() if is_large(model) else nullcontext():
            return (yield from self._compile(model, preference, priority, files))

    def _compile(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        files: CacheFiles | None,
    ) -> Steps[Compiled]:
        program = yield from Program.compiling(model, extensions=self._extensions)
        compiled = Compiled(program, preference, priority)
        if files is not None:
            try:
                yield from saving(compiled, files, self._key)
            except AsyncnnError as error:
                logger.warning("a model is not cached: %s", error)
        return compiled
