"""How large a model request and its answer are, in tokens, where nobody has counted them yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from dragoman.accounts.price import Price, assumed_tokens
from dragoman.events import Usage
from dragoman.model_request import ModelRequest, request_size
from dragoman.offload import offload
from dragoman.providers.routing import Route
from dragoman.wire.client_request import Advisor, count_searches, find_advisors
from dragoman.wire.named_files import names_documents
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, estimate_input

CHARACTERS_PER_TOKEN = 4
DOCUMENT_OUTPUT_TOKENS = 32_768  # few models write longer answers


class PromptSize(msgspec.Struct, frozen=True):
    """The tokens of a prompt: estimated before its call, and counted by its provider."""

    estimated: int
    counted: int

    def expect_next(self, estimate: int) -> int:
        """Return the tokens of the run's next prompt: no fewer than this one's, unless it was cut."""
        return estimate if estimate < self.estimated else max(estimate, self.counted)


class PromptEstimate(ABC):
    """The tokens of a call's prompt, estimated when they are needed: that may read a whole history.

    `previous` is the prompt of the run's last step: unless it was cut since, this one is not shorter.
    `unseen` are the most tokens of files that the request only names; they are reserved, and not estimated.
    `may_be_long`: the estimate is to be awaited with `count()`.
    """

    may_be_long: ClassVar[bool]

    def __init__(self, *, unseen: int = 0) -> None:
        self._unseen = unseen
        self.previous: PromptSize | None = None
        self._tokens: int | None = None

    @abstractmethod
    def _estimate(self) -> int:
        """Return the estimate."""

    @abstractmethod
    def _size(self) -> int:
        """Return about how many bytes `_estimate` reads."""

    @property
    def tokens(self) -> int:
        """The estimate; `count()` it before if the prompt may be long."""
        if self._tokens is None:
            self._tokens = self._estimate()
        return self._tokens

    async def count(self) -> None:
        """Estimate the tokens, those of a long prompt in a thread."""
        if self._tokens is None:
            self._tokens = await offload(self._size(), self._estimate)

    def to_reserve(self) -> int:
        """Return the tokens to reserve: the estimate with what is unseen, or the last prompt if larger."""
        tokens, last = self.tokens, self.previous
        if last is None or tokens < last.estimated:
            return tokens + self._unseen
        return last.expect_next(tokens)  # whose count has the files

    def compare(self, usage: Usage | None) -> PromptSize | None:
        """Return the prompt of an ended call that was estimated, if its provider counted it too."""
        if usage is None or usage.estimated or usage.input_tokens is None or self._tokens is None:
            return None
        return PromptSize(self._tokens, usage.input_tokens)


def token_factor(route: Route) -> float:
    """Return by how much a family counts more tokens than others do."""
    return ANTHROPIC_FACTOR if route.provider.family == "anthropic" else 1.0


class PlannedPrompt(PromptEstimate):
    """The prompt of a request whose tokens somebody else estimates, with `tokens`."""

    may_be_long = False

    def __init__(self, tokens: Callable[[], int], *, unseen: int = 0) -> None:
        super().__init__(unseen=unseen)
        self._estimate_tokens = tokens

    def _estimate(self) -> int:
        return self._estimate_tokens()

    def _size(self) -> int:
        return 0


class RequestPrompt(PromptEstimate):
    """The prompt of a request for the model of a route."""

    may_be_long = True

    def __init__(self, request: ModelRequest, route: Route, *, named_documents: int = 0) -> None:
        """`named_documents` are the most tokens of the documents that the request only names."""
        super().__init__()
        self._request = request
        self._factor = token_factor(route)
        self._named_documents = named_documents

    def _estimate(self) -> int:
        if self._named_documents and names_documents(self._request.messages):
            self._unseen = self._named_documents
        return estimate_input(self._request, factor=self._factor)

    def _size(self) -> int:
        return request_size(self._request)


class AnswerBounds(msgspec.Struct, frozen=True):
    """The most that an answer may have: tokens, if its request limits them, searches of its provider, and
    advice of other models. `is_document`: how long it is, is known at its end only.
    """

    output_tokens: int | None = None
    searches: int = 0
    advisors: Sequence[Advisor] = ()
    is_document: bool = False

    @property
    def assumed_tokens(self) -> int:
        """The output tokens that are reserved before the answer begins."""
        return assumed_tokens(self.output_tokens)

    def max_cost(self, price: Price, input_tokens: int) -> int:
        """Return the highest cost of an answer in nano-dollars, for an estimated prompt."""
        limit, searches = self.output_tokens, self.searches
        return price.max_cost(input_tokens, limit, searches=searches, advisors=self.advisors)

    def likely_cost(self, price: Price, input_tokens: int) -> int:
        """Return the cost to reserve if there is room for it, `max_cost` or more: a document without a limit
        cannot be ended where a budget has no more room.
        """
        if not self.is_document or self.output_tokens is not None:
            return self.max_cost(price, input_tokens)
        return replace(self, output_tokens=DOCUMENT_OUTPUT_TOKENS).max_cost(price, input_tokens)

    def unpriced(self, price: Price) -> str | None:
        """Return a model that may be asked for advice, and whose price is not known; None without any."""
        models = (each.model for each in self.advisors)
        return next((model for model in models if price.others.get(model) is None), None)


UNBOUNDED = AnswerBounds()


def bounds_of(request: ModelRequest) -> AnswerBounds:
    """Return the most that the answer to a request may have."""
    limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
    extra = request.options.get("extra_body")
    tools = extra.get("tools") if isinstance(extra, Mapping) else None
    return AnswerBounds(
        limit if isinstance(limit, int) and limit > 0 else None,
        count_searches(tools, request.options.get("max_tool_calls")) if tools else 0,
        find_advisors(tools),
    )
