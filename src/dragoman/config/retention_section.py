"""The section `retention`: how long rows are kept."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.config.yaml_document import parse_duration

Period: TypeAlias = Annotated[float, Meta(gt=0)] | Annotated[str, Meta(min_length=1)] | bool | None


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long rows are kept: seconds, or like `90d`; `off` or None for ever.

    `limits.keep_days` is an older way to set `approvals` and `artifacts`.
    """

    calls: Period = "90d"
    approvals: Period = "30d"
    artifacts: Period = "30d"
    responses: Period = "30d"
    sessions: Period = None
    usage: Period = None
    events: Period = "30d"

    def seconds(self, field: str) -> float | None:
        """Return a field in seconds, None for ever. Raises InvalidScalar."""
        value: str | float | bool | None = getattr(self, field)
        if value is None or value is False or value == "off":  # YAML 1.1 reads `off` as false
            return None
        if isinstance(value, int | float) and value is not True:
            return float(value)
        return parse_duration(str(value))
