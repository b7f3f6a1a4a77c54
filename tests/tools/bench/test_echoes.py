"""Ways to exchange bytes with another process."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from asyncnn.tools.bench.echoes import (
    Exchange,
    grpc_echo,
    grpc_version,
    pipe_echo,
    streams_echo,
)
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.rounds import Call
from tests.tools.bench.calling import CPU, answer

Peer = Callable[[int, Any], AbstractAsyncContextManager[Call]]


@pytest.mark.parametrize("peer", [pipe_echo, streams_echo, grpc_echo])
async def test_an_echo_has_the_size_it_should(peer: Peer) -> None:
    if peer is grpc_echo:
        pytest.importorskip("grpc")
    async with peer(CPU, Exchange(300, 70)) as call:
        assert [len(await answer(call)) for _ in range(3)] == [70] * 3


async def test_without_grpcio_the_peer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with pytest.raises(PeerMissingError, match="grpcio") as info:
        async with grpc_echo(CPU, Exchange(1, 1)):
            pass
    assert "asyncnn[bench]" in str(info.value)
    with pytest.raises(PeerMissingError):
        grpc_version()
