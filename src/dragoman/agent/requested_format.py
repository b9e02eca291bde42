"""The format in which a client wants an answer, as the output of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from dragoman.agent.structured_output import SCHEMA_METADATA, Output
from dragoman.errors import BadRequest, ConfigError
from dragoman.operations.arguments.validation import make_bounded_parser

SCHEMA_LIMIT = 120_000  # characters, as OpenAI has it
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
FIELD = "text.format.schema"


class RequestedOutput(Output[Any]):
    """The output for a JSON Schema of a client: what would cost too much is not checked."""

    hint: ClassVar[str | None] = None

    def _read_type(self, type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        schema = {word: item for word, item in type.items() if word not in SCHEMA_METADATA}
        return schema, make_bounded_parser(type)


@lru_cache(maxsize=64)
def requested_output(format: str) -> Output[Any]:
    """Return the output for a `response_format` of `json_object` or `json_schema`, as JSON.

    It is compiled the first time. Raises BadRequest for a schema that is not valid, or too long.
    """
    if len(format) > SCHEMA_LIMIT:
        raise BadRequest(f"the format of the answer has more than {SCHEMA_LIMIT} characters", field=FIELD)
    details = msgspec.json.decode(format).get("json_schema") or {}
    try:
        output = RequestedOutput(details.get("schema", ANY_OBJECT), description=details.get("description"))
    except ConfigError as error:
        raise BadRequest(error.message, field=FIELD) from None
    output.type = "the schema of the request" if details else "a JSON object"
    return output
