"""The record of one model call: who asked for what, what answered, and what it cost.

It stands apart from `store/accounts/usage.py`: the library makes records without loading a database.
"""

from __future__ import annotations

import msgspec

from dragoman.events import Usage

LOST_PREFIX = "lost"
"""The prefix of the ids of records of lost calls. See `UsageRecord.is_lost`."""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one model call. None means unknown. `cost` is in US dollars, durations are in seconds.

    `door` is the endpoint that received the request, `key_name` the name of the provider's key that was
    used, `error` the code of the error, `price_model` the model whose price was used, or "provider" when the
    provider reported the cost. `call_id` is the call in which a sub-agent works.
    """

    id: str
    owner: str
    status: str
    started_at: float
    run_id: str | None = None
    session_id: str | None = None
    key_id: str | None = None
    step: int | None = None
    provider: str | None = None
    model_asked: str | None = None
    model_served: str | None = None
    tokens: Usage = Usage()
    cost: float | None = None
    duration: float | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    door: str | None = None
    key_name: str | None = None
    first_byte: float | None = None
    upstream_status: int | None = None
    error: str | None = None
    price_model: str | None = None
    call_id: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it is the estimate of a call that ended with its process. Unlike other estimates it goes
        once that process has a record of the call.
        """
        return self.id.startswith(LOST_PREFIX)
