"""What is recorded beside the figures."""

import msgspec
import numpy as np
import pytest

from asyncnn.tools.bench.environment import Environment, describe_environment


def test_the_description_names_libraries_and_peers() -> None:
    environment = describe_environment(litert="9.8.7")
    text = str(environment)
    for part in (
        environment.cpu,
        np.__version__,
        environment.blas.name,
        "litert 9.8.7",
    ):
        assert part in text


def test_the_description_survives_json() -> None:
    environment = describe_environment(peer="1")
    data = msgspec.json.encode(environment)
    assert msgspec.json.decode(data, type=Environment) == environment


def test_a_core_type_forced_upon_blas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert "OPENBLAS_CORETYPE=Haswell" in str(describe_environment())
