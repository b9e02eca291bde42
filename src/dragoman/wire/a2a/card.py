"""Agent cards: what an agent of the hub is, and where it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.wire.a2a.client_request import VERSION

TEXT = "text/plain"
INPUT_MODES = (TEXT, "application/json", "image/*", "application/pdf")


class CardSubject(msgspec.Struct, frozen=True, kw_only=True):
    """An agent: its name, its description, its address, and the namespaces of its operations."""

    name: str
    description: str
    url: str
    version: str
    namespaces: Sequence[str] = ()
    requires_key: bool = True


def agent_card(agent: CardSubject) -> dict[str, Any]:
    """Return the card as JSON."""
    skills = [skill(agent.name, agent.description, tags=("chat",))]
    skills += [
        skill(name, f"Uses the operations in {name}.", tags=("operations",)) for name in agent.namespaces
    ]
    card: dict[str, Any] = {
        "name": agent.name,
        "description": agent.description,
        "version": agent.version,
        "supportedInterfaces": [
            {"url": agent.url, "protocolBinding": binding, "protocolVersion": VERSION}
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": True},
        "defaultInputModes": INPUT_MODES,
        "defaultOutputModes": [TEXT, "application/json"],
        "skills": skills,
    }
    if agent.requires_key:
        card["securitySchemes"] = {"key": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
        card["securityRequirements"] = [{"schemes": {"key": {"list": []}}}]
    return card


def skill(name: str, description: str, *, tags: Sequence[str]) -> dict[str, Any]:
    """Return one skill of a card."""
    return {"id": name, "name": name, "description": description, "tags": tags}
