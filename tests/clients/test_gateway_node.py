"""The official Node SDKs read the same through the gateway as from the model server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import Message
from msgspec.structs import replace
from openai.types.chat import ChatCompletion

from tests.clients.driver import player
from tests.gateway.recordings import (
    ANTHROPIC,
    ANTHROPIC_BROKEN,
    OLLAMA,
    OPENAI,
    OPENAI_BROKEN,
    Said,
    decoded,
    known_ids,
    said_by_anthropic,
    said_by_openai,
)
from tests.gateway.test_anthropic_sdk import WHOLE as MESSAGE
from tests.gateway.test_openai_sdk import WHOLE as COMPLETION
from tests.gateway.upstream import LINES, Answer, Stage, document, staged
from tests.providers.servers import LIMIT

Case = dict[str, Any]
FAMILIES = {"openai": "oai", "anthropic": "ant"}
ANSWERS: dict[str, Answer] = {
    **{f"oai {name}": Answer(body=raw, seed=4) for name, raw in OPENAI.items()},
    **{f"ant {name}": Answer(body=raw, seed=4) for name, raw in ANTHROPIC.items()},
    **{f"ant {name}": Answer(body=raw) for name, (raw, _, _) in ANTHROPIC_BROKEN.items()},
    **{f"oll {name}": Answer(body=raw, headers=LINES, seed=4) for name, raw in OLLAMA.items()},
    "oai whole": document(COMPLETION),
    "ant whole": document(MESSAGE),
    "oai refused": document({"error": {"message": "No", "type": "t", "param": "p", "code": "c"}}, 422),
    "ant refused": document(
        {"type": "error", "error": {"type": "overloaded_error", "message": "No"}, "request_id": "r"}, 529
    ),
    "oai held": Answer(body=OPENAI["openai_text"][:700], framing="held"),
    "ant held": Answer(body=ANTHROPIC["text"][:700], framing="held"),
}
GOOD = {
    "openai": ["openai_text", "openai_calls", "openai_refusal", "openai_two_choices", "deepseek", "logprobs"],
    "anthropic": ["text", "thinking", "calls", "search", "refusal", "stop_sequence", "unknown"],
}
SAME: list[Case] = [
    *(
        {
            "sdk": sdk,
            "how": how,
            "model": f"{FAMILIES[sdk]} {name}",
            "stream_options": {"include_usage": True},
        }
        for sdk, names in GOOD.items()
        for name in names
        for how in ("fold", "each")
    ),
    *({"sdk": sdk, "how": "plain", "model": f"{place} whole"} for sdk, place in FAMILIES.items()),
    *(
        {"sdk": sdk, "how": how, "model": f"{place} refused"}
        for sdk, place in FAMILIES.items()
        for how in ("plain", "each")
    ),
    {"sdk": "openai", "how": "each", "model": "oai groq_error"},
    {"sdk": "openai", "how": "fold", "model": "oai openai_error"},
]
BROKEN: list[Case] = [
    *({"sdk": "openai", "how": "each", "model": f"oai {name}"} for name in OPENAI_BROKEN),
    *({"sdk": "anthropic", "how": "each", "model": f"ant {name}"} for name in ANTHROPIC_BROKEN),
]
ACROSS: list[Case] = [
    *(
        {"sdk": "openai", "how": how, "model": f"ant {name}"}
        for name in ("text", "thinking", "calls")
        for how in ("fold", "plain")
    ),
    *(
        {"sdk": "openai", "how": how, "model": f"oll {name}"}
        for name in ("text", "calls")
        for how in ("fold", "plain")
    ),
    *(
        {"sdk": "anthropic", "how": how, "model": f"oai {name}"}
        for name in ("openai_text", "openai_calls", "deepseek")
        for how in ("fold", "plain")
    ),
    *(
        {"sdk": "anthropic", "how": how, "model": f"oll {name}"}
        for name in ("text", "calls")
        for how in ("fold", "plain")
    ),
]
LEFT: list[Case] = [{"sdk": sdk, "how": "abort", "model": f"{place} held"} for sdk, place in FAMILIES.items()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as played:
        played.upstream.by_model = ANSWERS
        yield played


def through(stage: Stage, cases: list[Case]) -> list[Any]:
    """What the clients make of the hub."""
    requests = [{**case, "model": f"{case['model'][:3]}/{case['model']}"} for case in cases]
    openai = {"baseURL": f"{stage.url}/v1", "apiKey": stage.key}
    anthropic = {"baseURL": stage.url, "apiKey": stage.key}
    return played(openai=openai, anthropic=anthropic, cases=requests)


def straight(stage: Stage, cases: list[Case]) -> list[Any]:
    """What they make of the model server."""
    openai = {"baseURL": f"{stage.upstream.url}/v1", "apiKey": "x"}
    anthropic = {"baseURL": stage.upstream.url, "apiKey": "x"}
    return played(openai=openai, anthropic=anthropic, cases=cases)


def played(**scenario: Any) -> list[Any]:
    """What the one Node process of these tests reports of the cases: loading the SDKs takes it a second."""
    reports: list[Any] = player("gateway.mjs").play(scenario)
    return reports


def test_the_clients_hear_the_same_as_straight(stage: Stage) -> None:
    cases = [
        {name: value for name, value in case.items() if name != "stream_options" or case["sdk"] == "openai"}
        for case in SAME
    ]
    for case, report, want in zip(cases, through(stage, cases), straight(stage, cases), strict=True):
        assert unnumbered(report) == unnumbered(want), case


def unnumbered(report: Any) -> Any:
    """A report without the number of the request, which is the hub's own."""
    error = report.get("error")
    if error and '"request_id"' in error["message"]:
        return {**report, "error": {**error, "message": error["message"].partition('"request_id"')[0]}}
    return report


def test_an_answer_that_broke_off_is_an_error(stage: Stage) -> None:
    for case, report in zip(BROKEN, through(stage, BROKEN), strict=True):
        assert "error" in report, case


def test_each_client_hears_what_the_other_family_says(stage: Stage) -> None:
    for case, report in zip(ACROSS, through(stage, ACROSS), strict=True):
        raw = ANSWERS[case["model"]].body
        want = decoded(case["model"][:3], raw)
        assert isinstance(want, Said)
        if case["sdk"] == "openai":
            reply = said_by_openai(ChatCompletion.model_validate(report["said"]))
            if (
                case["how"] == "fold"
            ):  # usage is for who asks for it, and this SDK keeps one piece of a thought
                want, reply = (replace(one, tokens=(None, None), reasoning="") for one in (want, reply))
        else:
            reply = said_by_anthropic(Message.model_validate(report["said"]))
        assert known_ids(reply, raw) == known_ids(want, raw), case


def test_a_client_that_leaves_is_gone_for_the_upstream_too(stage: Stage) -> None:
    before = stage.upstream.left
    for report in through(stage, LEFT):
        assert len(report["said"]) == 1
        assert "error" not in report
    deadline = time.monotonic() + LIMIT
    while stage.upstream.left < before + len(LEFT):
        assert time.monotonic() < deadline
        stage.do(stage.upstream.turn())
