"""The OpenAPI document: the hand-written paths, and the schemas of events and parts from the vocabulary."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
import yaml

from dragoman import events, messages
from dragoman.server.http.query_parameters import to_camel_case
from dragoman.version import version

Document: TypeAlias = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"
SNAKE_CASE = re.compile(r"(?<=`)[a-z]+(?:_[a-z]+)+(?=`)")
NULL = {"type": "null"}

# Fields of events inside the process; the UI dialect never sends them.
INTERNAL_FIELDS = {
    "FinishStep": {"finishReason", "usage", "model", "provider", "duration"},
    "ErrorEvent": {"code", "transient"},
    "Finish": {"usage", "cost", "steps"},
}
UNSENT_TYPES = ("Usage", "ModelUsage")  # of these fields
DESCRIPTIONS = {
    "FinishStep": "The model call and its tool calls are done.",
    "ErrorEvent": "The run failed.",
    "Finish": "The run is over.",
}
FINISH_REASONS = ["stop", "length", "content-filter", "tool-calls", "error", "other"]
VOCABULARY_TYPES = (events.FixedEvent, events.Data, messages.FixedPart, messages.ToolPart, messages.DataPart)


def build_document() -> Document:
    """Build the whole document. Reads a file, so call it once and not in the event loop."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("dragoman.server.reference").joinpath("openapi.yaml").read_text(encoding="utf-8")
    document: Document = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are safe ones
    document["info"]["version"] = version()
    document["paths"] = dict(expand_aliases(document["paths"]))
    document["components"]["schemas"] |= vocabulary_schemas()
    return document


def expand_aliases(paths: Mapping[str, Document]) -> Iterable[tuple[str, Document]]:
    """Yield each path, and after it each alias as a path."""
    for path, item in paths.items():
        main = {key: value for key, value in item.items() if key != "x-aliases"}
        yield path, main
        for number, alias in enumerate(item.get("x-aliases", ()), start=2):
            yield (
                alias,
                {
                    key: alias_operation(value, path, alias=alias, number=number)
                    for key, value in main.items()
                },
            )


def alias_operation(operation: Document, path: str, *, alias: str, number: int) -> Document:
    """Return the operation of a path for an alias, which may have further parameters."""
    further = [step.strip("{}") for step in alias.split("/") if step.startswith("{") and step not in path]
    added = [{"$ref": f"#/components/parameters/{name}"} for name in further]
    return {
        **operation,
        "operationId": f"{operation['operationId']}{number}",
        "description": f"The same as `{path}`.",
        "parameters": [*operation.get("parameters", ()), *added],
        "x-same-as": path,
    }


def vocabulary_schemas() -> Document:
    """Return the schemas of events and message parts as clients see them."""
    shapes, schemas = msgspec.json.schema_components(VOCABULARY_TYPES, ref_template=REFERENCE)
    event, data, *parts = shapes
    found = {name: wire_schema(name, each) for name, each in schemas.items() if name not in UNSENT_TYPES}
    found["Data"]["properties"]["type"]["pattern"] = "^data-"
    found["DataPart"]["properties"]["type"]["pattern"] = "^data-"
    found["Finish"]["properties"]["finishReason"]["enum"] = FINISH_REASONS
    return {
        **found,
        "Part": {"description": "A piece of a message.", "anyOf": alternatives(*parts)},
        "StreamEvent": {
            "description": "One thing that happens in a run, as the dialect `ui` spells it.",
            "anyOf": alternatives(event, data),
        },
    }


def alternatives(*schemas: Document) -> list[Document]:
    """Return schemas with each union replaced by its members."""
    return [each for schema in schemas for each in schema.get("anyOf", [schema])]


def wire_schema(name: str, schema: Document) -> Document:
    """Return the schema as sent: unknown fields are left out, never null."""
    unsaid = INTERNAL_FIELDS.get(name, set())
    fields = {key: without_null(rules) for key, rules in schema["properties"].items() if key not in unsaid}
    summary = inspect.cleandoc(schema["description"]).split("\n\n")[0]
    description = SNAKE_CASE.sub(lambda match: to_camel_case(match[0]), summary)
    return {
        **schema,
        "description": DESCRIPTIONS.get(name) or description,
        "properties": fields,
    }


def without_null(rules: Document) -> Document:
    """Return a field's schema without the null that means unknown."""
    schema = {key: value for key, value in rules.items() if key != "default"}
    options = [each for each in schema.get("anyOf", ()) if each != NULL]
    return options[0] if len(options) == 1 else schema
