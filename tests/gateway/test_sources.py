"""Web pages, files and signatures that another protocol has no field for, at the endpoints of its clients."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tests.gateway.sdk_clients import HI, Pair, final, message
from tests.gateway.upstream import Answer, Stage
from tests.wire.anthropic_streams import SEARCH, STREAMS, block, start, stop, text
from tests.wire.anthropic_streams import sse as anthropic_sse
from tests.wire.openai_streams import chunk, recording, sse
from tests.wire.responses_streams import ending, opening, reasoning
from tests.wire.responses_streams import message as text_item
from tests.wire.responses_streams import sse as responses_sse

PAGE = "https://a.example/1"
ANNOTATION = {"type": "url_citation", "url_citation": {"url": PAGE, "title": "One"}}
RESULTS = {"citations": [PAGE], "search_results": [{"title": "One", "url": PAGE}]}
STOP = chunk(finish="stop")
TEXT = chunk({"content": "Found."})
PLACES: dict[str, list[Mapping[str, Any]]] = {
    "before the text": [{**chunk({"role": "assistant"}), **RESULTS}, TEXT, STOP],
    "in the text": [TEXT, {**chunk({"content": " Yes."}), **RESULTS}, STOP],
    "after the text": [TEXT, chunk({"annotations": [ANNOTATION]}), STOP],
    "with the finish": [TEXT, {**STOP, **RESULTS}],
}
TOOLS: Any = [{"type": "function", "name": "time", "parameters": {"type": "object"}}]


@pytest.mark.parametrize("place", PLACES)
def test_web_pages_are_citations_for_every_client(
    stage: Stage, chat: Pair, messages: Pair, place: str
) -> None:
    stage.upstream.play(Answer(body=sse(*PLACES[place])))
    for read in (final, message):
        reply = read(messages.hub, "oai/m")
        (citation,) = [found for block in reply.content for found in block.citations or ()]
        assert (citation.type, citation.url, citation.title) == ("web_search_result_location", PAGE, "One")
    for stream in (False, True):
        found = chat.hub.responses.create(model="oai/m", input="hi", stream=stream)
        last = list(found)[-1].response if stream else found
        (annotation,) = last.output[-1].content[0].annotations
        assert (annotation.type, annotation.url) == ("url_citation", PAGE)


PLACED = "Before. It is noon."  # "It is noon" is cited
SPAN = {"start_index": 8, "end_index": 18}
PLACED_ANSWERS: dict[str, tuple[str, bytes]] = {
    "chat.completions": (
        "oai/m",
        sse(
            chunk({"content": PLACED}),
            chunk({"annotations": [{"type": "url_citation", "url_citation": {"url": PAGE, **SPAN}}]}),
            STOP,
        ),
    ),
    "responses": ("res/m", responses_sse(*opening(), ending(text_item(PLACED, {"url": PAGE, **SPAN})))),
    "responses, in the second message": (
        "res/m",
        responses_sse(
            *opening(),
            ending(
                text_item("Before. "),
                text_item("It is noon.", {"url": PAGE, "start_index": 0, "end_index": 10}),
            ),
        ),
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("kind", PLACED_ANSWERS)
def test_a_citation_stands_where_its_provider_places_it(
    stage: Stage, chat: Pair, kind: str, *, stream: bool
) -> None:
    model, body = PLACED_ANSWERS[kind]
    stage.upstream.play(Answer(body=body))
    completions = chat.hub.chat.completions
    if stream:
        with completions.stream(model=model, messages=HI) as folding:
            spoken = folding.get_final_completion().choices[0].message.to_dict()
    else:
        spoken = completions.create(model=model, messages=HI).choices[0].message.to_dict()
    (annotation,) = spoken["annotations"]
    place = annotation["url_citation"]
    assert spoken["content"][place["start_index"] : place["end_index"]] == "It is noon"
    found = chat.hub.responses.create(model=model, input="hi", stream=stream, store=False)
    part = (list(found)[-1].response if stream else found).output[-1].content[0]
    (cited,) = part.annotations
    assert part.text[cited.start_index : cited.end_index] == "It is noon"


IMPOSSIBLE_PLACES: list[dict[str, Any]] = [
    {"start_index": 5, "end_index": 5},
    {"start_index": -1, "end_index": 2},
    {"start_index": 0, "end_index": 900},
    {"start_index": "0", "end_index": 1.5},
    {"start_index": True, "end_index": 2**70},
]


@pytest.mark.parametrize("place", IMPOSSIBLE_PLACES)
def test_a_citation_without_a_possible_place_stands_at_the_end(
    stage: Stage, chat: Pair, place: dict[str, Any]
) -> None:
    cited = {"type": "url_citation", "url_citation": {"url": PAGE, **place}}
    stage.upstream.play(Answer(body=sse(TEXT, chunk({"annotations": [cited]}), STOP)))
    reply = chat.hub.responses.create(model="oai/m", input="hi", store=False)
    (annotation,) = reply.output[-1].content[0].annotations
    assert (annotation.start_index, annotation.end_index) == (6, 6)


def test_a_web_page_without_a_title_is_cited_by_its_address(stage: Stage, messages: Pair) -> None:
    """The AI SDK refuses an answer with a title of null."""
    stage.upstream.play(Answer(body=sse({**TEXT, "citations": [PAGE]}, STOP)))
    for read in (final, message):
        (citation,) = read(messages.hub, "oai/m").content[0].citations
        assert (citation.url, citation.title) == (PAGE, PAGE)


def test_citations_of_other_providers_do_not_go_to_anthropic(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=sse(*PLACES["in the text"])))
    reply = final(messages.hub, "oai/m")
    turns = [*HI, {"role": "assistant", "content": [block.to_dict() for block in reply.content]}, *HI]
    own = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": None}
    turns[1]["content"][0]["citations"].append(own)
    text = "".join(block.text for block in reply.content)
    stage.upstream.play(Answer(body=STREAMS["text"]))
    final(messages.hub, "ant/m", messages=turns)
    assert stage.upstream.body["messages"][1]["content"] == [
        {"type": "text", "text": text, "citations": [own]}
    ]


CALL = {"index": 0, "id": "call_1", "function": {"name": "now", "arguments": ""}}
ASK = {"messages": HI, "max_tokens": 9}
DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/messages": ASK,
    "/v1/responses": {"input": "hi", "store": False},
}
IMAGE = recording("openrouter_image")
SOUND = sse(chunk({"content": "Hi", "images": [{"image_url": {"url": "https://a.example/s.png"}}]}), STOP)
ONLY_PAGES = sse({**chunk({"tool_calls": [CALL]}), **RESULTS}, STOP)
AUDIO = [{"audio": {"id": "a", "transcript": "Hi"}}, {"audio": {"data": "UklGRgAA"}}]
SPOKEN = sse(*map(chunk, AUDIO), STOP)
UPLOAD = anthropic_sse(start(), *block(0, {"type": "container_upload", "file_id": "f"}), stop("end_turn"))
OMISSIONS: list[tuple[str, bytes, str, str]] = [
    ("/v1/messages", IMAGE, "oai/m", "file"),
    ("/v1/responses", IMAGE, "oai/m", ""),
    ("/v1/responses", SOUND, "oai/m", "file"),  # an image that is only an address
    ("/v1/messages", ONLY_PAGES, "oai/m", "source-url"),
    ("/v1/messages", recording("openai_text"), "oai/m", ""),
    ("/v1/responses", STREAMS["search"], "ant/m", "source-document"),
    ("/v1/chat/completions", STREAMS["search"], "ant/m", "tool-call,source-document"),
    ("/v1/messages", SPOKEN, "oai/m", "file"),
    ("/v1/responses", SPOKEN, "oai/m", "file"),
    ("/v1/chat/completions", UPLOAD, "ant/m", "data-anthropic"),
    ("/v1/responses", UPLOAD, "ant/m", "data-anthropic"),
]


@pytest.mark.parametrize(("door", "body", "model", "names"), OMISSIONS)
def test_a_client_is_told_what_its_protocol_has_no_place_for(
    stage: Stage, door: str, body: bytes, model: str, names: str
) -> None:
    stage.upstream.play(Answer(body=body))
    headers = {"authorization": f"Bearer {stage.key}"}
    with httpx2.Client(base_url=stage.url, headers=headers, trust_env=False, timeout=60) as http:
        document = http.post(door, json={"model": model, **DOORS[door]})
        stream = http.post(door, json={"model": model, "stream": True, **DOORS[door]})
    assert document.status_code == 200
    assert document.headers.get("x-dragoman-omitted", "") == names
    assert (f": x-dragoman-omitted {names}\n\n" in stream.text) == bool(names)


MARK = "MARK7"


def anthropic(*events: Any) -> bytes:
    return anthropic_sse(start(), *events, *text(7, "Hi"), stop("end_turn"), {"type": "message_stop"})


def responses(*items: dict[str, Any]) -> bytes:
    return responses_sse(*opening(), ending(*items, text_item("Hi")))


DETAIL = {"type": "reasoning.encrypted", "data": MARK, "id": "r", "index": 0}
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MARK}"}}
CITED = {"type": "char_location", "cited_text": MARK, "document_index": 0, "document_title": MARK}
WEB = {"type": "web_search_result_location", "url": f"https://{MARK}.example", "title": MARK}
KINDS: dict[str, tuple[str, bytes]] = {  # what an answer has beside its text: of whom, and its stream
    "picture": ("oai/m", sse(chunk({"content": "Hi", "images": [PICTURE]}), STOP)),
    "picture in a list": ("oai/m", sse(chunk({"content": [{"type": "text", "text": "Hi"}, PICTURE]}), STOP)),
    "sound": (
        "oai/m",
        sse(chunk({"audio": {"id": "a", "data": f"UklG{MARK}w==", "transcript": "Hi"}}), STOP),
    ),
    "refusal": ("oai/m", sse(chunk({"refusal": MARK}), STOP)),
    "citation": ("oai/m", sse(chunk({"content": "Hi"}), {**STOP, "citations": [f"https://{MARK}.example"]})),
    "reasoning": ("oai/m", sse(chunk({"reasoning_content": MARK}), TEXT, STOP)),
    "opaque": ("oai/m", sse(chunk({"reasoning_details": [DETAIL]}), TEXT, STOP)),
    "thinking": ("ant/m", anthropic(*block(0, {"type": "thinking", "thinking": MARK, "signature": "s"}))),
    "signature": ("ant/m", anthropic(*block(0, {"type": "thinking", "thinking": "", "signature": MARK}))),
    "redacted": ("ant/m", anthropic(*block(0, {"type": "redacted_thinking", "data": MARK}))),
    "document": ("ant/m", anthropic(*block(0, {"type": "text", "text": "Hi", "citations": [CITED]}))),
    "web page": ("ant/m", anthropic(*block(0, {"type": "text", "text": "Hi", "citations": [WEB]}))),
    "unknown block": ("ant/m", anthropic(*block(0, {"type": "container_upload", "file_id": MARK}))),
    "server tool": ("ant/m", anthropic(*block(0, {**SEARCH, "input": {"query": MARK}}))),
    "unknown item": ("res/m", responses({"type": "hologram", "id": "h_1", "data": MARK})),
    "compaction": ("res/m", responses({"type": "compaction", "id": "cmp_1", "encrypted_content": MARK})),
    "unknown part": ("res/m", responses({**text_item("Hi"), "content": [{"type": "song", "notes": MARK}]})),
    "summary": ("res/m", responses(reasoning(MARK))),
    "encrypted": ("res/m", responses(reasoning("", encrypted=MARK))),
    "image": ("res/m", responses({"type": "image_generation_call", "id": "i", "result": MARK})),
    "shell": ("res/m", responses({"type": "shell_call", "id": "s", "call_id": "c", "action": {"a": MARK}})),
    "file": ("res/m", responses(text_item("Hi", {"type": "file_citation", "file_id": MARK, "index": 1}))),
    "annotation": ("res/m", responses(text_item("Hi", {"url": f"https://{MARK}.example", "title": MARK}))),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
def test_what_an_answer_has_beside_its_text_arrives_or_is_named(
    stage: Stage, door: str, *, stream: bool
) -> None:
    silent = []
    for kind, (model, body) in KINDS.items():
        stage.upstream.play(Answer(body=body))
        headers = {"authorization": f"Bearer {stage.key}"}
        ask = {"model": model, "stream": stream, **DOORS[door]}
        answer = httpx2.post(f"{stage.url}{door}", json=ask, headers=headers, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        is_named = "x-dragoman-omitted" in answer.headers or "x-dragoman-omitted" in answer.text
        if MARK not in readable(answer.text) and not is_named:
            silent.append(kind)
    assert silent == []


def readable(text: str) -> str:
    """The text, with what is in its base64: another provider's opaque reasoning is wrapped."""
    pieces = re.findall(r"(?:[A-Za-z0-9+/_-]{4}){4,}", text)
    return text + "".join(base64.urlsafe_b64decode(piece).decode("latin-1") for piece in pieces)


LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}]}


@pytest.mark.parametrize(
    ("door", "model", "fields"),
    [
        ("/v1/chat/completions", "oai/m", {"logprobs": True}),  # a stream in place of a document
        ("/v1/chat/completions", "ant/m", {"logprobs": True}),
        ("/v1/chat/completions", "res/m", {"logprobs": True}),
        ("/v1/responses", "oai/m", {"top_logprobs": 2}),
        ("/v1/responses", "ant/m", {"top_logprobs": 2}),
    ],
)
def test_log_probabilities_that_a_translated_answer_lacks_are_named(
    stage: Stage, door: str, model: str, fields: dict[str, Any]
) -> None:
    spoken = chunk({"content": "Hi"})
    spoken["choices"][0]["logprobs"] = LOGPROBS
    bodies = {"oai/m": sse(spoken, STOP), "ant/m": STREAMS["text"], "res/m": responses()}
    stage.upstream.play(Answer(body=bodies[model]))
    headers = {"authorization": f"Bearer {stage.key}"}
    ask = {"model": model, **DOORS[door], **fields}
    answer = httpx2.post(f"{stage.url}{door}", json=ask, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    (name,) = fields
    assert name in answer.headers.get("x-dragoman-dropped", "").split(",")


@pytest.mark.parametrize("late", [False, True], ids=["with the call", "after it"])
@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
def test_the_signature_of_a_call_goes_back_through_a_responses_client(
    stage: Stage, chat: Pair, *, stream: bool, late: bool
) -> None:
    """Gemini refuses a conversation without the signatures of its calls."""
    signature = {"extra_content": {"google": {"thought_signature": "c2ln+/=="}}}
    function = {"name": "time", "arguments": "{}"}
    calls = [{"index": index, "id": f"call_{index}", "function": function} for index in (0, 1)]
    signed = [{**calls[0], **({} if late else signature)}, calls[1]]
    chunks = [chunk({"tool_calls": [call]}) for call in signed]
    chunks += [chunk({"tool_calls": [{"index": 0, **signature}]})] if late else []
    stage.upstream.play(Answer(body=sse(*chunks, chunk(finish="tool_calls"))))
    ask: dict[str, Any] = {"model": "oai/m", "store": False, "tools": TOOLS}
    reply = chat.hub.responses.create(input="hi", stream=stream, **ask)
    items = [item.to_dict() for item in (list(reply)[-1].response if stream else reply).output]
    turns = [{"role": "user", "content": "hi"}, *items]
    turns += [{"type": "function_call_output", "call_id": call["id"], "output": "Noon"} for call in calls]
    for model, wanted in (("oai/m", [signature["extra_content"], None]), ("oai-again/m", [None, None])):
        stage.upstream.play(Answer(body=sse(TEXT, STOP)))
        chat.hub.responses.create(input=turns, **{**ask, "model": model})
        sent = stage.upstream.body["messages"][1]["tool_calls"]
        assert [call.get("extra_content") for call in sent] == wanted
        assert [call["id"] for call in sent] == ["call_0", "call_1"]
