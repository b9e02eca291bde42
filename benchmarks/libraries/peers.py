"""The libraries that are measured, each with the interpreter that has it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.build import HERE, Absent, install, is_newer

PEERS = HERE / "peers" / "agents"
PEER_PYTHON = PEERS / ".venv" / "bin" / "python"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library. `module` speaks it to the worker, `imports` is what a small program would import."""

    name: str
    module: str
    python: Path
    imports: str
    by_hand: bool = False  # the loop without a library: asked over HTTP only


def libraries(python: Path | None) -> Sequence[Library]:
    """Ours first, then the peers, in this environment or else in their own."""
    theirs = python or PEER_PYTHON

    def peer(name: str, module: str, imports: str, *, by_hand: bool = False) -> Library:
        return Library(
            name=name,
            module=f"benchmarks.peers.agents.{module}",
            python=theirs,
            imports=imports,
            by_hand=by_hand,
        )

    own = Library(
        name="Dragoman",
        module="benchmarks.libraries.with_dragoman",
        python=Path(sys.executable),
        imports="from dragoman import Agent, OpenAIProvider, operation",
    )
    return [
        own,
        peer(
            f"Pydantic AI {version_of('pydantic-ai-slim[openai]')}",
            "with_pydantic_ai",
            "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel",
        ),
        peer(
            f"OpenAI Agents {version_of('openai-agents')}",
            "with_openai_agents",
            "from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool",
        ),
        peer(
            f"LangGraph {version_of('langgraph')}",
            "with_langgraph",
            "from langchain.agents import create_agent; from langchain_openai import ChatOpenAI",
        ),
        peer(
            f"Agno {version_of('agno')}",
            "with_agno",
            "from agno.agent import Agent; from agno.models.openai import OpenAILike",
        ),
        peer(
            f"by hand, openai {version_of('openai')}",
            "with_openai_client",
            "from openai import AsyncOpenAI",
            by_hand=True,
        ),
    ]


def install_peers() -> None:
    """Install the peers into an environment of their own; `Absent`, with the way to do it by hand."""
    lock, done = PEERS / "requirements.txt", PEERS / ".venv" / "installed"
    if is_newer(done, [lock]):
        return
    try:
        install([sys.executable, "-m", "venv", "--clear", str(PEERS / ".venv")], cwd=PEERS)
        pip = [str(PEER_PYTHON), "-m", "pip", "install", "-q"]
        install([*pip, "--require-hashes", "-r", str(lock)], cwd=PEERS)
    except Absent as reason:
        by_hand = "python -m venv DIR; DIR/bin/pip install -r benchmarks/peers/agents/requirements.txt"
        raise Absent(f"{reason}; by hand: {by_hand}, then --peers DIR/bin/python") from reason
    done.touch()


def version_of(package: str) -> str:
    """The version of a peer, as what is asked for has it."""
    return f"\n{(PEERS / 'requirements.in').read_text()}".split(f"\n{package}==", 1)[1].split("\n", 1)[0]
