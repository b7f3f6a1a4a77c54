"""The secret that tells the driver's own cache files from all others."""

import hmac
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from asyncnn.devices.state import private_draft, read_private, state_folder
from asyncnn.errors import GeneralFailureError

logger = logging.getLogger(__name__)

_KEY_BYTES = 32
_DIGEST = "sha256"
TAG_BYTES = 32
"""Length of what `CacheKey.tag` returns."""


class CacheKey:
    """The key in the file at ``path``, which is created when it is needed first.

    By default the file lies where programs keep their state. It has to be readable by
    its owner alone. Any thread may call any method.
    """

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        self._given = path
        self._secret: bytes | None = None

    def tag(self, content: bytes | memoryview) -> bytes:
        """Return the tag that nobody without the key can make for ``content``.

        :raises GeneralFailureError: if there is no key and none can be created.
        """
        if self._secret is None:
            self._secret = self._obtain()
        return hmac.digest(self._secret, content, _DIGEST)

    def verifies(self, tag: bytes | memoryview, content: bytes | memoryview) -> bool:
        """Tell whether ``tag`` is that of ``content``, in constant time.

        :raises GeneralFailureError: if there is no key and none can be created.
        """
        return hmac.compare_digest(tag, self.tag(content))

    def _obtain(self) -> bytes:
        try:
            path = Path(self._given) if self._given else default_path()
            with suppress(FileNotFoundError):
                return _read(path)
            _create(path)
            return _read(path)
        except (OSError, RuntimeError) as error:  # there may be no home
            raise GeneralFailureError(
                f"no key for caches: {error}",
                hint="set DeviceSettings.cache_key_file",
            ) from error


def _read(path: Path) -> bytes:
    secret = read_private(path, _KEY_BYTES + 1)
    if len(secret) != _KEY_BYTES:
        raise OSError(f"{path} is not a key of {_KEY_BYTES} bytes")
    return secret


def _create(path: Path) -> None:
    """Create the file with all its bytes, unless somebody else does first."""
    secret = secrets.token_bytes(_KEY_BYTES)
    with private_draft(path, secret) as draft, suppress(FileExistsError):
        os.link(draft, path)
    logger.info("created the key of caches at %s", path)


def default_path() -> Path:
    """Return where the key lies unless it is configured."""
    return state_folder() / "cache-key"
