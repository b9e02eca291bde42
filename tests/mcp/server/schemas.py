"""The schemas and prompts of the conformance suite's fixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.mcp.server.contents import IMAGE, resource, text

NAME = "json_schema_2020_12_tool"
STRING = {"type": "string"}
TITLED = [
    {"const": f"value{n}", "title": f"{name} Option"}
    for n, name in enumerate(("First", "Second", "Third"), 1)
]
SCHEMA_2020_12: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": STRING, "city": STRING},
        }
    },
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
TAKES: Mapping[str, Mapping[str, Any]] = {
    "test_sampling": {"prompt": STRING},
    "test_elicitation": {"message": STRING},
    "test_custom_headers": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "query": STRING,
    },
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "test_elicitation": {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    },
    "test_elicitation_sep1034_defaults": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    },
    "test_elicitation_sep1330_enums": {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
            "titledSingle": {"type": "string", "oneOf": TITLED},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
            },
            "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
        },
    },
}
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


def of(name: str) -> dict[str, Any]:
    """The input schema of a tool."""
    return {"type": "object", "properties": TAKES.get(name, {})}


def prompt(name: str, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a prompt says."""
    match name:
        case "test_prompt_with_arguments":
            reply = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
            return [text(reply)]
        case "test_prompt_with_embedded_resource":
            pending = "Embedded resource content for testing."
            request = text("Please process the embedded resource above.")
            return [resource(arguments["resourceUri"], "text/plain", reply=pending), request]
        case "test_prompt_with_image":
            return [IMAGE, text("Please analyze the image above.")]
        case _:
            return [text("This is a simple prompt for testing.")]
