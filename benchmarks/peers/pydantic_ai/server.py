"""Pydantic AI behind useChat, as its documentation serves it: server.py --upstream URL --model NAME."""

import argparse
import socket
from datetime import UTC, datetime
from typing import Any

import uvicorn
from pydantic import BaseModel
from pydantic_ai import Agent  # type: ignore[import-not-found]  # it lives in this peer's own environment
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]  # as above
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]  # as above
from pydantic_ai.ui.vercel_ai import VercelAIAdapter  # type: ignore[import-not-found]  # as above
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Call(BaseModel):
    """One call of a batch, as the upstream's tool steps ask for it."""

    tool: str
    input: dict[str, Any]


def hub_call(calls: list[Call]) -> list[dict[str, str]]:
    """Call operations."""
    return [{"tool": call.tool, "output": datetime.now(UTC).isoformat()} for call in calls]


def build_app(upstream: str, model: str) -> Starlette:
    """An app with one agent behind POST /api/chat."""
    provider = OpenAIProvider(base_url=upstream, api_key="benchmark")
    agent = Agent(OpenAIChatModel(model, provider=provider), tools=[hub_call])

    async def chat(request: Request) -> Response:
        response: Response = await VercelAIAdapter.dispatch_request(request, agent=agent, sdk_version=6)
        return response

    return Starlette(routes=[Route("/api/chat", chat, methods=["POST"])])


def main() -> None:
    """Serve on a free port until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        build_app(options.upstream, options.model), loop="uvloop", http="httptools", log_level="warning"
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
