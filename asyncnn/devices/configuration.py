"""Device settings from a TOML file and from options like ``max_pending=512``.

A file has the names of `DeviceSettings` as keys, those of its policy in a table, and
extensions by the names that they are found by::

    max_pending = 512
    extensions = ["package.module:attribute"]

    [policy]
    patience_ns = 20_000_000
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import fields, replace

from asyncnn.devices.settings import DeviceSettings
from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions import load_extension
from asyncnn.qos import Policy

SettingsT = TypeVar("SettingsT", DeviceSettings, Policy)

_EXTENSIONS = "extensions"
_POLICY = "policy"


def read_settings(
    path: str | os.PathLike[str], base: DeviceSettings | None = None
) -> DeviceSettings:
    """Return ``base``, by default the usual settings, changed by a TOML file.

    :raises InvalidArgumentError: if the file cannot be read or is not TOML, has a key
        that is no setting, or a value that it cannot have.
    """
    where = os.fspath(path)
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{where}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{where} is not TOML: {error}") from error
    return _changed(base or DeviceSettings(), table, f"{where}: ", is_text=False)


def with_options(base: DeviceSettings, options: Iterable[str]) -> DeviceSettings:
    """Return ``base`` changed by options like ``name=value`` or ``policy.name=value``.

    :raises InvalidArgumentError: if one has another form, names no setting, or has a
        value that this cannot have.
    """
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidArgumentError(
                f"{option!r} is no setting", hint="write it as NAME=VALUE"
            )
        table: dict[str, Any] = {name.strip(): value.strip()}
        scope, dot, name = name.strip().partition(".")
        if dot:
            table = {scope: {name: value.strip()}}
        base = _changed(base, table, "", is_text=True)
    return base


def options_for(settings: DeviceSettings) -> list[str]:
    """Return the options that make usual settings the same as ``settings``.

    :raises InvalidArgumentError: if it has extensions, which have to be named.
    """
    if settings.extensions:
        raise InvalidArgumentError(
            "settings for another process cannot hold extensions",
            hint="name them instead: extensions=['package.module:attribute']",
        )
    plain = replace(settings, policy=Policy())
    return [
        *_differences(plain, DeviceSettings(), ""),
        *_differences(settings.policy, Policy(), f"{_POLICY}."),
    ]


def _changed(
    base: DeviceSettings, table: Mapping[str, Any], where: str, *, is_text: bool
) -> DeviceSettings:
    table = dict(table)
    special: dict[str, Callable[[Any], object]] = {
        _POLICY: lambda value: _policy(base.policy, value, where, is_text=is_text),
        _EXTENSIONS: lambda value: _extensions(value, where),
    }
    known: dict[str, object] = {
        name: make(table.pop(name)) for name, make in special.items() if name in table
    }
    return _with_values(replace(base, **known), table, where, is_text=is_text)


def _policy(base: Policy, value: object, where: str, *, is_text: bool) -> Policy:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"{where}policy is not a table", hint="its settings are policy.patience_ns"
        )
    return _with_values(base, value, f"{where}policy.", is_text=is_text)


def _extensions(value: object, where: str) -> tuple[object, ...]:
    try:
        names = msgspec.convert(value, list[str])
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"{where}extensions: {error}") from error
    return tuple(load_extension(name) for name in names)


def _with_values(
    base: SettingsT, table: Mapping[str, Any], where: str, *, is_text: bool
) -> SettingsT:
    types = {field.name: field.type for field in fields(base)}
    values: dict[str, object] = {}
    for name, value in table.items():
        if name not in types:
            close = get_close_matches(name, types, n=2)
            raise InvalidArgumentError(
                f"{where}there is no setting {name!r}",
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"known: {', '.join(types)}",
            )
        try:
            values[name] = msgspec.convert(value, types[name], strict=not is_text)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"{where}{name}: {error}") from error
    try:
        return replace(base, **values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}{error.message}") from error


def _differences(settings: SettingsT, usual: SettingsT, prefix: str) -> list[str]:
    options: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(usual, field.name):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            options.append(f"{prefix}{field.name}={text}")
    return options
