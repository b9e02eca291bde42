"""The caller of a model call, and the run, session and request that it belongs to."""

from __future__ import annotations

import msgspec

from dragoman.identity import LOCAL, Identity
from dragoman.operations.context import Context


class CallOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of model calls and what they belong to, as columns of their usage records."""

    identity: Identity = LOCAL
    endpoint: str | None = None
    request_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    call_id: str | None = None

    @classmethod
    def of_run(cls, context: Context) -> CallOrigin:
        """Return the origin of the model calls of a run."""
        return cls(
            identity=context.identity,
            endpoint="chat",
            run_id=context.run_id,
            session_id=context.session_id,
            call_id=context.call_id,
        )
