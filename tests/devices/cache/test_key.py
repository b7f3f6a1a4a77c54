"""The key of a driver is its own, made once, and nobody else's."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncnn.devices.cache_format import CacheKey, default_key_path
from asyncnn.hal.errors import GeneralFailureError


def test_the_key_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    tag = CacheKey(path).tag(b"content")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["key"]
    assert CacheKey(path).verifies(tag, b"content")
    assert not CacheKey(path).verifies(tag, b"other")


def test_nothing_is_created_before_it_is_needed(tmp_path: Path) -> None:
    CacheKey(tmp_path / "key")
    assert not list(tmp_path.iterdir())


def test_another_key_makes_other_tags(tmp_path: Path) -> None:
    tag = CacheKey(tmp_path / "one").tag(b"content")
    assert not CacheKey(tmp_path / "two").verifies(tag, b"content")


def test_those_who_create_it_at_once_share_it(tmp_path: Path) -> None:
    keys = [CacheKey(tmp_path / "key") for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        tags = list(pool.map(lambda key: key.tag(b"content"), keys))
    assert len(set(tags)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_use_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    CacheKey(path).tag(b"")
    path.chmod(mode)
    with pytest.raises(GeneralFailureError, match="others"):
        CacheKey(path).tag(b"")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_not_used(tmp_path: Path, length: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(os.urandom(length))
    path.chmod(0o600)
    with pytest.raises(GeneralFailureError, match="32 bytes"):
        CacheKey(path).tag(b"")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    CacheKey(tmp_path / "key").tag(b"")
    (tmp_path / "link").symlink_to(tmp_path / "key")
    with pytest.raises(GeneralFailureError):
        CacheKey(tmp_path / "link").tag(b"")


def test_without_a_place_for_it_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GeneralFailureError, match="cache_key_file"):
        CacheKey(tmp_path / "file" / "key").tag(b"")


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(GeneralFailureError, match="home"):
        CacheKey().tag(b"")


def test_it_lies_with_the_state_of_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_key_path() == tmp_path / "asyncnn" / "cache-key"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_key_path() == tmp_path / ".local" / "state" / "asyncnn" / "cache-key"
