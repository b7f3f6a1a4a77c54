"""The OpenAPI document says what the calls take and answer, whatever is sent."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from asyncnn.oip import Address, Repository, rest_served
from asyncnn.oip.openapi import openapi_document
from asyncnn.oip.rest import CALLS

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]


def judged(url: str) -> int:
    """Send what the document allows, and what it does not; count the requests."""
    schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    sent = 0
    for operation in (found.ok() for found in schema.get_all_operations()):

        @given(case=operation.as_strategy())
        @settings(
            max_examples=4,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def test(case: Any) -> None:
            nonlocal sent
            if sent % 2 and "model_name" in case.path_parameters:
                case.path_parameters["model_name"] = "sum"
            sent += 1
            case.call_and_validate(base_url=url, checks=CHECKS)

        test()
    return sent


@pytest.mark.exhaustive
async def test_answers_are_as_the_document_says(repository: Repository) -> None:
    async with rest_served(repository, Address.of(":0")) as address:
        assert await asyncio.to_thread(judged, f"http://{address}") > len(CALLS)


def test_a_document_asks_for_tokens_where_the_server_does() -> None:
    assert "security" not in openapi_document()
    assert openapi_document(has_tokens=True)["security"] == [{"token": []}]
