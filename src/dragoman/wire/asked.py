"""Asked: what a gateway client wants of a model, and how it wants to be answered."""

from __future__ import annotations

import msgspec

from dragoman.request import ModelRequest


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway client's request, read.

    `request.model` is the name as the client gave it. `include_usage`: an OpenAI client asked for the usage
    chunk of a stream. `ignored` names the fields of the body that have no neutral word and are left out.
    """

    request: ModelRequest
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
