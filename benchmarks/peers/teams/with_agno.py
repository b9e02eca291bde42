"""Agno's `Team` as its documents show it: a manager that delegates to members, telemetry off."""

from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAILike
from agno.team import Team

from benchmarks.peers.teams.model_server import MEMBERS


def model(url: str, name: str) -> OpenAILike:
    """A model behind OpenAI's chat.completions."""
    return OpenAILike(id=name, base_url=url, api_key="benchmark")


def team(url: str) -> Any:
    """The team."""
    members = [
        Agent(name=name, role="Writes.", model=model(url, "member"), telemetry=False) for name in MEMBERS
    ]
    return Team(
        name="press",
        members=members,
        model=model(url, "manager-agno"),
        instructions="You have your members write.",
        telemetry=False,
    )


async def run(team: Any, text: str) -> str:
    """Do one task."""
    return str((await team.arun(text)).content)
