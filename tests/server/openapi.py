"""The OpenAPI document, and a check of answers against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import jsonschema_rs

from dragoman.server.reference.openapi import build_document
from tests.serving import Served

DOCUMENT = build_document()
JSON = "application/json"


_validators: dict[int, tuple[Mapping[str, Any], Any]] = {}


def resolve(reference: str) -> Any:
    """What a reference within the document points to."""
    found: Any = DOCUMENT
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def validator(schema: Mapping[str, Any]) -> Any:
    """A schema of the document, with the others beside it to refer to; compiled once."""
    if id(schema) not in _validators:
        compiled = jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
        _validators[id(schema)] = (schema, compiled)  # kept as well: no other gets its id
    return _validators[id(schema)][1]


def fields(name: str) -> set[str]:
    """The fields of a shape of the document, with those of the shapes that it is made of."""
    found = DOCUMENT["components"]["schemas"][name]
    replies = set(found.get("properties", ()))
    for member in found.get("allOf", ()):
        replies |= (
            fields(member["$ref"].rpartition("/")[2]) if "$ref" in member else set(member["properties"])
        )
    return replies


def operation(verb: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path][verb]
    return found


async def check(served: Served, verb: str, path: str, **request: Any) -> Any:
    """Ask the hub, and hold its answer to what the document says of it; the body."""
    where = path.replace("{id}", request.pop("id", "s")).replace("{same}", "s")
    where = where.replace("{name}", request.pop("name", "s")).replace("{queued}", request.pop("queued", "q"))
    response = await served.http.request(verb.upper(), where, **request)
    return read(response, operation(verb, path))


async def refused(served: Served, verb: str, path: str, **request: Any) -> int:
    """Ask the hub for what it must refuse, as the document says; the status."""
    where = path.replace("{id}", request.pop("id", "s")).replace("{name}", request.pop("name", "s"))
    response = await served.http.request(verb.upper(), where, **request)
    body = read(response, operation(verb, path))
    assert body is None or body["error"]["message"]
    return response.status_code


def read(response: httpx2.Response, reply: Mapping[str, Any]) -> Any:
    """The body of an answer, which is as an operation of the document says."""
    assert str(response.status_code) in reply["responses"], response.text
    expected = reply["responses"][str(response.status_code)]
    expected = resolve(expected["$ref"]) if "$ref" in expected else expected
    if "content" not in expected:
        assert response.content == b""
        return None
    kind = response.headers["content-type"].split(";")[0]
    if kind != JSON or JSON not in expected["content"]:
        assert {kind, "*/*"} & set(expected["content"])
        return response.text
    validator(expected["content"][kind]["schema"]).validate(response.json())
    return response.json()
