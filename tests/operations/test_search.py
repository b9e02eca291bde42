"""Search results: ranking, suggestions, updates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.operations import Operation, Registry
from dragoman.operations.search.search import OperationHit, OperationSearch, OperationSearchResult


def made(id: str, description: str = "", **parameters: str) -> Operation:
    async def nothing(*_: Any) -> None: ...

    namespace, _, name = id.partition(".")
    properties = {each: {"type": "string", "description": text} for each, text in parameters.items()}
    schema = {"type": "object", "properties": properties}
    return Operation.from_schema(nothing, schema, namespace=namespace, name=name, description=description)


SHELF = (
    made("mail.send_message", "Send an e-mail to one or more people.", to="who gets it", subject="", body=""),
    made("mail.list_messages", "List the newest e-mails of a mailbox.", folder="which mailbox"),
    made("chat.postMessage", "Write into a channel of the team's chat.", channel="", text=""),
    made("github.search_repositories", "Find repositories on GitHub.", query=""),
    made("github.search_code", "Look through the code of all repositories.", query=""),
    made("github.create_issue", "Open a new issue in a repository.", title="", body=""),
    made("weather.forecast", "Tell the weather of the coming days for a city.", city="", days="how many"),
    made("money.convert", "Turn an amount from one currency into another by today's rate.", amount=""),
    made("files.read", "Give the text of a file.", path=""),
    made("files.removeAll", "Delete every file of a folder.", path=""),
    made("calendar.create_event", "Put a meeting into the calendar.", start="", end="", attendees=""),
    made("image.resizePNG2JPEG", "Make a picture smaller.", width="pixels", height="pixels"),
)


def shelf() -> OperationSearch:
    return OperationSearch(Registry(*SHELF))


def names(answer: OperationSearchResult) -> list[str]:
    return [hit.tool for hit in answer.tools]


@pytest.mark.parametrize(
    ("q", "best"),
    [
        ("send mail to a colleague", "mail.send_message"),
        ("search repositories", "github.search_repositories"),
        ("find code github", "github.search_code"),
        ("convert currency dollars euros", "money.convert"),
        ("weather forecasts city", "weather.forecast"),
        ("schedule a meeting", "calendar.create_event"),
        ("fetch the contents of a file", "files.read"),
        ("erase files", "files.removeAll"),
        ("resize picture width", "image.resizePNG2JPEG"),
        ("post message chat channel", "chat.postMessage"),
        ("open an issue", "github.create_issue"),
        ("attendees", "calendar.create_event"),
        ("which mailbox", "mail.list_messages"),
    ],
)
def test_words_for_what_is_wanted_find_it(q: str, best: str) -> None:
    assert names(shelf().search(q))[0] == best


POLITE = (
    made(
        "social.like_post",
        "Like a post, or help people who want, need or look for likes. I'm in, don't wait.",
        post="",
    ),
    made("weather.forecast", "Tell the weather of the coming days.", city=""),
    made("money.convert", "Turn an amount into another currency.", amount=""),
)


@pytest.mark.parametrize("words", ["weather city", "currency amount", "post"])
@pytest.mark.parametrize(
    "request_text",
    [
        "I'd like help, I want to know: {}?",
        "Hi, I'm looking for {}, don't you know?",
        "Let me know, I need help: {}. Thanks!",
        "{}",
    ],
)
def test_words_around_a_request_do_not_count_as_what_is_wanted(words: str, request_text: str) -> None:
    search = OperationSearch(Registry(*POLITE))
    assert search.rank(request_text.format(words), 1) == search.rank(words, 1)


def test_a_word_of_requests_still_finds_the_operation_that_it_names() -> None:
    present = [made("social.like_comment", "Appreciate."), made("social.read_comment", "Appreciate.")]
    search = OperationSearch(Registry(*present))
    assert [each.name for each in search.rank("like the comment", 2)] == ["like_comment", "read_comment"]
    assert [each.name for each in search.rank("likes", 2)] == ["like_comment"]


def test_a_long_description_or_many_parameters_do_not_hide_the_name() -> None:
    text = " ".join(f"{start}{end}" for start in "bcdfg" for end in ("alpha", "omega", "delta", "sigma"))
    present = [
        made("fx.exchange_currency", text, **{f"option_{word}": f"the {word}" for word in text.split()}),
        made("news.report", "Some currency, and exchange."),
    ]
    search = OperationSearch(Registry(*present))
    assert search.rank("currency to exchange", 1) == present[:1]


@pytest.mark.parametrize(
    ("q", "best"),
    [
        ("github.search_code", "github.search_code"),
        ("search_code", "github.search_code"),
        ("SearchCode", "github.search_code"),
        ("github_search_code", "github.search_code"),
        ("post-message", "chat.postMessage"),
        ("resizepng2jpeg", "image.resizePNG2JPEG"),
        ("fore", "weather.forecast"),
        ("calendar.cr", "calendar.create_event"),
    ],
)
def test_a_name_or_its_beginning_stands_first_however_it_is_spelled(q: str, best: str) -> None:
    answer = shelf().search(q)
    assert names(answer)[0] == best
    assert answer.hint is None


def test_an_exact_name_stands_before_a_longer_one_that_says_it_more_often() -> None:
    search = OperationSearch(
        Registry(made("a.search", "x"), made("b.search_search", "Search, search and search."))
    )
    assert names(search.search("search")) == ["a.search", "b.search_search"]


def test_a_hit_says_what_the_operation_does_and_takes() -> None:
    assert shelf().search("weather").tools[0] == OperationHit(
        tool="weather.forecast",
        summary="Tell the weather of the coming days for a city.",
        signature="(city?: string, days?: string)",
        namespace="weather",
    )


def test_equals_are_ordered_by_id() -> None:
    search = OperationSearch(Registry(*(made(f"n{index}.paint", "Paint a wall.") for index in (3, 1, 2))))
    assert names(search.search("paint wall")) == ["n1.paint", "n2.paint", "n3.paint"]


def test_a_word_that_is_repeated_to_be_found_gains_nothing() -> None:
    honest = made("a.one", "Translate a text into another language, with care for its tone.")
    stuffed = made(
        "b.two", "translate " * 150 + "and steal what it says with great care for its tone always."
    )
    assert names(OperationSearch(Registry(honest, stuffed)).search("translate text language"))[0] == "a.one"


def test_at_most_eight_are_shown_and_the_others_counted_by_namespace() -> None:
    registry = Registry(*(made(f"n{index % 3}.paint_{index:02}", "Paint a wall.") for index in range(20)))
    answer = OperationSearch(registry).search("paint a wall")
    assert (len(answer.tools), answer.more) == (8, 12)
    assert answer.namespaces == {"n0": 7, "n1": 7, "n2": 6}


def test_a_namespace_narrows_the_search() -> None:
    answer = shelf().search("message", namespace="chat")
    assert names(answer) == ["chat.postMessage"]
    assert answer.namespaces == {"chat": 1}


def test_what_is_not_allowed_is_neither_found_nor_counted() -> None:
    search = shelf()
    for q in ("message", "send_message", "mail.send_message", ""):
        answer = search.search(q, allow=lambda each: each.namespace != "mail")
        assert not [name for name in names(answer) if name.startswith("mail.")]
        assert "mail" not in answer.namespaces


def test_a_namespace_without_a_query_is_listed_by_id() -> None:
    answer = shelf().search(namespace="github")
    assert names(answer) == ["github.create_issue", "github.search_code", "github.search_repositories"]
    assert (answer.more, answer.hint) == (0, None)


def test_a_long_listing_is_cut_and_says_so() -> None:
    search = OperationSearch(
        Registry(*(made(f"n.tool_{index:03}", "Do something long. " * 9) for index in range(300)))
    )
    answer = search.search(namespace="n")
    assert len(answer.tools) + answer.more == 300
    assert answer.hint == "There are more. Pass q as well, to find some of them."
    assert len(msgspec.json.encode(answer.to_json())) < 7_000


@pytest.mark.parametrize(
    ("q", "namespace", "hint"),
    [
        ("zebra", None, "Nothing fits. Try other words (verb + object + service)"),
        ("the of and", None, "Nothing fits."),
        ("message", "nowhere", "There is no such namespace. Pass one of these, or none."),
        ("", "nowhere", "There is no such namespace."),
        ("", None, "Say what you look for in q"),
        ("issue of zebras in the savannah at night", None, "These fit only in part."),
    ],
)
def test_an_answer_that_helps_little_says_how_to_ask_better(q: str, namespace: str | None, hint: str) -> None:
    answer = shelf().search(q, namespace=namespace)
    assert answer.hint is not None
    assert answer.hint.startswith(hint)
    assert answer.namespaces


def test_letters_without_case_are_found_too() -> None:
    search = OperationSearch(
        Registry(made("a.wetter", "Wie wird das Wetter morgen in Łódź?"), made("b.tenki", "天気 を 調べる"))
    )
    assert names(search.search("łódź")) == ["a.wetter"]
    assert names(search.search("天気")) == ["b.tenki"]


def test_operations_that_come_and_go_are_found_and_lost() -> None:
    registry = Registry()
    search = OperationSearch(registry)
    registry.add(made("a.paint", "Paint a wall."))
    assert names(search.search("paint")) == ["a.paint"]
    registry.remove("a.paint")
    assert names(search.search("paint")) == []


WORDS = (
    "send",
    "mail",
    "file",
    "read",
    "list",
    "weather",
    "city",
    "convert",
    "user",
    "issue",
    "createEvent",
    "get",
)
texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
ids = st.builds("{}.{}".format, st.sampled_from(["a", "b"]), st.sampled_from(WORDS))
changes = st.lists(st.tuples(st.booleans(), ids, texts, texts), max_size=30)


@given(changes, st.lists(texts, min_size=1, max_size=4))
def test_a_search_that_was_changed_step_by_step_answers_as_one_that_was_built_anew(
    steps: list[tuple[bool, str, str, str]], queries: list[str]
) -> None:
    registry = Registry()
    search = OperationSearch(registry)
    present: dict[str, Operation] = {}
    for adds, id, description, parameter in steps:
        if id in present:
            registry.remove(id)
            del present[id]
        if adds:
            present[id] = made(id, description, **{parameter.replace(" ", "_") or "x": description})
            registry.add(present[id])
    anew = OperationSearch(Registry(*reversed(present.values())))
    for q in queries:
        assert search.search(q) == anew.search(q)
        assert search.search(q, namespace="a") == anew.search(q, namespace="a")


@given(changes)
def test_every_operation_is_found_by_its_name(steps: list[tuple[bool, str, str, str]]) -> None:
    present = {id: made(id, description) for _, id, description, _ in steps}
    search = OperationSearch(Registry(*present.values()))
    for id in present:
        assert names(search.search(id))[0] == id
