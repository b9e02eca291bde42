"""A model that only its provider knows to be misspelt: the error suggests the provider's models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman import Agent
from dragoman.providers.anthropic import AnthropicProvider
from dragoman.providers.ollama import OllamaProvider
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.unknown_model import MAX_SUGGESTED, is_unknown_model, read_model_names
from dragoman.wire.provider_errors import find_error, provider_error
from tests.providers.servers import Peer, Received, ok, serving

from .metered_hub import Site, desk, refusal

NAMES = ["claude-opus-5", "gpt-5.1", "gpt-5.1-mini", "secret-model"]
LISTS: dict[str, Any] = {
    "openai": {"object": "list", "data": [{"id": name, "object": "model"} for name in NAMES]},
    "anthropic": {"data": [{"type": "model", "id": name} for name in NAMES], "has_more": False},
    "ollama": {"models": [{"name": name, "model": name, "size": 5} for name in NAMES]},
}
REFUSALS: dict[str, tuple[int, Any]] = {
    "openai": (
        404,
        {
            "error": {
                "message": "The model `gpt-5.1-mnii` does not exist or you do not have access to it.",
                "type": "invalid_request_error",
                "param": None,
                "code": "model_not_found",
            }
        },
    ),
    "anthropic": (
        404,
        {"type": "error", "error": {"type": "not_found_error", "message": "model: gpt-5.1-mnii"}},
    ),
    "ollama": (404, {"error": "model 'gpt-5.1-mnii' not found"}),
}
PATHS = {"openai": "/v1/models", "anthropic": "/v1/models?limit=1000", "ollama": "/api/tags"}
HINT = (
    "did you mean 'up/gpt-5.1-mini'? "
    "The provider's models are up/gpt-5.1-mini, up/gpt-5.1, up/claude-opus-5, up/secret-model"
)


def answer(value: Any, status: int = 200) -> bytes:
    return ok(msgspec.json.encode(value), "content-type: application/json").replace(
        b"200 OK", b"%d Answer" % status, 1
    )


def site(family: str, names: bytes | None = None, **config: Any) -> Site:
    """A server without the model that is asked for; `names` is its answer when it is asked for its models."""

    async def reply(peer: Peer, received: Received) -> None:
        status, body = REFUSALS[family]
        is_list = received.line.startswith("GET ")
        await peer.send((names or answer(LISTS[family])) if is_list else answer(body, status))

    return Site(reply, type=family, **config)


def lists(up: Site) -> list[str]:
    """The requests for a list."""
    return [received.line.split()[1] for received in up.requests if received.line[0] == "G"]


def error_of(response: httpx2.Response) -> Any:
    assert response.status_code == 404, response.text
    return response.json()["error"]


@pytest.mark.parametrize("family", sorted(LISTS))
async def test_every_endpoint_suggests_the_models_of_the_provider(tmp_path: Path, family: str) -> None:
    async with desk(tmp_path, up=site(family), model="up/gpt-5.1-mnii") as at:
        for stream in (False, True):
            for ask in (at.chat, at.message):
                error = error_of(await ask("up/gpt-5.1-mnii", stream=stream))
                assert "gpt-5.1-mnii" in error["message"]
                assert error["message"].endswith(f" ({HINT})")
        frames = await at.run("hi")
        [text] = [frame["errorText"] for frame in frames if frame["type"] == "error"]
        assert text.endswith(f" ({HINT})")
        assert lists(at.sites["up"]) == [PATHS[family]]  # once for all of them


def test_the_library_has_the_models_in_the_hint_of_the_error() -> None:
    families: Mapping[str, Callable[..., RemoteProvider]] = {
        "openai": OpenAIProvider,
        "anthropic": AnthropicProvider,
        "ollama": OllamaProvider,
    }

    async def ask(family: str) -> None:
        up = site(family)
        async with serving(up.script) as server:
            root = "/v1" if family == "openai" else ""
            provider: RemoteProvider = families[family](base_url=f"{server.url}{root}", name="up")
            async with provider:
                result = await Agent(provider.model("gpt-5.1-mnii")).run("hi")
        assert result.error is not None
        assert (result.error.category, result.error.hint) == ("bad_request", HINT)

    for family in families:
        asyncio.run(ask(family))


async def test_a_key_sees_the_names_that_it_may_ask_for_only(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=site("openai"), aliases={"fast": "up/gpt-5.1-mnii"}) as at:
        whole, part, alias = [
            await at.key("ada", models=models) for models in (None, ("up/gpt-*",), ("fast",))
        ]

        shown = [
            error_of(await at.chat(model, key))["message"]
            for model, key in (("up/gpt-5.1-mnii", whole), ("up/gpt-5.1-mnii", part), ("fast", alias))
        ]

        assert [("secret-model" in text, "up/gpt-5.1-mini" in text) for text in shown] == [
            (True, True),
            (False, True),
            (False, False),
        ]


async def test_models_that_the_configuration_leaves_out_are_not_suggested(tmp_path: Path) -> None:
    up = site("openai", models=["gpt-5.1-mnii", "gpt-5.1"], only=True)
    async with desk(tmp_path, up=up) as at:
        assert error_of(await at.chat("up/gpt-5.1-mnii"))["message"].endswith(
            " (did you mean 'up/gpt-5.1'? The provider's models are up/gpt-5.1)"
        )


NOTHING_TO_SUGGEST = [
    refusal(404, "there is no list"),
    refusal(500),
    answer({"data": []}),
    answer({"data": [{"id": 5}, {"id": "a\nb"}, None], "models": "x"}),
    ok(b"{not json"),
    ok(b"[" * 100_000),
    b"garbage\r\n\r\n",
    answer({"data": [{"id": "gpt-5.1-mnii"}]}),  # refused for another reason
]


@pytest.mark.parametrize("names", NOTHING_TO_SUGGEST)
async def test_an_error_stays_as_it_is_if_there_is_nothing_to_suggest(names: bytes) -> None:
    up = site("openai", names)
    async with serving(up.script) as server, OpenAIProvider(base_url=server.url) as provider:
        for _ in range(2):
            result = await Agent(provider.model("gpt-5.1-mnii")).run("hi")
            assert result.error is not None
            assert result.error.message == REFUSALS["openai"][1]["error"]["message"]
            assert result.error.hint is None
    assert len(lists(up)) == 1


async def test_other_errors_do_not_ask_for_the_list() -> None:
    up = Site(
        refusal(400, "this model does not support images"), refusal(401, "model not found"), refusal(500)
    )
    async with serving(up.script) as server, OpenAIProvider(base_url=server.url) as provider:
        for _ in range(3):
            result = await Agent(provider.model("m")).run("hi")
            assert result.error is not None
    assert lists(up) == []


def test_a_hint_names_few_of_many_models() -> None:
    many = {"data": [{"id": f"m-{number}"} for number in range(40)]}
    up = site("openai", answer(many))

    async def ask() -> str:
        async with serving(up.script) as server, OpenAIProvider(base_url=server.url) as provider:
            result = await Agent(provider.model("m-7b")).run("hi")
        assert result.error is not None
        return str(result.error.hint)

    hint = asyncio.run(ask())

    assert hint.startswith("did you mean 'openai/m-7'? ")
    assert hint.count("openai/m-") == 1 + MAX_SUGGESTED
    assert hint.endswith(" and 30 more")


UNKNOWN = [
    (404, {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}}),
    (404, {"object": "error", "message": "The model `x` does not exist.", "code": 404}),
    (400, {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "code": "1500"}),
    (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}),
    (400, {"error": {"message": "x is not a valid model ID", "code": 400}}),
    (404, {"error": {"message": "Not found the model x or Permission denied", "type": "not_found_error"}}),
    (404, {"error": {"message": "Unable to access model x.", "code": "model_not_available"}}),
    (400, {"error": {"message": "/chat/completions: Invalid model name passed in model=x", "code": "400"}}),
    (404, {"error": {"message": "models/x is not found for API version v1main", "status": "NOT_FOUND"}}),
    (404, {"message": "model 'x' not found, make sure the correct model ID was used"}),
    (404, {"error": 'model "x" not found, try pulling it first'}),
    (404, {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}),
]  # fmt: skip
KNOWN = [
    (404, {"detail": "Not Found"}),
    (400, {"error": {"message": "this model does not support tools", "code": "unsupported"}}),
    (400, {"error": {"message": "Unsupported parameter: 'temperature' with this model."}}),
    (400, {"error": {"message": "maximum context length of the model is 10, not available"}}),
    (403, {"error": {"message": "model not found", "code": "model_not_found"}}),
    (503, {"error": {"message": "the model x is not available"}}),
]


@pytest.mark.parametrize(
    ("status", "body", "unknown"), [*((*case, True) for case in UNKNOWN), *((*case, False) for case in KNOWN)]
)
def test_refusals_of_an_unknown_model_are_recognised_whoever_sends_them(
    status: int, body: Any, unknown: bool
) -> None:
    error = provider_error(find_error(body) or body, status=status)

    assert is_unknown_model(error) is unknown


def test_lists_of_models_are_read_in_the_forms_of_all_families() -> None:
    forms = [*LISTS.values(), [{"id": name} for name in NAMES], {"models": NAMES}]

    assert [read_model_names(msgspec.json.encode(form)) for form in forms] == [tuple(NAMES)] * len(forms)


async def test_a_server_that_does_not_answer_for_its_list_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = asyncio.Event()
    connections = 0

    async def script(peer: Peer) -> None:
        await peer.head()
        received.set()
        await peer.gone()

    async with serving(script) as server:
        for seconds in (0.1, 1, 10):  # until the server is reached in that time, also by a busy machine
            monkeypatch.setattr("dragoman.providers.remote.LIST_SECONDS", seconds)
            async with OpenAIProvider(base_url=server.url) as provider:
                assert await provider.list_models() == ()
                if received.is_set():
                    connections = server.connections
                    await server.wait_closed(connections)
                    assert await provider.list_models() == ()
                    break
        assert received.is_set()
        assert server.connections == connections
