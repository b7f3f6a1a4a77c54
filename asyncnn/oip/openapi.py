"""The OpenAPI document of the protocol's calls by HTTP, made of their table."""

import re
from typing import Any

import msgspec

import asyncnn
from asyncnn.oip.json_tensors import HEADER_LENGTH
from asyncnn.oip.rest import CALLS, Call

_PARAMETER = re.compile(r"{(\w+)}")
_ERRORS = {
    "400": "the request breaks a rule",
    "401": "it brings no token that is known",
    "404": "there is no such model, version or region",
    "408": "it has not come in time",
    "413": "it has too many bytes",
    "429": "too much is under way, or memory has run out",
    "500": "computing failed",
    "503": "the model or its device is not ready",
    "504": "the deadline passed",
    "507": "it needs more than the device will ever have",
}


class ErrorAnswer(msgspec.Struct, omit_defaults=True):
    """What was wrong, in words and, if that came of it, as a status of the HAL."""

    error: str
    status: str = ""


def openapi_document(*, has_tokens: bool = False) -> dict[str, Any]:
    """Return the document, of OpenAPI 3.1."""
    kinds = {kind for call in CALLS for kind in (call.takes, call.gives)} - {None}
    schemas, components = msgspec.json.schema_components(
        [ErrorAnswer, *kinds], ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip([ErrorAnswer, *kinds], schemas, strict=True))
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, by_kind)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "asyncnn", "version": asyncnn.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_tokens:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"token": scheme}
        document["security"] = [{"token": []}]
    return document


def _operation(call: Call, schemas: dict[Any, Any]) -> dict[str, Any]:
    summary = (call.answer.__doc__ or call.path).partition("\n")[0]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(call.path)
    ]
    answers = {"200": _content("the answer", schemas[call.gives])}
    for code, meaning in _ERRORS.items():
        answers[code] = _content(meaning, schemas[ErrorAnswer])
    if call.path.endswith("/ready"):
        answers["503"] = _content("it is not ready", schemas[call.gives])
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if call.takes is not None:
        body = {"application/json": {"schema": schemas[call.takes]}}
        is_needed = call.path.endswith("/infer")
        operation["requestBody"] = {"content": body, "required": is_needed}
        if is_needed:
            length = {"type": "integer", "minimum": 0}
            header = {"name": HEADER_LENGTH, "in": "header", "schema": length}
            parameters.append(header)
            # A schema cannot say which bytes follow the text.
            answers["200"]["content"]["application/octet-stream"] = {}
            body["application/octet-stream"] = {}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _content(description: str, schema: object) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"description": description, "content": content}
