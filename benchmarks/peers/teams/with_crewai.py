"""CrewAI's hierarchical crew as its documents show it: a manager that delegates to members, telemetry off."""

import logging
from typing import Any

from crewai import LLM, Agent, Crew, Process, Task

from benchmarks.peers.teams.model_server import MEMBERS

logging.disable(logging.WARNING)


def llm(url: str, name: str) -> LLM:
    """A model behind OpenAI's chat.completions."""
    return LLM(model=f"openai/{name}", base_url=url, api_key="benchmark")


def team(url: str) -> Any:
    """The members and the manager; a crew is made for each task, as its documents do."""
    members = [
        Agent(role=name, goal="Write.", backstory="A writer.", llm=llm(url, "member")) for name in MEMBERS
    ]
    manager = Agent(
        role="manager",
        goal="Have the members write.",
        backstory="A manager.",
        llm=llm(url, "manager-crewai"),
        allow_delegation=True,
    )
    return members, manager


async def run(team: Any, text: str) -> str:
    """Do one task."""
    members, manager = team
    task = Task(description=text, expected_output="One sentence.")
    crew = Crew(
        agents=members, tasks=[task], process=Process.hierarchical, manager_agent=manager, verbose=False
    )
    return str((await crew.kickoff_async()).raw)
